"""The cluster as the journal tells it: topics, partitions, settings, brokers. Changed by `replay` alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from gapless.core.config_keys import TOPIC
from gapless.core.contract import InvariantViolated
from gapless.core.records import (
    BrokerRegistered,
    BrokerRemoved,
    ConfigSet,
    ControllerElected,
    MetadataRecord,
    PartitionChanged,
    ProducerIdsReserved,
    TopicCreated,
    TopicDeleted,
)

FLUSH_MESSAGES = "flush.messages"
FLUSHED_FIRST = "1"
"""The setting, and the value of it, by which a record is flushed before it is acknowledged."""


@dataclass(slots=True)
class Topic:
    """A topic with its partitions' assignments, in partition order."""

    name: str
    topic_id: UUID
    flushed: bool = False
    """Whether all that it ever acknowledged was flushed before: only then a power cut has taken nothing."""
    partitions: list[PartitionChanged] = field(default_factory=list)


class Image:
    """The replayed state at `version`."""

    __slots__ = (
        "brokers",
        "configs",
        "controller",
        "next_producer_id",
        "topics",
        "topics_by_id",
        "version",
    )

    def __init__(self) -> None:
        self.version = 0
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[UUID, Topic] = {}
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        self.brokers: dict[int, BrokerRegistered] = {}
        self.controller = ControllerElected(-1, 0)
        self.next_producer_id = 0

    def replay(self, record: MetadataRecord) -> None:
        """Apply one record."""
        match record:
            case PartitionChanged():
                self._replay_partition(record)
            case TopicCreated():
                topic = Topic(record.name, record.topic_id, record.flushed)
                self.topics[record.name] = topic
                self.topics_by_id[record.topic_id] = topic
            case TopicDeleted():
                topic = self.topics_by_id.pop(record.topic_id)
                del self.topics[topic.name]
                self.configs.pop((2, topic.name), None)
            case ConfigSet():
                self._replay_config(record)
            case ProducerIdsReserved():
                self.next_producer_id = record.next_producer_id
            case BrokerRegistered():
                self.brokers[record.node_id] = record
            case BrokerRemoved():
                self.brokers.pop(record.node_id, None)
            case ControllerElected():
                self.controller = record

    def is_live(self, node_id: int) -> bool:
        """Whether a broker is registered and was not found dead or hung since."""
        broker = self.brokers.get(node_id)
        return broker is not None and not broker.fenced

    def live_brokers(self) -> list[BrokerRegistered]:
        """All brokers that may lead, in the order of their numbers."""
        return [self.brokers[node_id] for node_id in sorted(self.brokers) if not self.brokers[node_id].fenced]

    def snapshot(self) -> list[MetadataRecord]:
        """Records that lead an empty image to this one."""
        records: list[MetadataRecord] = [*self.brokers.values(), self.controller]
        for topic in self.topics.values():
            records.append(TopicCreated(topic.name, topic.topic_id, topic.flushed))
            records += topic.partitions
        for (resource_type, name), values in self.configs.items():
            records += [ConfigSet(resource_type, name, key, value) for key, value in values.items()]
        records.append(ProducerIdsReserved(self.next_producer_id))
        return records

    def _replay_partition(self, record: PartitionChanged) -> None:
        partitions = self.topics_by_id[record.topic_id].partitions
        if record.partition < len(partitions):
            partitions[record.partition] = record
        elif record.partition == len(partitions):
            partitions.append(record)
        else:
            raise InvariantViolated(
                f"partition {record.partition} of {record.topic_id} appears before its elders"
            )

    def _replay_config(self, record: ConfigSet) -> None:
        resource = (record.resource_type, record.resource_name)
        if record.value is not None:
            self.configs.setdefault(resource, {})[record.key] = record.value
        elif resource in self.configs:
            self.configs[resource].pop(record.key, None)
        if record.key == FLUSH_MESSAGES and record.resource_type == TOPIC and record.value != FLUSHED_FIRST:
            topic = self.topics.get(record.resource_name)
            if topic is not None:
                topic.flushed = False  # for ever: nobody knows when all from this time is flushed
