"""A coordinator goes where its partition's leadership goes, and takes with it what it answered for."""

from __future__ import annotations

from gapless.core.coordinators import CONSUMER_OFFSETS
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import OffsetCommitRequest, OffsetFetchRequest
from tests.core.cluster_harness import Answer, ClusterWorld
from tests.core.replication.scenes import cluster, stall


def coordinated(**configs: str) -> ClusterWorld:
    world = cluster()
    world.create_topic(CONSUMER_OFFSETS, cleanup_policy="compact", **configs)  # type: ignore[arg-type]
    world.run(50)
    return world


def commit(world: ClusterWorld, node_id: int, offset: int) -> Answer:
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    partition = topic.OffsetCommitRequestPartition(
        partition_index=0,
        committed_offset=offset,
        committed_leader_epoch=-1,
        commit_timestamp=-1,
        committed_metadata="",
    )
    body = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        retention_time_ms=-1,
        topics=[topic(name="t", partitions=[partition])],
    )
    return world.send(node_id, ApiKey.OFFSET_COMMIT, 8, body)


def committed(world: ClusterWorld, node_id: int) -> tuple[int, int]:
    """The group's error, and the offset that it has committed."""
    topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
    body = OffsetFetchRequest(group_id="g", topics=[topic], require_stable=False)
    answer = world.send(node_id, ApiKey.OFFSET_FETCH, 7, body).message
    offset = answer.topics[0].partitions[0].committed_offset if answer.topics else -1
    return answer.error_code, offset


def error_of(answer: Answer) -> int:
    code: int = answer.partition.error_code
    return code


def test_a_commit_survives_the_death_of_its_coordinator() -> None:
    world = coordinated()
    answer = commit(world, 1, 42)
    world.run(50)
    assert error_of(answer) == 0
    assert committed(world, 2)[0] == ErrorCode.NOT_COORDINATOR
    world.crash(1)
    world.run_until(lambda: world.assignment(CONSUMER_OFFSETS).leader != 1)
    world.run(50)
    leader = world.assignment(CONSUMER_OFFSETS).leader
    assert committed(world, leader) == (0, 42)


def test_a_commit_that_waits_fails_when_leadership_moves() -> None:
    world = coordinated()
    stall(world, 2, 3)
    answer = commit(world, 1, 42)
    world.run(20)
    assert not answer.done
    world.elect(2, CONSUMER_OFFSETS)
    world.run(20)
    assert error_of(answer) == ErrorCode.NOT_COORDINATOR
    assert committed(world, 1)[0] == ErrorCode.NOT_COORDINATOR
    stall(world)
    world.run(5000)
    assert committed(world, 2) == (0, -1)


def test_a_coordinator_below_the_floor_refuses_commits() -> None:
    world = coordinated(min_insync_replicas="2")
    stall(world, 2, 3)
    commit(world, 1, 1)
    world.run_until(lambda: world.assignment(CONSUMER_OFFSETS).isr == (1,))
    world.run(20)
    answer = commit(world, 1, 2)
    assert error_of(answer) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    stall(world)
    world.run_until(lambda: len(world.assignment(CONSUMER_OFFSETS).isr) == 3)
    answer = commit(world, 1, 3)
    world.run(50)
    assert error_of(answer) == 0
    assert committed(world, 1) == (0, 3)


def test_leadership_that_comes_back_is_loaded_anew() -> None:
    world = coordinated()
    commit(world, 1, 1)
    world.run(50)
    world.elect(2, CONSUMER_OFFSETS)
    world.run(50)
    answer = commit(world, 2, 2)
    world.run(50)
    assert error_of(answer) == 0
    world.elect(1, CONSUMER_OFFSETS)
    world.run(50)
    assert committed(world, 1) == (0, 2)
