"""JoinGroup: how a generation comes about (claim A8: a consumer belongs to a group)."""

from __future__ import annotations

from typing import Any

import pytest

from gapless.core.groups.group import GroupState
from gapless.core.groups.rebalance import NEW_MEMBER_JOIN_TIMEOUT_MS
from gapless.wire.errors import ErrorCode
from tests.core.groups.crowd import REBALANCE_MS, SESSION_MS, Crowd, subscription


def test_a_newcomer_is_given_an_id_and_joins_with_it() -> None:
    crowd = Crowd()
    member = crowd.newcomer(client_id="shop")
    first = member.send_join()
    assert first.error is ErrorCode.MEMBER_ID_REQUIRED
    member.member_id = first.reply.member_id
    assert member.member_id.startswith("shop-")
    assert not crowd.group().members, "not a member before it comes back"
    member.joining = member.send_join()
    crowd.world.advance(0)
    assert member.leads
    assert member.generation == 1


@pytest.mark.parametrize("version", range(10))
def test_every_version_of_join_works(version: int) -> None:
    crowd = Crowd()
    member = crowd.newcomer(version=version)
    member.join()
    crowd.world.advance(0)
    reply = member.joining.reply
    assert (reply.error_code, reply.generation_id, reply.protocol_name) == (0, 1, "range")
    assert reply.leader == reply.member_id != ""
    (described,) = reply.members
    assert bytes(described.metadata) == subscription("t")
    if version == 0:
        assert crowd.group().members[reply.member_id].rebalance_timeout_ms == SESSION_MS


def test_an_old_client_becomes_a_member_at_once() -> None:
    crowd = Crowd()
    member = crowd.newcomer(version=3)
    pending = member.send_join()
    crowd.world.advance(0)
    assert pending.error is ErrorCode.NONE


def test_the_leader_learns_of_all_members_and_the_others_of_none() -> None:
    crowd = Crowd()
    leader, follower = crowd.stable(2)
    assert {member.member_id for member in leader.joining.reply.members} == {
        leader.member_id,
        follower.member_id,
    }
    assert follower.joining.reply.members == []
    assert follower.joining.reply.leader == leader.member_id
    assert leader.generation == follower.generation


def test_a_newcomer_calls_everybody_to_join_again() -> None:
    crowd = Crowd()
    (old,) = crowd.stable(1)
    new = crowd.newcomer()
    new.join()
    assert not new.joining.is_answered()
    assert old.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    old.join()
    assert new.joining.is_answered()
    assert old.generation == new.generation == 2
    assert old.leads
    assert not new.leads


def test_who_does_not_join_again_in_time_is_out() -> None:
    crowd = Crowd()
    (silent,) = crowd.stable(1, session_ms=REBALANCE_MS * 2)
    new = crowd.newcomer(session_ms=REBALANCE_MS * 2)
    new.join()
    crowd.world.advance(REBALANCE_MS - 1)
    assert not new.joining.is_answered()
    crowd.world.advance(1)
    assert new.leads
    assert list(crowd.group().members) == [new.member_id]
    assert silent.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_most_patient_member_decides_how_long_to_wait() -> None:
    crowd = Crowd()
    (silent,) = crowd.stable(1, session_ms=200_000, rebalance_ms=100_000)
    new = crowd.newcomer(session_ms=200_000, rebalance_ms=50_000)
    new.join()
    crowd.world.advance(99_999)
    assert not new.joining.is_answered()
    assert silent.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    crowd.world.advance(1)
    assert new.joining.is_answered()


