"""Helpers for tests of replication: followers that stop, fetches by hand, what a log holds."""

from __future__ import annotations

from typing import Any

from gapless.storage.memory import MemoryLog
from gapless.wire.apis import ApiKey
from gapless.wire.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from gapless.wire.messages import ListOffsetsRequest
from tests.core.cluster_harness import ClusterWorld

TIMES: dict[str, Any] = {"replica_lag_time_max_ms": "2000", "broker_session_timeout_ms": "60000"}


def cluster(brokers: int = 3, **configs: Any) -> ClusterWorld:
    """A cluster with one topic "t" on all brokers, led by the first."""
    world = ClusterWorld(brokers, **TIMES)
    world.create_topic("t", replicas=tuple(range(1, brokers + 1)), **configs)
    world.run(20)
    return world


def stall(world: ClusterWorld, *followers: int) -> None:
    """These followers' fetches are lost from now on; all others are not."""

    def is_lost(source: int, target: int, message: Any) -> bool:
        if isinstance(message, FetchResponse):
            return target in followers
        return source in followers and isinstance(message, FetchRequest)

    world.network.lost = is_lost


def break_disk(world: ClusterWorld, node_id: int, topic: str = "t") -> None:
    """From now on a replica's log takes nothing more; what it has can be read."""
    log = world.partition(node_id, topic).log
    assert isinstance(log, MemoryLog)
    log.failure = "the disk is broken"


def has_broken_disk(world: ClusterWorld, node_id: int) -> bool:
    log = world.partition(node_id).log
    return isinstance(log, MemoryLog) and log.failure is not None


def replica_fetch(world: ClusterWorld, leader: int, replica: int, offset: int = 0, **more: Any) -> Any:
    """A follower's fetch by hand; the partition's result."""
    epoch = world.node(leader).image.brokers[replica].epoch if replica in world.hosts else 0
    wish = FetchPartition(
        0,
        more.pop("leader_epoch", world.assignment().leader_epoch),
        offset,
        more.pop("last_epoch", -1),
        0,
        1 << 20,
    )
    body = FetchRequest(
        replica_id=replica,
        replica_epoch=more.pop("replica_epoch", epoch),
        session_epoch=-1,
        topics=[FetchTopic(None, world.assignment().topic_id, [wish])],
        **more,
    )
    return world.send(leader, ApiKey.FETCH, 17, body).partition


def latest_offset(world: ClusterWorld, node_id: int) -> Any:
    """ListOffsets for the end; the partition's result."""
    topic = ListOffsetsRequest.ListOffsetsTopic
    partition = topic.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    body = ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=[topic(name="t", partitions=[partition])], timeout_ms=0
    )
    return world.send(node_id, ApiKey.LIST_OFFSETS, 7, body).partition


def ends(world: ClusterWorld) -> list[int]:
    return [world.partition(node_id).log.end_offset for node_id in world.hosts]
