"""SyncGroup: the leader assigns, everybody learns what is theirs, once it is durable."""

from __future__ import annotations

from typing import Any

import pytest

from gapless.core.groups.group import GroupState
from gapless.wire.errors import ErrorCode
from tests.core.groups.crowd import REBALANCE_MS, SESSION_MS, Consumer, Crowd


def completing(crowd: Crowd, size: int = 2, **options: Any) -> list[Consumer]:
    """A group whose generation is fixed and not assigned yet; the leader first."""
    members = [crowd.newcomer(**options) for _ in range(size)]
    for member in members:
        member.join()
    crowd.world.advance(0)
    for member in members[:-1]:
        if member.joining.reply.generation_id != crowd.group().generation:
            member.join()
    while crowd.group().state is GroupState.PREPARING:
        for member in members:
            if member.joining.is_answered():
                member.join()
    assert members[0].leads
    for member in members:
        member.member_id = member.joining.reply.member_id
    return members


@pytest.mark.parametrize("version", range(6))
def test_each_member_gets_what_the_leader_assigned_to_it(version: int) -> None:
    """Claim A8: the leader decides, so a partition has one consumer in the group."""
    crowd = Crowd()
    leader, follower = completing(crowd)
    follower.sync(version=version)
    assert not follower.syncing.is_answered()
    leader.sync({leader.member_id: b"zero", follower.member_id: b"one"}, version=version)
    assert bytes(leader.syncing.reply.assignment) == b"zero"
    assert bytes(follower.syncing.reply.assignment) == b"one"
    if version >= 5:
        assert follower.syncing.reply.protocol_type == "consumer"
        assert follower.syncing.reply.protocol_name == "range"
    assert crowd.group().state is GroupState.STABLE


def test_in_a_stable_group_an_assignment_can_be_asked_for_again() -> None:
    crowd = Crowd()
    _, follower = crowd.stable(2)
    assert bytes(follower.sync().reply.assignment) == b"part-1"


def test_whom_the_leader_forgets_gets_nothing() -> None:
    crowd = Crowd()
    leader, follower = completing(crowd)
    follower.sync()
    leader.sync({leader.member_id: b"all"})
    assert follower.syncing.error is ErrorCode.NONE
    assert bytes(follower.syncing.reply.assignment) == b""


def test_an_assignment_is_told_only_when_it_is_durable() -> None:
    crowd = Crowd()
    leader, follower = completing(crowd)
    partition = crowd.state().shard.partition
    partition.config = crowd.world.node.settings.topic_config({"flush.messages": "1"}, {}, {})
    crowd.world.hold_flushes = True
    follower.sync()
    leader.sync({follower.member_id: b"one"})
    assert not leader.syncing.is_answered()
    assert not follower.syncing.is_answered()
    crowd.world.finish_flushes()
    assert bytes(follower.syncing.reply.assignment) == b"one"


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"generation_id": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_id": 99}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_id": "other"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_instance_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_only_the_generation_at_hand_is_synced(wrong: dict[str, Any], error: ErrorCode) -> None:
    crowd = Crowd()
    (leader,) = completing(crowd, 1)
    assert leader.sync({}, **wrong).error is error
    assert crowd.group().state is GroupState.COMPLETING


def test_when_others_join_meanwhile_a_sync_is_called_off() -> None:
    crowd = Crowd()
    leader, follower = completing(crowd)
    follower.sync()
    newcomer = crowd.newcomer()
    newcomer.join()
    assert follower.syncing.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert leader.sync({}).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert follower.sync().error is ErrorCode.REBALANCE_IN_PROGRESS


def test_who_does_not_sync_in_time_is_out() -> None:
    crowd = Crowd()
    leader, silent = completing(crowd)
    leader.sync({leader.member_id: b"zero", silent.member_id: b"one"})
    for _ in range(REBALANCE_MS // 5000):
        assert silent.heartbeat() is ErrorCode.NONE
        assert leader.heartbeat() is ErrorCode.NONE
        crowd.world.advance(5000)
    assert leader.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert list(crowd.group().members) == [leader.member_id]
    assert silent.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_never_assigns_is_replaced() -> None:
    crowd = Crowd()
    leader, follower = completing(crowd)
    follower.sync()
    for _ in range(REBALANCE_MS // 5000):
        assert leader.heartbeat() is ErrorCode.NONE
        crowd.world.advance(5000)
    assert follower.syncing.error is ErrorCode.REBALANCE_IN_PROGRESS
    follower.join()
    assert follower.leads


def test_a_leader_that_dies_before_it_assigns_is_replaced() -> None:
    crowd = Crowd()
    leader, follower = completing(crowd)
    follower.sync()
    crowd.world.disconnect(leader.connection)
    crowd.world.advance(SESSION_MS)
    assert follower.syncing.error is ErrorCode.REBALANCE_IN_PROGRESS
    follower.join()
    assert follower.leads
    assert leader.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_sync_on_a_new_connection_replaces_the_one_before() -> None:
    crowd = Crowd()
    leader, follower = completing(crowd)
    first = follower.sync()
    follower.connection += 1000
    second = follower.sync()
    assert first.error is ErrorCode.REBALANCE_IN_PROGRESS
    leader.sync({follower.member_id: b"mine"})
    assert bytes(second.reply.assignment) == b"mine"


def test_a_generation_too_large_to_be_stored_is_refused() -> None:
    """As Kafka does: one record per group, and a bound on records."""
    crowd = Crowd(message_max_bytes="10000")
    leader, follower = completing(crowd)
    follower.sync()
    leader.sync({leader.member_id: b"x" * 10_000})
    assert leader.syncing.error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert follower.syncing.error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert crowd.group().state is GroupState.PREPARING


def test_when_the_disk_fails_nobody_is_told_an_assignment() -> None:
    crowd = Crowd()
    leader, follower = completing(crowd)
    follower.sync()
    crowd.state().shard.partition.offline = "broken"
    assert leader.sync({}).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert leader.heartbeat() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not follower.syncing.is_answered()
    crowd.world.advance(10 * REBALANCE_MS)  # the clocks run on, and nothing breaks
    assert follower.syncing.error in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_MEMBER_ID)