def test_an_id_that_was_never_given_out_is_unknown() -> None:
    crowd = Crowd()
    stranger = crowd.newcomer()
    stranger.member_id = "somebody"
    assert stranger.send_join().error is ErrorCode.UNKNOWN_MEMBER_ID
    assert "g" not in crowd.state().groups, "asking for a group with an id does not create it"
    crowd.stable(1)
    assert stranger.send_join().error is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_id_that_is_not_used_within_the_session_is_forgotten() -> None:
    crowd = Crowd()
    member = crowd.newcomer()
    member.member_id = member.send_join().reply.member_id
    crowd.world.advance(SESSION_MS)
    assert not crowd.group().pending_joins
    assert member.send_join().error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_whom_an_id_was_given() -> None:
    crowd = Crowd()
    (member,) = crowd.stable(1)
    late = crowd.newcomer()
    late.member_id = late.send_join().reply.member_id
    member.protocols = {"range": subscription("t", "u")}
    member.join()
    assert not member.joining.is_answered()
    late.joining = late.send_join()
    assert member.joining.is_answered()
    assert late.joining.is_answered()


def test_a_rebalance_does_not_wait_for_whom_never_comes_back_with_its_id() -> None:
    crowd = Crowd()
    (member,) = crowd.stable(1)
    crowd.newcomer().send_join()
    member.join()
    assert not member.joining.is_answered()
    crowd.world.advance(SESSION_MS)
    assert member.joining.is_answered()


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001, -1, 0])
def test_a_session_must_be_within_the_brokers_bounds(session_ms: int) -> None:
    crowd = Crowd()
    assert crowd.newcomer(session_ms=session_ms).join().error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert "g" not in crowd.state().groups


def test_the_group_needs_a_name() -> None:
    crowd = Crowd()
    assert crowd.newcomer("").join().error is ErrorCode.INVALID_GROUP_ID
    assert crowd.newcomer("g" * 40_000).join().error is ErrorCode.INVALID_GROUP_ID


def test_without_the_internal_topic_nobody_coordinates() -> None:
    crowd = Crowd(found=False)
    assert crowd.newcomer().join().error is ErrorCode.NOT_COORDINATOR
    assert crowd.list_groups() == []


# ----------------------------------------------------------------------------------------- protocols


def test_members_vote_for_a_protocol_that_all_speak() -> None:
    crowd = Crowd(group_initial_rebalance_delay_ms="100")
    a = crowd.newcomer(protocols={"range": b"ra", "sticky": b"sa", "odd": b"oa"})
    b = crowd.newcomer(protocols={"sticky": b"sb", "range": b"rb"})
    c = crowd.newcomer(protocols={"sticky": b"sc", "range": b"rc"})
    for member in (a, b, c):
        member.join()
    crowd.world.advance(300)
    assert a.joining.reply.protocol_name == "sticky"
    assert [bytes(member.metadata) for member in a.joining.reply.members] == [b"sa", b"sb", b"sc"]


def test_who_shares_no_protocol_with_all_others_is_refused() -> None:
    crowd = Crowd()
    crowd.stable(1, protocols={"range": b""})
    assert crowd.newcomer(protocols={"sticky": b""}).join().error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    other_kind = crowd.newcomer(protocol_type="connect")
    assert other_kind.join().error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("options", [{"protocols": {}}, {"protocol_type": ""}])
def test_the_first_member_must_speak_something(options: dict[str, Any]) -> None:
    crowd = Crowd()
    assert crowd.newcomer(**options).join().error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


# ------------------------------------------------------------------------------------ joining once more


def test_a_member_that_joins_again_unchanged_gets_the_same_generation() -> None:
    crowd = Crowd()
    leader, follower = crowd.stable(2)
    generation = follower.generation
    follower.join()
    assert follower.generation == generation
    assert crowd.group().state is GroupState.STABLE
    leader.join()
    assert crowd.group().state is GroupState.PREPARING, "a leader that joins wants to assign anew"


def test_a_lost_reply_can_be_asked_for_again_before_the_assignment() -> None:
    crowd = Crowd()
    member = crowd.newcomer()
    member.join()
    crowd.world.advance(0)
    assert crowd.group().state is GroupState.COMPLETING
    first = member.joining.reply
    again = member.join().reply
    assert (again.generation_id, again.leader) == (first.generation_id, first.leader)
    assert len(again.members) == 1


