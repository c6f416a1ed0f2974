"""CreateTopics, DeleteTopics, CreatePartitions: decided on the image, in force once the journal has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from gapless.core.api.configs import describe_settings
from gapless.core.api.refusals import Refusal
from gapless.core.api.registry import handles
from gapless.core.changes import Decision
from gapless.core.config_keys import TOPIC, InvalidConfig
from gapless.core.config_tables import TOPIC_KEYS
from gapless.core.contract import Request
from gapless.core.image import FLUSH_MESSAGES, FLUSHED_FIRST, Topic
from gapless.core.records import ConfigSet, MetadataRecord, PartitionChanged, TopicCreated, TopicDeleted
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

if TYPE_CHECKING:
    from gapless.core.node import Node

MAX_PARTITIONS = 10_000
"""Over all topics: each costs files and memory, and a client must not be able to ask for a billion."""
_LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
NO_ID = UUID(int=0)


class TopicError(Refusal):
    """Why a topic cannot be made or changed."""


class Plan:
    """What one request creates, all its topics together: within the limit, and no two names alike."""

    def __init__(self, node: Node) -> None:
        self._room = MAX_PARTITIONS - sum(len(topic.partitions) for topic in node.image.topics.values())
        self._names = {_folded(name): name for name in node.image.topics}

    def check_name(self, name: str) -> None:
        """Names that differ only in '.' and '_' collide; raises `TopicError`."""
        other = self._names.get(_folded(name))
        if other == name:
            raise TopicError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        if other is not None:
            raise TopicError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}"
            )

    def check_room(self, partitions: int) -> None:
        """Raises `TopicError` if there is no room for so many partitions."""
        if partitions > self._room:
            raise TopicError(
                ErrorCode.INVALID_PARTITIONS,
                f"{MAX_PARTITIONS - self._room} partitions exist and {partitions} more would exceed "
                f"the limit of {MAX_PARTITIONS}",
            )

    def add(self, name: str, partitions: int) -> None:
        """Count in what was decided."""
        self._names[_folded(name)] = name
        self._room -= partitions

    @property
    def position(self) -> int:
        """Where the next topic begins among the brokers: they take turns."""
        return MAX_PARTITIONS - self._room


def _folded(name: str) -> str:
    return name.replace(".", "_")


def check_topic_name(name: str) -> None:
    """Kafka's rule for names; raises `TopicError`."""
    if not name or name in (".", ".."):
        raise TopicError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: it can't be empty, '.' or '..'"
        )
    if len(name) > 249:
        raise TopicError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: it is longer than 249 characters"
        )
    if not _LEGAL.issuperset(name):
        raise TopicError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic name {name!r} is invalid: only letters, digits, '.', '_' and '-' are allowed",
        )


def new_topic_records(
    node: Node,
    plan: Plan,
    name: str,
    partitions: int,
    replication_factor: int,
    assignments: Mapping[int, Sequence[int]],
    configs: Mapping[str, str | None],
) -> list[MetadataRecord]:
    """The records that create a topic; raises `TopicError`."""
    check_topic_name(name)
    plan.check_name(name)
    replicas = _place(node, plan, partitions, replication_factor, assignments)
    settings = _check_configs(node, configs)
    plan.add(name, len(replicas))
    topic_id = node.new_uuid()
    records: list[MetadataRecord] = [
        TopicCreated(name, topic_id, flushed=settings.get(FLUSH_MESSAGES) == FLUSHED_FIRST)
    ]
    records += [_new_partition(node, topic_id, index, nodes) for index, nodes in enumerate(replicas)]
    records += [ConfigSet(TOPIC, name, key, value) for key, value in settings.items()]
    return records


def _check_configs(node: Node, configs: Mapping[str, str | None]) -> dict[str, str]:
    settings = {}
    for key, value in configs.items():
        if key not in TOPIC_KEYS:
            raise TopicError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {key}")
        if value is None:
            raise TopicError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {key}")
        settings[key] = value
    try:
        node.settings.topic_config(settings, *node.dynamic_configs())
    except InvalidConfig as error:
        raise TopicError(ErrorCode.INVALID_CONFIG, str(error)) from error
    return settings


