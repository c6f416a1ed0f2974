"""AlterPartitionReassignments and ListPartitionReassignments: partitions move to other brokers.

Null replicas cancel. A reassignment that finds all its replicas in sync is over at once, else when the last
one has caught up. Version 1 of Alter may forbid another number of replicas.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gapless.core.api.refusals import Refusal
from gapless.core.api.registry import handles
from gapless.core.changes import Decision
from gapless.core.contract import Request
from gapless.core.image import Topic
from gapless.core.membership.reassignment import begin, cancel, is_moving
from gapless.core.records import MetadataRecord, PartitionChanged
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

if TYPE_CHECKING:
    from gapless.core.node import Node

TopicAnswer = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
Answer = TopicAnswer.ReassignablePartitionResponse
OngoingTopic = ListPartitionReassignmentsResponse.OngoingTopicReassignment
Ongoing = OngoingTopic.OngoingPartitionReassignment


@handles(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1)
def alter_partition_reassignments(node: Node, request: Request) -> None:
    """Begin, change or cancel; each partition has its own verdict."""
    body: AlterPartitionReassignmentsRequest = request.body
    may_resize = request.header.api_version == 0 or body.allow_replication_factor_change
    asked = {
        (topic.name, partition.partition_index): partition.replicas
        for topic in body.topics
        for partition in topic.partitions
    }

    def response(error: ErrorCode, message: str | None, topics: list[TopicAnswer]) -> object:
        return AlterPartitionReassignmentsResponse(
            throttle_time_ms=0,
            allow_replication_factor_change=may_resize,
            error_code=int(error),
            error_message=message,
            responses=topics,
        )

    def decide() -> Decision:
        records: list[MetadataRecord] = []
        topics: dict[str, TopicAnswer] = {}
        for (name, index), replicas in asked.items():
            try:
                record = _reassigned(node, name, index, replicas, may_resize)
                records.extend([record] if record is not None else [])
                answer = Answer(partition_index=index, error_code=0, error_message=None)
            except Refusal as error:
                answer = Answer(partition_index=index, error_code=int(error.code), error_message=str(error))
            topics.setdefault(name, TopicAnswer(name=name, partitions=[])).partitions.append(answer)
        return Decision(records, lambda: response(ErrorCode.NONE, None, list(topics.values())))

    node.change(request, decide, lambda reason: response(ErrorCode.UNKNOWN_SERVER_ERROR, reason, []))


def _reassigned(
    node: Node, name: str, index: int, replicas: Sequence[int] | None, may_resize: bool
) -> PartitionChanged | None:
    """What to write for one partition; raises `Refusal`."""
    topic = node.image.topics.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {name}-{index}.")
    partition = topic.partitions[index]
    policy = node.membership.policy(name)
    if replicas is not None:
        _check(node, partition, replicas, may_resize)
        return begin(partition, tuple(replicas), node.image.is_live, policy)
    if not is_moving(partition):
        raise Refusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{name}-{index} is not being reassigned.")
    record = cancel(partition, node.image.is_live, policy)
    if record is None:
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{name}-{index} cannot go back: none of its former replicas could lead it.",
        )
    return record


def _check(node: Node, partition: PartitionChanged, replicas: Sequence[int], may_resize: bool) -> None:
    unknown = [node_id for node_id in replicas if node_id not in node.image.brokers]
    if not replicas or unknown or len(set(replicas)) != len(replicas):
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The replicas {list(replicas)} must be registered brokers, each once and at least one.",
        )
    size = len(partition.replicas) - len(partition.adding)
    if not may_resize and len(replicas) != size:
        raise Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"There are {size} replicas and {len(replicas)} are asked for, but their number must not change.",
        )


@handles(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0)
def list_partition_reassignments(node: Node, request: Request) -> ListPartitionReassignmentsResponse:
    """All that moves, or what moves of the partitions named."""
    body: ListPartitionReassignmentsRequest = request.body
    wanted = None if body.topics is None else {topic.name: topic.partition_indexes for topic in body.topics}
    answers = []
    for topic in node.image.topics.values():
        moving = list(_moving(topic, None if wanted is None else wanted.get(topic.name, [])))
        if moving:
            answers.append(OngoingTopic(name=topic.name, partitions=moving))
    return ListPartitionReassignmentsResponse(
        throttle_time_ms=0, error_code=0, error_message=None, topics=answers
    )


def _moving(topic: Topic, wanted: Sequence[int] | None) -> Iterator[Ongoing]:
    for partition in topic.partitions:
        if is_moving(partition) and (wanted is None or partition.partition in wanted):
            yield Ongoing(
                partition_index=partition.partition,
                replicas=list(partition.replicas),
                adding_replicas=list(partition.adding),
                removing_replicas=list(partition.removing),
            )
