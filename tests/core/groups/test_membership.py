"""Heartbeat and LeaveGroup: who is alive, and what becomes of the group when somebody is not."""

from __future__ import annotations

import pytest

from gapless.core.groups.group import GroupState
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import LeaveGroupRequest
from tests.core.groups.crowd import SESSION_MS, Crowd


@pytest.mark.parametrize("version", range(5))
def test_heartbeats_keep_a_member(version: int) -> None:
    crowd = Crowd()
    (member,) = crowd.stable(1)
    for _ in range(10):
        crowd.world.advance(SESSION_MS - 1)
        assert member.heartbeat(version=version) is ErrorCode.NONE
    assert crowd.group().state is GroupState.STABLE


def test_a_silent_member_is_dropped_when_its_session_ends() -> None:
    crowd = Crowd()
    alive, silent = crowd.stable(2)
    crowd.world.advance(SESSION_MS - 1)
    assert alive.heartbeat() is ErrorCode.NONE
    crowd.world.advance(1)
    assert alive.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert silent.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    alive.join()
    assert alive.leads
    assert len(alive.joining.reply.members) == 1


def test_commits_keep_a_member_too() -> None:
    crowd = Crowd()
    crowd.world.create_topic("t")
    (member,) = crowd.stable(1)
    for offset in range(5):
        crowd.world.advance(SESSION_MS - 1)
        assert member.commit(offset) is ErrorCode.NONE


def test_when_the_last_member_is_gone_the_group_is_empty_and_a_generation_older() -> None:
    crowd = Crowd()
    (member,) = crowd.stable(1)
    crowd.world.advance(SESSION_MS)
    group = crowd.group()
    assert (group.state, group.generation, group.protocol, group.leader) == (GroupState.EMPTY, 2, None, None)
    assert group.protocol_type == "consumer"
    assert member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("generation", "error"), [(0, ErrorCode.ILLEGAL_GENERATION), (2, ErrorCode.ILLEGAL_GENERATION)]
)
def test_a_heartbeat_of_another_generation_is_refused(generation: int, error: ErrorCode) -> None:
    crowd = Crowd()
    (member,) = crowd.stable(1)
    assert member.heartbeat(generation=generation) is error


def test_heartbeats_to_an_unknown_group_come_from_strangers() -> None:
    crowd = Crowd()
    (member,) = crowd.stable(1)
    member.group = "other"
    assert member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    member.group = ""
    assert member.heartbeat() is ErrorCode.INVALID_GROUP_ID


# ------------------------------------------------------------------------------------------------- leave


@pytest.mark.parametrize("version", range(6))
def test_who_leaves_makes_the_others_rebalance_at_once(version: int) -> None:
    crowd = Crowd()
    leader, follower = crowd.stable(2)
    assert leader.leave(version=version) is ErrorCode.NONE
    assert leader.leave(version=version) is ErrorCode.UNKNOWN_MEMBER_ID
    assert follower.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    follower.join()
    assert follower.leads


@pytest.mark.parametrize("version", [0, 3, 5])
def test_nobody_leaves_a_group_that_is_not_there(version: int) -> None:
    crowd = Crowd()
    member = crowd.newcomer("nowhere")
    member.member_id = "me"
    assert member.leave(version=version) is ErrorCode.UNKNOWN_MEMBER_ID


def test_leaving_ends_waiting() -> None:
    crowd = Crowd()
    (member,) = crowd.stable(1)
    newcomer = crowd.newcomer()
    newcomer.join()
    assert newcomer.leave() is ErrorCode.NONE
    assert newcomer.joining.error is ErrorCode.UNKNOWN_MEMBER_ID
    member.join()
    assert member.joining.is_answered()


def test_an_id_that_was_given_can_be_given_back() -> None:
    crowd = Crowd()
    (member,) = crowd.stable(1)
    newcomer = crowd.newcomer()
    newcomer.member_id = newcomer.send_join().reply.member_id
    assert newcomer.leave() is ErrorCode.NONE
    assert not crowd.group().pending_joins
    assert member.heartbeat() is ErrorCode.NONE, "the members need not rebalance for it"


def test_an_administrator_removes_many_static_members_with_one_rebalance() -> None:
    crowd = Crowd()
    members = [crowd.newcomer(instance=f"box-{number}") for number in range(4)]
    crowd.settle(*members)
    generation = crowd.group().generation
    leaving = [
        LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id=name)
        for name in ("box-1", "box-3", "box-9")
    ]
    body = LeaveGroupRequest(group_id="g", members=leaving)
    reply = crowd.ask(ApiKey.LEAVE_GROUP, 4, body).reply
    codes = [ErrorCode(member.error_code) for member in reply.members]
    assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert [member.group_instance_id for member in reply.members] == ["box-1", "box-3", "box-9"]
    for member in (members[0], members[2]):
        member.join()
    assert members[0].generation == members[2].generation == generation + 1
    assert list(crowd.group().static_ids) == ["box-0", "box-2"]
