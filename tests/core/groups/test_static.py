"""Static members: a restart within the session costs nobody a rebalance, and a zombie is fenced."""

from __future__ import annotations

from typing import Any

import pytest

from gapless.core.groups.group import GroupState
from gapless.wire.errors import ErrorCode
from tests.core.groups.crowd import REBALANCE_MS, SESSION_MS, Consumer, Crowd, subscription


def two(crowd: Crowd, **options: Any) -> tuple[Consumer, Consumer]:
    members = [crowd.newcomer(instance=name, **options) for name in ("a", "b")]
    crowd.settle(*members)
    return members[0], members[1]


def restarted(crowd: Crowd, member: Consumer, **options: Any) -> Consumer:
    return crowd.newcomer(instance=member.instance, **options)


def test_a_static_member_needs_no_second_step() -> None:
    crowd = Crowd()
    member = crowd.newcomer(instance="box")
    member.joining = member.send_join()
    crowd.world.advance(0)
    assert member.leads
    assert member.member_id.startswith("box-")


def test_a_restarted_member_keeps_its_place_and_nobody_rebalances() -> None:
    crowd = Crowd()
    leader, follower = two(crowd)
    generation = leader.generation
    crowd.world.disconnect(follower.connection)
    crowd.world.advance(SESSION_MS - 1)
    assert leader.heartbeat() is ErrorCode.NONE
    again = restarted(crowd, follower)
    again.join()
    assert again.generation == generation
    assert again.joining.reply.leader == leader.member_id
    again.member_id = again.joining.reply.member_id
    assert again.member_id != follower.member_id
    assert bytes(again.sync().reply.assignment) == b"part-1"
    assert leader.heartbeat() is again.heartbeat() is ErrorCode.NONE
    assert crowd.group().state is GroupState.STABLE


def test_the_former_self_is_fenced_in_everything() -> None:
    crowd = Crowd()
    crowd.world.create_topic("t")
    _, follower = two(crowd)
    restarted(crowd, follower).join()
    assert follower.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert follower.sync().error is ErrorCode.FENCED_INSTANCE_ID
    assert follower.commit(1) is ErrorCode.FENCED_INSTANCE_ID
    assert follower.leave() is ErrorCode.FENCED_INSTANCE_ID
    assert follower.join().error is ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.parametrize(("version", "skips"), [(9, True), (8, False)])
def test_a_restarted_leader_does_not_assign_in_a_stable_group(version: int, skips: bool) -> None:
    crowd = Crowd()
    leader, _ = two(crowd)
    again = restarted(crowd, leader, version=version)
    again.join()
    reply = again.joining.reply
    if skips:
        assert reply.leader == reply.member_id
        assert reply.skip_assignment
        assert len(reply.members) == 2
    else:
        assert reply.leader == leader.member_id, "it must not take itself for the leader"
        assert reply.members == []
    assert crowd.group().leader == reply.member_id
    again.member_id = reply.member_id
    assert bytes(again.sync().reply.assignment) == b"part-0"


def test_a_restart_with_other_protocols_makes_all_rebalance() -> None:
    crowd = Crowd()
    both = {"range": subscription("t"), "sticky": subscription("t")}
    leader, follower = two(crowd, protocols=both)
    again = restarted(crowd, follower, protocols={"sticky": subscription("t")})
    again.join()
    assert not again.joining.is_answered()
    assert leader.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    leader.join()
    assert again.joining.reply.protocol_name == "sticky"
    assert follower.heartbeat() is ErrorCode.FENCED_INSTANCE_ID


def test_a_restart_during_the_round_of_joins_takes_over_the_place_in_it() -> None:
    crowd = Crowd()
    leader, follower = two(crowd)
    leader.join()
    follower_again = restarted(crowd, follower)
    follower_again.join()
    assert leader.joining.is_answered()
    assert follower_again.joining.is_answered()
    ids = {member.member_id for member in leader.joining.reply.members}
    assert ids == {leader.member_id, follower_again.joining.reply.member_id}


def test_a_waiting_former_self_is_told_that_it_is_fenced() -> None:
    crowd = Crowd()
    leader, follower = two(crowd)
    leader.join()
    again = restarted(crowd, leader)
    again.join()
    assert leader.joining.error is ErrorCode.FENCED_INSTANCE_ID
    follower.join()
    assert again.leads, "it leads on under its new id"


def test_a_restart_during_the_round_of_syncs_begins_a_new_round() -> None:
    crowd = Crowd()
    leader, follower = two(crowd)
    leader.join()
    follower.join()
    assert crowd.group().state is GroupState.COMPLETING
    follower.sync()
    again = restarted(crowd, follower)
    again.join()
    assert follower.syncing.error is ErrorCode.FENCED_INSTANCE_ID
    assert leader.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    leader.join()
    assert again.joining.error is ErrorCode.NONE


def test_a_static_member_that_misses_a_rebalance_is_still_counted_in() -> None:
    """It may be restarting: its session decides, not the rebalance."""
    crowd = Crowd()
    leader, absent = two(crowd, session_ms=600_000)
    leader.join()
    crowd.world.advance(REBALANCE_MS)
    assert {member.member_id for member in leader.joining.reply.members} == {
        leader.member_id,
        absent.member_id,
    }
    leader.sync({leader.member_id: b"all"})
    crowd.world.advance(REBALANCE_MS)
    assert list(crowd.group().static_ids) == ["a"], "but it has to take its assignment"


def test_when_no_static_member_joins_again_the_group_waits_on() -> None:
    crowd = Crowd()
    leader, _ = two(crowd, session_ms=600_000)
    dynamic = crowd.newcomer(session_ms=600_000)
    dynamic.join()
    dynamic.leave()
    crowd.world.advance(3 * REBALANCE_MS)
    assert crowd.group().state is GroupState.PREPARING
    assert len(crowd.group().members) == 2
    leader.join()
    crowd.world.advance(REBALANCE_MS)
    assert leader.joining.is_answered()


def test_two_instances_with_one_name_fence_each_other_and_never_both_live() -> None:
    crowd = Crowd()
    one = crowd.newcomer(instance="box")
    crowd.settle(one)
    other = crowd.newcomer(instance="box")
    other.join()
    other.member_id = other.joining.reply.member_id
    assert one.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert other.heartbeat() is ErrorCode.NONE
    assert len(crowd.group().members) == 1


def test_an_unknown_instance_with_a_known_member_id_is_unknown() -> None:
    crowd = Crowd()
    leader, _ = two(crowd)
    leader.instance = "nobody"
    assert leader.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
