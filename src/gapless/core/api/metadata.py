"""Metadata and DescribeTopicPartitions: which topics there are, and who leads their partitions.

Metadata version notes: 0 takes an empty list for all topics, later ones null; 4 may forbid automatic
creation; 10 knows topic ids, 12 asks by them; 13 can answer with a top-level error. A topic that is created
on demand is answered once it exists, so clients need no second try.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from gapless.core.api.cluster import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS, controller_id
from gapless.core.api.registry import handles
from gapless.core.api.topics import Plan, TopicError, check_topic_name, new_topic_records
from gapless.core.changes import Decision
from gapless.core.contract import Request
from gapless.core.coordinators import INTERNAL_TOPICS
from gapless.core.image import Topic
from gapless.core.records import MetadataRecord, PartitionChanged
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
)

if TYPE_CHECKING:
    from gapless.core.node import Node

NO_ID = UUID(int=0)
TopicAnswer = MetadataResponse.MetadataResponseTopic


@handles(ApiKey.METADATA, 0, 13)
def metadata(node: Node, request: Request) -> Any | None:
    """Describe the topics asked for, creating missing ones where both sides allow it."""
    body: MetadataRequest = request.body
    missing = _missing_topics(node, request)
    if (
        not missing
        or not body.allow_auto_topic_creation
        or not node.settings.get("auto.create.topics.enable")
    ):
        return node.membership.departures.answer_when_settled(request, lambda: _describe(node, request))

    def decide() -> Decision:
        records: list[MetadataRecord] = []
        plan = Plan(node)
        for name in missing:
            try:
                records += new_topic_records(node, plan, name, -1, -1, {}, {})
            except TopicError:
                continue  # it stays unknown, and is answered as such; or somebody else has just made it
        return Decision(records, lambda: _describe(node, request))

    node.change(request, decide, failed=lambda _reason: _describe(node, request))
    return None


def _wants_all(request: Request) -> bool:
    topics = request.body.topics
    return topics is None or (request.header.api_version == 0 and not topics)


def _missing_topics(node: Node, request: Request) -> list[str]:
    if _wants_all(request):
        return []
    names = dict.fromkeys(topic.name for topic in request.body.topics if topic.name is not None)
    return [name for name in names if name not in node.image.topics and _name_error(name) is None]


def _name_error(name: str) -> TopicError | None:
    try:
        check_topic_name(name)
    except TopicError as error:
        return error
    return None


def _describe(node: Node, request: Request) -> MetadataResponse:
    body: MetadataRequest = request.body
    operations = TOPIC_OPERATIONS if body.include_topic_authorized_operations else NOT_ASKED
    if _wants_all(request):
        topics = [_describe_topic(node, topic, operations) for topic in node.image.topics.values()]
    else:
        wanted = dict.fromkeys((asked.name, asked.topic_id) for asked in body.topics or [])
        topics = [_find_topic(node, name, topic_id, operations) for name, topic_id in wanted]
    return MetadataResponse(
        throttle_time_ms=0,
        brokers=[
            MetadataResponse.MetadataResponseBroker(
                node_id=broker.node_id, host=broker.host, port=broker.port, rack=None
            )
            for broker in node.membership.departures.listed()
        ],
        cluster_id=node.cluster_id,
        controller_id=controller_id(node),
        topics=topics,
        authorized_operations=CLUSTER_OPERATIONS if body.include_cluster_authorized_operations else NOT_ASKED,
        error_code=0,
    )


def _find_topic(node: Node, name: str | None, topic_id: UUID | None, operations: set[int]) -> TopicAnswer:
    topic = node.topic(name, topic_id)
    if topic is not None:
        return _describe_topic(node, topic, operations)
    if name is None:
        error = ErrorCode.UNKNOWN_TOPIC_ID
    elif _name_error(name) is not None:
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
    else:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return TopicAnswer(
        error_code=int(error),
        name=name,
        topic_id=topic_id or NO_ID,
        is_internal=False,
        partitions=[],
        authorized_operations=operations,
    )


def _describe_topic(node: Node, topic: Topic, operations: set[int]) -> TopicAnswer:
    return TopicAnswer(
        error_code=0,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            TopicAnswer.MetadataResponsePartition(
                error_code=int(_partition_error(node, topic, partition)),
                partition_index=partition.partition,
                leader_id=_leader(node, topic, partition),
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                offline_replicas=_offline(node, topic, partition),
            )
            for partition in topic.partitions
        ],
        authorized_operations=operations,
    )


def _failed(node: Node, topic: Topic, partition: PartitionChanged) -> bool:
    return (topic.name, partition.partition) in node.failed_partitions


def _leader(node: Node, topic: Topic, partition: PartitionChanged) -> int:
    """Who leads; nobody if that is this broker and it cannot open the log."""
    return -1 if partition.leader == node.node_id and _failed(node, topic, partition) else partition.leader


def _partition_error(node: Node, topic: Topic, partition: PartitionChanged) -> ErrorCode:
    has_leader = _leader(node, topic, partition) != -1
    return ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE


def _offline(node: Node, topic: Topic, partition: PartitionChanged) -> list[int]:
    """The replicas whose broker is gone, and this broker's if it cannot be written to."""
    replica = node.partitions.get((topic.name, partition.partition))
    down = _failed(node, topic, partition) or (replica is not None and replica.offline is not None)
    return [
        node_id
        for node_id in partition.replicas
        if not node.image.is_live(node_id) or (down and node_id == node.node_id)
    ]


