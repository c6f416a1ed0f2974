"""Markers: the word in each partition of a transaction that it was committed or aborted.

`write_marker` is the side of a partition's leader. `send_markers` is the coordinator's: it finds each leader
and gives it its markers, another broker by one WriteTxnMarkers request for all that it leads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from gapless.core.contract import TopicPartition
from gapless.core.producers import RefusedBatch
from gapless.core.transactions.transaction import EACH_WITH_ITS_EPOCH
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from gapless.wire.transaction_records import EndMarker

if TYPE_CHECKING:
    from gapless.core.node import Node
    from gapless.core.partition import Partition


WRITE_TXN_MARKERS_VERSION = 2
ANSWER_WITHIN_MS = 3000
"""A leader that stays silent for longer has probably lost its partitions: the next try asks the new one."""


class Ending(NamedTuple):
    """What a coordinator tells partitions of a transaction's end."""

    producer: tuple[int, int]
    committed: bool
    coordinator_epoch: int
    transaction_version: int = 0


def send_markers(
    node: Node,
    ending: Ending,
    partitions: Iterable[TopicPartition],
    then: Callable[[TopicPartition, ErrorCode], None],
) -> None:
    """Let every partition's leader write the marker; `then` hears of each when committed, or why not."""
    elsewhere: dict[int, list[TopicPartition]] = {}
    for name in partitions:
        topic = node.image.topics.get(name.topic)
        if topic is None or name.partition >= len(topic.partitions):
            then(name, ErrorCode.NONE)  # deleted meanwhile: nobody will read it
            continue
        leader = topic.partitions[name.partition].leader
        if leader == node.node_id:
            write_marker(node, name, ending, lambda error, name=name: then(name, error))  # type: ignore[misc]
        elif leader < 0:
            then(name, ErrorCode.LEADER_NOT_AVAILABLE)
        else:
            elsewhere.setdefault(leader, []).append(name)
    for leader, names in elsewhere.items():
        _send_elsewhere(node, leader, ending, names, then)


def _send_elsewhere(
    node: Node,
    leader: int,
    ending: Ending,
    names: list[TopicPartition],
    then: Callable[[TopicPartition, ErrorCode], None],
) -> None:
    def answered(response: WriteTxnMarkersResponse | None) -> None:
        errors = dict.fromkeys(names, ErrorCode.REQUEST_TIMED_OUT)
        for result in [] if response is None else response.markers:
            for topic in result.topics:
                for part in topic.partitions:
                    errors[TopicPartition(topic.name, part.partition_index)] = ErrorCode(part.error_code)
        for name in names:
            then(name, errors[name])

    to = leader, int(ApiKey.WRITE_TXN_MARKERS), WRITE_TXN_MARKERS_VERSION
    node.call(to, _markers_request(ending, names), ANSWER_WITHIN_MS, answered)


def _markers_request(ending: Ending, names: list[TopicPartition]) -> WriteTxnMarkersRequest:
    producer_id, producer_epoch = ending.producer
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    topics: dict[str, list[int]] = {}
    for topic, partition in names:
        topics.setdefault(topic, []).append(partition)
    return WriteTxnMarkersRequest(
        markers=[
            marker(
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transaction_result=ending.committed,
                topics=[
                    marker.WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
                    for topic, indexes in topics.items()
                ],
                coordinator_epoch=ending.coordinator_epoch,
                transaction_version=ending.transaction_version,
            )
        ]
    )


def write_marker(node: Node, name: TopicPartition, ending: Ending, then: Callable[[ErrorCode], None]) -> None:
    """Write a marker into a partition that is led here, and go on when it is committed."""
    partition = node.partitions.get(name)
    if partition is None:
        then(node.absence(*name))
        return
    marker = EndMarker(ending.committed, ending.coordinator_epoch)
    strict = ending.transaction_version >= EACH_WITH_ITS_EPOCH
    shard = node.shards.get(name)
    try:
        if shard is None:
            partition.append_marker(ending.producer, marker, node.now_ms, strict=strict)
        elif shard.ready:
            shard.write_marker(ending.producer, marker, strict=strict)
        else:
            raise RefusedBatch(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition's records are still being read"
            )
    except RefusedBatch as refusal:
        then(refusal.code)
        return
    node.touch(partition)
    node.flush_later(partition)
    _when_committed(node, partition, then)


def _when_committed(node: Node, partition: Partition, then: Callable[[ErrorCode], None]) -> None:
    end_offset = partition.log.end_offset
    leader_epoch = partition.leader_epoch

    def look() -> bool:
        if partition.leader_epoch != leader_epoch or node.partitions.get(partition.name) is not partition:
            then(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif partition.high_watermark >= end_offset:
            then(ErrorCode.NONE)
        elif partition.offline is not None:
            then(ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            return False
        return True

    node.watches.add(partition.name, look)
