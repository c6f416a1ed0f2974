"""The broker is killed in each state of a group: what was durable is back, and members go on if they can."""

from __future__ import annotations

from gapless.core.groups.group import GroupState
from gapless.core.records import PartitionChanged
from gapless.wire.errors import ErrorCode
from tests.core.groups.crowd import REBALANCE_MS, SESSION_MS, Crowd, subscription


def test_a_stable_group_goes_on_without_a_rebalance() -> None:
    crowd = Crowd()
    crowd.world.create_topic("t")
    leader, follower = crowd.stable(2)
    assert follower.commit(5) is ErrorCode.NONE
    crowd.restart()
    assert leader.heartbeat() is follower.heartbeat() is ErrorCode.NONE
    assert follower.commit(6) is ErrorCode.NONE
    assert bytes(follower.sync().reply.assignment) == b"part-1"
    group = crowd.group()
    assert (group.state, group.generation, group.leader) == (
        GroupState.STABLE,
        leader.generation,
        leader.member_id,
    )
    assert crowd.fetch(("t", 0)) == {("t", 0): 6}


def test_members_have_a_whole_session_to_come_back_after_a_restart() -> None:
    crowd = Crowd()
    back, gone = crowd.stable(2)
    crowd.world.advance(SESSION_MS - 1)
    crowd.restart()
    crowd.world.advance(SESSION_MS - 1)
    assert back.heartbeat() is ErrorCode.NONE
    crowd.world.advance(1)
    assert back.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert gone.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_empty_group_keeps_its_generation() -> None:
    crowd = Crowd()
    (member,) = crowd.stable(1)
    member.leave()
    crowd.restart()
    group = crowd.group()
    assert (group.state, group.generation, group.protocol_type) == (GroupState.EMPTY, 2, "consumer")
    again = crowd.newcomer()
    again.join()
    crowd.world.advance(0)
    assert again.generation == 3


def test_a_group_that_was_preparing_goes_back_to_its_last_generation() -> None:
    crowd = Crowd()
    (old,) = crowd.stable(1)
    new = crowd.newcomer()
    new.join()
    assert crowd.group().state is GroupState.PREPARING
    crowd.restart()
    assert crowd.group().state is GroupState.STABLE
    assert old.heartbeat() is ErrorCode.NONE
    assert new.send_join().error is ErrorCode.UNKNOWN_MEMBER_ID, "it has to begin again"
    new.member_id = ""
    new.join()
    old.join()
    assert new.joining.error is old.joining.error is ErrorCode.NONE


def test_a_group_that_was_completing_goes_back_to_its_last_generation() -> None:
    crowd = Crowd()
    old, other = crowd.stable(2)
    old.join()
    other.join()
    assert crowd.group().state is GroupState.COMPLETING
    assert old.generation == 2
    crowd.restart()
    assert crowd.group().generation == 1
    assert old.sync({}).error is ErrorCode.ILLEGAL_GENERATION
    old.join()
    other.join()
    assert old.joining.error is ErrorCode.NONE
    old.sync({old.member_id: b"zero", other.member_id: b"one"})
    assert bytes(other.sync().reply.assignment) == b"one"


def test_a_first_generation_that_was_never_assigned_leaves_an_empty_group() -> None:
    crowd = Crowd()
    member = crowd.newcomer()
    member.join()
    crowd.world.advance(0)
    crowd.restart()
    assert crowd.group().state is GroupState.EMPTY
    member.member_id = ""
    member.join()
    crowd.world.advance(0)
    assert member.joining.error is ErrorCode.NONE


def test_static_members_are_known_after_a_restart() -> None:
    crowd = Crowd()
    members = [crowd.newcomer(instance=name) for name in ("a", "b")]
    crowd.settle(*members)
    crowd.restart()
    again = crowd.newcomer(instance="b")
    again.join()
    again.member_id = again.joining.reply.member_id
    assert again.generation == members[0].generation
    assert bytes(again.sync().reply.assignment) == b"part-1"
    assert members[1].heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    crowd.restart()
    assert again.heartbeat() is ErrorCode.NONE
    assert members[1].heartbeat() is ErrorCode.FENCED_INSTANCE_ID


def test_a_group_that_has_become_too_large_is_made_smaller() -> None:
    crowd = Crowd()
    one, two = crowd.stable(2)
    crowd.world.settings["group.max.size"] = "1"
    crowd.restart()
    assert one.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    one.join()
    assert two.join().error is ErrorCode.GROUP_MAX_SIZE_REACHED
    crowd.world.advance(REBALANCE_MS)
    assert one.joining.error is ErrorCode.NONE


def test_while_groups_are_read_back_clients_are_told_to_try_again() -> None:
    crowd = Crowd()
    crowd.world.create_topic("t")
    (member,) = crowd.stable(1)
    crowd.crash()
    assert member.heartbeat() is ErrorCode.NONE, "a heartbeat has nothing to complain about"
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert member.join().error is loading
    assert member.commit(1, generation=1) is loading
    assert member.leave() is loading
    assert crowd.describe("g")[0].error_code == loading
    assert crowd.delete("g") == [loading]
    assert crowd.fetching(("t", 0)).reply.groups[0].error_code == loading
    crowd.world.advance(0)
    assert member.join().is_answered()


def test_many_commits_are_read_back_in_slices() -> None:
    crowd = Crowd()
    crowd.world.create_topic("t", partitions=4)
    for offset in range(3000):
        crowd.commit({("t", offset % 4): offset}, metadata="x" * 1000)
    assert crowd.state().shard.partition.log.end_offset == 3000
    crowd.restart()
    assert crowd.fetch(everything=True) == {("t", part): 2996 + part for part in range(4)}


def test_what_is_subscribed_to_is_known_after_a_restart() -> None:
    crowd = Crowd()
    crowd.world.create_topic("t")
    crowd.world.create_topic("u")
    crowd.commit({("t", 0): 1, ("u", 0): 2})
    crowd.stable(1, protocols={"range": subscription("t")})
    crowd.restart()
    codes = [topic.partitions[0].error_code for topic in crowd.delete_offsets(("t", 0), ("u", 0)).topics]
    assert codes == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, 0]


def test_when_leadership_goes_nobody_is_left_waiting() -> None:
    crowd = Crowd()
    member, other = crowd.stable(2)
    member.join()
    shard = crowd.state().shard
    partition = shard.partition
    index, epoch = partition.name.partition, partition.leader_epoch + 1
    crowd.world.commit_foreign([PartitionChanged(partition.topic_id, index, 5, epoch, (0, 5), (0, 5))])
    assert not shard.ready
    assert other.heartbeat() is ErrorCode.NOT_COORDINATOR
    crowd.world.advance(10 * REBALANCE_MS)  # no clock of the old shard runs on
    assert member.joining.error is ErrorCode.NOT_COORDINATOR