def _place(
    node: Node,
    plan: Plan,
    partitions: int,
    replication_factor: int,
    assignments: Mapping[int, Sequence[int]],
) -> list[list[int]]:
    """The replicas of each new partition, the leader first."""
    if assignments:
        if partitions != -1 or replication_factor != -1:
            raise TopicError(
                ErrorCode.INVALID_REQUEST,
                "give either replica assignments or partitions and replication factor",
            )
        if sorted(assignments) != list(range(len(assignments))):
            raise TopicError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "partitions should be a consecutive 0-based integer sequence",
            )
        plan.check_room(len(assignments))
        return [_check_assignment(node, assignments[index]) for index in range(len(assignments))]
    count = node.settings.get("num.partitions") if partitions == -1 else partitions
    factor = (
        node.settings.get("default.replication.factor") if replication_factor == -1 else replication_factor
    )
    if count < 1:
        raise TopicError(ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
    if factor < 1:
        raise TopicError(ErrorCode.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0.")
    plan.check_room(count)
    return place_evenly(node, plan.position, count, factor)


def _new_partition(node: Node, topic_id: UUID, index: int, replicas: Sequence[int]) -> PartitionChanged:
    """A partition as it begins: all its live replicas are in sync, for there is nothing to lack."""
    isr = tuple(node_id for node_id in replicas if node.image.is_live(node_id))
    return PartitionChanged(topic_id, index, isr[0], 0, tuple(replicas), isr)


def place_evenly(node: Node, first: int, count: int, factor: int) -> list[list[int]]:
    """Replicas for `count` partitions: leaders in turn, beginning at position `first`.

    After each round the followers move on by one, so that one broker's death burdens all others. A fenced
    broker gets replicas only if the live ones do not suffice, as in Kafka: it copies when it is back.
    """
    brokers = [broker.node_id for broker in node.image.live_brokers()]
    if brokers and factor > len(brokers):
        fenced = [node_id for node_id in sorted(node.image.brokers) if node_id not in brokers]
        missing = fenced[: factor - len(brokers)]
        if len(missing) == factor - len(brokers):
            placed = (_stripe(brokers, index, len(brokers)) for index in range(first, first + count))
            return [[*live, *missing] for live in placed]
    if factor > len(brokers):
        raise TopicError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} "
            f"cannot be reached because only {len(brokers)} broker(s) are registered.",
        )
    return [_stripe(brokers, index, factor) for index in range(first, first + count)]


def _stripe(brokers: Sequence[int], index: int, factor: int) -> list[int]:
    rounds, others = index // len(brokers), max(1, len(brokers) - 1)
    steps = [0, *(1 + (rounds + follower) % others for follower in range(factor - 1))]
    return [brokers[(index + step) % len(brokers)] for step in steps]


def _check_assignment(node: Node, replicas: Sequence[int]) -> list[int]:
    if not replicas or len(set(replicas)) != len(replicas) or not set(replicas) <= set(node.image.brokers):
        raise TopicError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The manual partition assignment {list(replicas)} must name registered brokers, each once.",
        )
    if not any(map(node.image.is_live, replicas)):
        raise TopicError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"None of the brokers {list(replicas)} of the manual partition assignment is live.",
        )
    return list(replicas)


# -------------------------------------------------------------------------------------------- CreateTopics


@handles(ApiKey.CREATE_TOPICS, 2, 7)
def create_topics(node: Node, request: Request) -> None:
    """Create what can be created; each topic has its own verdict."""
    body: CreateTopicsRequest = request.body
    names = Counter(topic.name for topic in body.topics)

    def decide() -> Decision:
        records: list[MetadataRecord] = []
        answers = []
        plan = Plan(node)
        for asked in body.topics:
            try:
                if names[asked.name] > 1:
                    raise TopicError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                created = new_topic_records(
                    node,
                    plan,
                    asked.name,
                    asked.num_partitions,
                    asked.replication_factor,
                    {a.partition_index: a.broker_ids for a in asked.assignments},
                    {config.name: config.value for config in asked.configs},
                )
                answers.append(_created(node, asked.name, created))
                records += [] if body.validate_only else created
            except TopicError as error:
                answers.append(_not_created(asked.name, error.code, str(error)))
        return Decision(records, lambda: CreateTopicsResponse(throttle_time_ms=0, topics=answers))

    def failed(reason: str) -> CreateTopicsResponse:
        answers = [_not_created(name, ErrorCode.UNKNOWN_SERVER_ERROR, reason) for name in names]
        return CreateTopicsResponse(throttle_time_ms=0, topics=answers)

    node.change(request, decide, failed)


def _created(
    node: Node, name: str, records: Sequence[MetadataRecord]
) -> CreateTopicsResponse.CreatableTopicResult:
    partitions = [record for record in records if isinstance(record, PartitionChanged)]
    own = {
        record.key: record.value
        for record in records
        if isinstance(record, ConfigSet) and record.value is not None
    }
    return CreateTopicsResponse.CreatableTopicResult(
        name=name,
        topic_id=partitions[0].topic_id,
        error_code=0,
        error_message=None,
        topic_config_error_code=0,
        num_partitions=len(partitions),
        replication_factor=len(partitions[0].replicas),
        configs=[
            CreateTopicsResponse.CreatableTopicResult.CreatableTopicConfigs(
                name=setting.key.name,
                value=setting.found.value,
                read_only=False,
                config_source=int(setting.found.source),
                is_sensitive=False,
            )
            for setting in describe_settings(node, TOPIC_KEYS, own)
        ],
    )


def _not_created(name: str, code: ErrorCode, message: str) -> CreateTopicsResponse.CreatableTopicResult:
    return CreateTopicsResponse.CreatableTopicResult(
        name=name,
        topic_id=NO_ID,
        error_code=int(code),
        error_message=message,
        topic_config_error_code=0,
        num_partitions=-1,
        replication_factor=-1,
        configs=[],
    )


