"""ListOffsets: the offset at the beginning, at the end, at a time, or of the newest record.

Version notes: 2 knows isolation, 4 leader epochs, 7 the newest timestamp, 8 the earliest local and 9 the last
tiered offset (everything is local here), 10 a timeout, 11 the earliest offset still to be tiered.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gapless.core.api.registry import handles
from gapless.core.contract import Request
from gapless.core.log import LogFailed, TimedOffset
from gapless.core.partition import Partition
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import ListOffsetsRequest, ListOffsetsResponse

if TYPE_CHECKING:
    from gapless.core.node import Node

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = (
    -1,
    -2,
    -3,
    -4,
    -5,
    -6,
)
NOT_FOUND = TimedOffset(-1, -1, -1)
DEBUGGING_REPLICA = -2

PartitionAsked = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition
PartitionAnswer = ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse


@handles(ApiKey.LIST_OFFSETS, 1, 11)
def list_offsets(node: Node, request: Request) -> ListOffsetsResponse:
    """One offset per partition asked for."""
    body: ListOffsetsRequest = request.body
    mentions = Counter(
        (topic.name, asked.partition_index) for topic in body.topics for asked in topic.partitions
    )

    def answer(topic: str, asked: PartitionAsked) -> PartitionAnswer:
        if mentions[topic, asked.partition_index] > 1:
            return _result(asked.partition_index, ErrorCode.INVALID_REQUEST, NOT_FOUND)
        if body.replica_id == DEBUGGING_REPLICA:
            return _end_of_replica(node, topic, asked)
        return _answer(node, topic, asked, body.isolation_level == 1)

    return ListOffsetsResponse(
        throttle_time_ms=0,
        topics=[
            ListOffsetsResponse.ListOffsetsTopicResponse(
                name=topic.name, partitions=[answer(topic.name, asked) for asked in topic.partitions]
            )
            for topic in body.topics
        ],
    )


def _answer(node: Node, topic: str, asked: PartitionAsked, committed: bool) -> PartitionAnswer:
    index = asked.partition_index
    partition = node.partitions.get((topic, index))
    if partition is None:
        return _result(index, node.absence(topic, index), NOT_FOUND)
    error = partition.leadership_error(asked.current_leader_epoch)
    if error:
        return _result(index, error, NOT_FOUND)
    try:
        found = _find(partition, asked.timestamp, committed)
        if partition.high_watermark < partition.epoch_start and _needs_the_end(asked.timestamp, found):
            # A new leader does not know yet how far its predecessor had come (KIP-207).
            return _result(index, ErrorCode.OFFSET_NOT_AVAILABLE, NOT_FOUND)
        return _result(index, ErrorCode.NONE, found)
    except LogFailed as failure:
        partition.damage = str(failure)
        return _result(index, ErrorCode.KAFKA_STORAGE_ERROR, NOT_FOUND)


def _end_of_replica(node: Node, topic: str, asked: PartitionAsked) -> PartitionAnswer:
    """Where this replica's log ends, whoever leads: tools look at followers this way."""
    index = asked.partition_index
    partition = node.partitions.get((topic, index))
    if partition is None:
        return _result(index, node.absence(topic, index), NOT_FOUND)
    if asked.timestamp != LATEST:
        return _result(index, ErrorCode.INVALID_REQUEST, NOT_FOUND)
    end = TimedOffset(-1, partition.log.end_offset, partition.leader_epoch)
    return _result(index, ErrorCode.NONE, end)


def _needs_the_end(timestamp_ms: int, found: TimedOffset) -> bool:
    """Whether an answer may change, or go back, when the end of what is committed becomes known."""
    return timestamp_ms in (LATEST, MAX_TIMESTAMP) or (timestamp_ms >= 0 and found is NOT_FOUND)


def _find(partition: Partition, timestamp_ms: int, committed: bool) -> TimedOffset:
    end = partition.last_stable_offset if committed else partition.high_watermark
    start = partition.log.start_offset
    if timestamp_ms == LATEST:
        return TimedOffset(-1, end, partition.leader_epoch)
    if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
        first = next(iter(partition.log.batches_from(start)), None)
        return TimedOffset(-1, start, partition.leader_epoch if first is None else first.leader_epoch)
    if timestamp_ms in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return NOT_FOUND
    if timestamp_ms == MAX_TIMESTAMP:
        return partition.log.latest_timestamp(end) or NOT_FOUND
    return partition.log.offset_at_time(timestamp_ms, end) or NOT_FOUND


def _result(partition: int, error: ErrorCode, found: TimedOffset) -> PartitionAnswer:
    return PartitionAnswer(
        partition_index=partition,
        error_code=int(error),
        timestamp=found.timestamp_ms,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
    )
