"""DescribeLogDirs: how much each partition takes on this broker's disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.core.api.registry import handles
from gapless.core.contract import Request
from gapless.core.log import LogFailed
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import DescribeLogDirsRequest, DescribeLogDirsResponse

if TYPE_CHECKING:
    from gapless.core.node import Node

DirAnswer = DescribeLogDirsResponse.DescribeLogDirsResult
TopicAnswer = DirAnswer.DescribeLogDirsTopic


@handles(ApiKey.DESCRIBE_LOG_DIRS, 1, 5)
def describe_log_dirs(node: Node, request: Request) -> DescribeLogDirsResponse:
    """The one folder of this broker, with the partitions asked for (null: all)."""
    body: DescribeLogDirsRequest = request.body
    wanted = None if body.topics is None else {topic.topic: set(topic.partitions) for topic in body.topics}
    topics: dict[str, TopicAnswer] = {}
    for partition in node.partitions.values():
        name, index = partition.name
        if wanted is not None and index not in wanted.get(name, ()):
            continue
        topic = topics.setdefault(name, TopicAnswer(name=name, partitions=[]))
        topic.partitions.append(
            TopicAnswer.DescribeLogDirsPartition(
                partition_index=index,
                partition_size=partition.log.size_bytes,
                offset_lag=max(0, partition.high_watermark - partition.log.end_offset),
                is_future_key=False,
            )
        )
    error, total, usable = ErrorCode.NONE, -1, -1
    try:
        total, usable = node.store.space()
    except LogFailed:
        error = ErrorCode.KAFKA_STORAGE_ERROR
    folder = DirAnswer(
        error_code=int(error),
        log_dir=node.store.location,
        topics=list(topics.values()),
        total_bytes=total,
        usable_bytes=usable,
        is_cordoned=False,
    )
    return DescribeLogDirsResponse(throttle_time_ms=0, error_code=0, results=[folder])
