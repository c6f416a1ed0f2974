"""OffsetForLeaderEpoch: where a leader epoch ended, so that a reader can tell whether its log was cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.core.api.registry import handles
from gapless.core.contract import Request
from gapless.wire.apis import ApiKey
from gapless.wire.messages import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse

if TYPE_CHECKING:
    from gapless.core.node import Node

TopicAnswer = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
PartitionAsked = OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition


@handles(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4)
def offset_for_leader_epoch(node: Node, request: Request) -> OffsetForLeaderEpochResponse:
    """For each partition, the largest epoch not above the one asked for, and its end."""
    body: OffsetForLeaderEpochRequest = request.body
    return OffsetForLeaderEpochResponse(
        throttle_time_ms=0,
        topics=[
            TopicAnswer(
                topic=topic.topic,
                partitions=[_answer(node, topic.topic, asked) for asked in topic.partitions],
            )
            for topic in body.topics
        ],
    )


def _answer(node: Node, topic: str, asked: PartitionAsked) -> TopicAnswer.EpochEndOffset:
    partition = node.partitions.get((topic, asked.partition))
    if partition is None:
        error = node.absence(topic, asked.partition)
    else:
        error = partition.leadership_error(asked.current_leader_epoch)
    epoch, end_offset = -1, -1
    if partition is not None and not error:
        epoch, end_offset = partition.end_of_epoch(asked.leader_epoch)
    return TopicAnswer.EpochEndOffset(
        error_code=int(error), partition=asked.partition, leader_epoch=epoch, end_offset=end_offset
    )