@handles(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0)
def describe_topic_partitions(node: Node, request: Request) -> DescribeTopicPartitionsResponse:
    """Topics in name order, a bounded number of partitions at a time; a cursor tells where to go on."""
    body: DescribeTopicPartitionsRequest = request.body
    names = sorted({topic.name for topic in body.topics}) if body.topics else sorted(node.image.topics)
    first_partition = 0
    if body.cursor is not None:
        names = [name for name in names if name >= body.cursor.topic_name]
        if names and names[0] == body.cursor.topic_name:
            first_partition = max(0, body.cursor.partition_index)
    room = max(1, min(body.response_partition_limit, node.settings.get("max.request.partition.size.limit")))
    answers = []
    cursor = None
    for name in names:
        if room <= 0:
            cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=0)
            break
        answer = _describe_partitions(node, name, first_partition, room)
        answers.append(answer)
        room -= len(answer.partitions)
        end = first_partition + len(answer.partitions)
        topic = node.image.topics.get(name)
        if topic is not None and end < len(topic.partitions):
            cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=end)
            break
        first_partition = 0
    return DescribeTopicPartitionsResponse(throttle_time_ms=0, topics=answers, next_cursor=cursor)


def _bits(operations: set[int]) -> int:
    """Operations as this one message has them: a signed field of 32 bits."""
    return sum(1 << operation for operation in operations if operation != 31) - (31 in operations) * 2**31


def _describe_partitions(
    node: Node, name: str, first: int, room: int
) -> DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic:
    answer_type = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
    topic = node.image.topics.get(name)
    if topic is None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if _name_error(name) is not None:
            error = ErrorCode.INVALID_TOPIC_EXCEPTION
        return answer_type(
            error_code=int(error),
            name=name,
            topic_id=NO_ID,
            is_internal=False,
            partitions=[],
            topic_authorized_operations=_bits(NOT_ASKED),
        )
    return answer_type(
        error_code=0,
        name=name,
        topic_id=topic.topic_id,
        is_internal=name in INTERNAL_TOPICS,
        partitions=[
            answer_type.DescribeTopicPartitionsResponsePartition(
                error_code=int(_partition_error(node, topic, partition)),
                partition_index=partition.partition,
                leader_id=_leader(node, topic, partition),
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                eligible_leader_replicas=list(partition.eligible),
                last_known_elr=[] if partition.last_leader == -1 else [partition.last_leader],
                offline_replicas=_offline(node, topic, partition),
            )
            for partition in topic.partitions[first : first + room]
        ],
        topic_authorized_operations=_bits(TOPIC_OPERATIONS),
    )