def test_a_changed_subscription_makes_all_rebalance() -> None:
    crowd = Crowd()
    leader, follower = crowd.stable(2)
    follower.protocols = {"range": subscription("t", "u")}
    follower.join()
    assert leader.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    leader.join()
    metadata = {member.member_id: bytes(member.metadata) for member in leader.joining.reply.members}
    assert metadata[follower.member_id] == subscription("t", "u")


def test_a_join_on_a_new_connection_replaces_the_one_before() -> None:
    crowd = Crowd()
    (member,) = crowd.stable(1)
    new = crowd.newcomer()
    first = new.join()
    assert not first.is_answered()
    new.connection += 1000
    second = new.send_join()
    assert first.error is ErrorCode.REBALANCE_IN_PROGRESS
    member.join()
    assert second.error is ErrorCode.NONE


# ------------------------------------------------------------------------------------------ the first time


def test_the_first_members_are_given_time_to_come_together() -> None:
    crowd = Crowd(group_initial_rebalance_delay_ms="3000")
    members = [crowd.newcomer() for _ in range(3)]
    for member in members:
        member.join()
        crowd.world.advance(1000)
    assert not members[0].joining.is_answered(), "others came meanwhile: wait for more"
    crowd.world.advance(3000)
    assert [member.generation for member in members] == [1, 1, 1]


def test_the_first_members_wait_no_longer_than_a_rebalance_may_take() -> None:
    crowd = Crowd(group_initial_rebalance_delay_ms="3000")
    first = crowd.newcomer(rebalance_ms=10_000)
    first.join()
    for _ in range(9):
        crowd.world.advance(1000)
        crowd.newcomer(rebalance_ms=10_000).join()
        assert not first.joining.is_answered()
    crowd.world.advance(1000)
    assert first.joining.is_answered()
    assert len(first.joining.reply.members) == 10


# ------------------------------------------------------------------------------------------------- limits


def test_a_full_group_takes_nobody_else() -> None:
    crowd = Crowd(group_max_size="2")
    one, two = crowd.stable(2)
    assert crowd.newcomer().join().error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert one.heartbeat() is two.heartbeat() is ErrorCode.NONE
    two.leave()
    one.join()
    one.sync({one.member_id: b"all"})
    third = crowd.newcomer()
    third.join()
    one.join()
    assert third.joining.error is ErrorCode.NONE


def test_when_a_group_is_formed_only_so_many_get_in() -> None:
    crowd = Crowd(group_max_size="2", group_initial_rebalance_delay_ms="100")
    members = [crowd.newcomer() for _ in range(3)]
    for member in members:
        member.join()
    assert members[2].joining.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    crowd.world.advance(300)
    assert members[0].joining.error is members[1].joining.error is ErrorCode.NONE


def test_a_newcomer_whose_group_never_forms_is_let_go() -> None:
    """Its client may have died while it waited: a join that waits keeps nobody alive for ever."""
    crowd = Crowd()
    (busy,) = crowd.stable(1, session_ms=1_800_000, rebalance_ms=1_800_000)
    ghost = crowd.newcomer()
    ghost.join()
    crowd.world.advance(NEW_MEMBER_JOIN_TIMEOUT_MS)
    assert ghost.joining.error is ErrorCode.UNKNOWN_MEMBER_ID
    busy.join()
    assert busy.joining.is_answered(), "nobody waits for the ghost"


def test_a_member_that_waits_for_others_is_not_taken_for_dead() -> None:
    crowd = Crowd()
    patient, busy = crowd.stable(2, rebalance_ms=60_000)
    patient.join()  # the leader, so everybody must
    for _ in range(5):
        crowd.world.advance(SESSION_MS - 1)
        assert busy.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    busy.join()
    assert patient.joining.error is ErrorCode.NONE
