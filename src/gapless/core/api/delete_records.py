"""DeleteRecords: drop everything below an offset; -1 means below the high watermark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.core.api.registry import handles
from gapless.core.contract import Request
from gapless.core.log import LogFailed
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import DeleteRecordsRequest, DeleteRecordsResponse

if TYPE_CHECKING:
    from gapless.core.node import Node

TopicAnswer = DeleteRecordsResponse.DeleteRecordsTopicResult


@handles(ApiKey.DELETE_RECORDS, 0, 2)
def delete_records(node: Node, request: Request) -> DeleteRecordsResponse:
    """Advance the start of each log; only what is below the high watermark can go."""
    body: DeleteRecordsRequest = request.body
    wanted: dict[str, dict[int, int]] = {}
    for topic in body.topics:
        # As in Kafka the last word counts, if a partition is named more than once.
        wanted.setdefault(topic.name, {}).update(
            (asked.partition_index, asked.offset) for asked in topic.partitions
        )
    return DeleteRecordsResponse(
        throttle_time_ms=0,
        topics=[
            TopicAnswer(
                name=name,
                partitions=[_answer(node, name, index, offset) for index, offset in offsets.items()],
            )
            for name, offsets in wanted.items()
        ],
    )


def _answer(node: Node, topic: str, index: int, offset: int) -> TopicAnswer.DeleteRecordsPartitionResult:
    error, low_watermark = _delete(node, topic, index, offset)
    return TopicAnswer.DeleteRecordsPartitionResult(
        partition_index=index, low_watermark=low_watermark, error_code=int(error)
    )


def _delete(node: Node, topic: str, index: int, offset: int) -> tuple[ErrorCode, int]:
    partition = node.partitions.get((topic, index))
    if partition is None:
        return node.absence(topic, index), -1
    error = partition.leadership_error(-1)
    if error:
        return error, -1
    if "delete" not in partition.config.cleanup_policy:
        return ErrorCode.POLICY_VIOLATION, -1
    target = partition.high_watermark if offset == -1 else offset
    if target < 0 or target > partition.high_watermark:
        return ErrorCode.OFFSET_OUT_OF_RANGE, -1
    try:
        if target > partition.log.start_offset:
            partition.delete_records(target)
            node.touch(partition)
    except LogFailed:
        return ErrorCode.KAFKA_STORAGE_ERROR, -1
    return ErrorCode.NONE, partition.log.start_offset