# -------------------------------------------------------------------------------------------- DeleteTopics


@handles(ApiKey.DELETE_TOPICS, 1, 6)
def delete_topics(node: Node, request: Request) -> None:
    """Delete by name, or from version 6 on by id."""
    body: DeleteTopicsRequest = request.body
    asked: list[tuple[str | None, UUID | None]]
    if request.header.api_version >= 6:
        asked = [(state.name, None if state.name is not None else state.topic_id) for state in body.topics]
    else:
        asked = [(name, None) for name in body.topic_names]

    def decide() -> Decision:
        deleted: dict[UUID, MetadataRecord] = {}
        answers = []
        for name, topic_id in dict.fromkeys(asked):
            topic = node.topic(name, topic_id)
            error = _delete_error(node, topic, name)
            answers.append(_deleted(name, topic_id, topic, error))
            if topic is not None and error is ErrorCode.NONE:
                deleted[topic.topic_id] = TopicDeleted(topic.topic_id)
        return Decision(
            list(deleted.values()), lambda: DeleteTopicsResponse(throttle_time_ms=0, responses=answers)
        )

    def failed(reason: str) -> DeleteTopicsResponse:
        answers = [_deleted(name, topic_id, None, ErrorCode.UNKNOWN_SERVER_ERROR) for name, topic_id in asked]
        return DeleteTopicsResponse(throttle_time_ms=0, responses=answers)

    node.change(request, decide, failed)


def _delete_error(node: Node, topic: Topic | None, name: str | None) -> ErrorCode:
    if not node.settings.get("delete.topic.enable"):
        return ErrorCode.TOPIC_DELETION_DISABLED
    if topic is not None:
        return ErrorCode.NONE
    return ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _deleted(
    name: str | None, topic_id: UUID | None, topic: Topic | None, error: ErrorCode
) -> DeleteTopicsResponse.DeletableTopicResult:
    return DeleteTopicsResponse.DeletableTopicResult(
        name=name if topic is None else topic.name,
        topic_id=(topic_id or NO_ID) if topic is None else topic.topic_id,
        error_code=int(error),
        error_message=None if error is ErrorCode.NONE else error.name,
    )


# ---------------------------------------------------------------------------------------- CreatePartitions


@handles(ApiKey.CREATE_PARTITIONS, 0, 3)
def create_partitions(node: Node, request: Request) -> None:
    """Add partitions to existing topics; `count` is the new total."""
    body: CreatePartitionsRequest = request.body
    names = Counter(topic.name for topic in body.topics)

    def decide() -> Decision:
        records: list[MetadataRecord] = []
        answers = []
        plan = Plan(node)
        for asked in body.topics:
            try:
                if names[asked.name] > 1:
                    raise TopicError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                added = _more_partitions(node, plan, asked)
                records += [] if body.validate_only else added
                answers.append(_extended(asked.name, ErrorCode.NONE, None))
            except TopicError as error:
                answers.append(_extended(asked.name, error.code, str(error)))
        return Decision(records, lambda: CreatePartitionsResponse(throttle_time_ms=0, results=answers))

    def failed(reason: str) -> CreatePartitionsResponse:
        answers = [_extended(name, ErrorCode.UNKNOWN_SERVER_ERROR, reason) for name in names]
        return CreatePartitionsResponse(throttle_time_ms=0, results=answers)

    node.change(request, decide, failed)


def _more_partitions(
    node: Node, plan: Plan, asked: CreatePartitionsRequest.CreatePartitionsTopic
) -> list[PartitionChanged]:
    topic = node.image.topics.get(asked.name)
    if topic is None:
        raise TopicError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
        )
    existing = len(topic.partitions)
    if asked.count <= existing:
        raise TopicError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {asked.name} has {existing} partition(s); {asked.count} would not be an increase.",
        )
    plan.check_room(asked.count - existing)
    if asked.assignments is not None and len(asked.assignments) != asked.count - existing:
        raise TopicError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{asked.count - existing} partitions are added, but {len(asked.assignments)} assignments given.",
        )
    if asked.assignments is None:
        replicas = _place_more(node, topic, asked.count - existing)
    else:
        replicas = [_check_assignment(node, assignment.broker_ids) for assignment in asked.assignments]
    plan.add(asked.name, len(replicas))
    return [
        _new_partition(node, topic.topic_id, existing + index, nodes) for index, nodes in enumerate(replicas)
    ]


def _place_more(node: Node, topic: Topic, count: int) -> list[list[int]]:
    """Replicas for further partitions: the turns go on where the topic's first partition began."""
    brokers = [broker.node_id for broker in node.image.live_brokers()]
    first = topic.partitions[0].replicas
    begin = brokers.index(first[0]) if first[0] in brokers else 0
    return place_evenly(node, begin + len(topic.partitions), count, len(first))


def _extended(
    name: str, code: ErrorCode, message: str | None
) -> CreatePartitionsResponse.CreatePartitionsTopicResult:
    return CreatePartitionsResponse.CreatePartitionsTopicResult(
        name=name, error_code=int(code), error_message=message
    )
