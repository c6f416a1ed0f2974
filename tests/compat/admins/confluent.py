"""confluent-kafka's AdminClient."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from ..clients import ANSWER_TIMEOUT_S
from ..clients.confluent import refused
from . import EARLIEST, LATEST, MAX_TIMESTAMP, Cluster, PartitionPlace, Setting

_POINTS: dict[int, Any] = {
    EARLIEST: OffsetSpec.earliest,
    LATEST: OffsetSpec.latest,
    MAX_TIMESTAMP: OffsetSpec.max_timestamp,
}


class ConfluentAdmin:
    name = "confluent"

    def __init__(self, bootstrap: str) -> None:
        self._client = AdminClient({"bootstrap.servers": bootstrap})

    def close(self) -> None:
        """librdkafka ends with its object, and complains of brokers that end before it."""
        del self._client

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        *,
        replication_factor: int = -1,
        settings: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        new = NewTopic(topic, partitions, replication_factor, config=dict(settings or {}))
        _result(self._client.create_topics([new], validate_only=validate_only)[topic])

    def create_placed_topic(self, topic: str, replicas: Sequence[Sequence[int]]) -> None:
        """Create a topic with these replicas for each partition, the first of which leads."""
        new = NewTopic(topic, len(replicas), replica_assignment=[list(of_one) for of_one in replicas])
        _result(self._client.create_topics([new])[topic])

    def delete_topic(self, topic: str) -> None:
        _result(self._client.delete_topics([topic])[topic])

    def topics(self) -> set[str]:
        return set(self._client.list_topics(timeout=ANSWER_TIMEOUT_S).topics)

    def describe(self, topic: str) -> dict[int, PartitionPlace]:
        described = _result(self._client.describe_topics(TopicCollection([topic]))[topic])
        return {
            place.id: PartitionPlace(
                place.leader.id,
                tuple(node.id for node in place.replicas),
                tuple(node.id for node in place.isr),
            )
            for place in described.partitions
        }

    def add_partitions(self, topic: str, total: int) -> None:
        _result(self._client.create_partitions([NewPartitions(topic, total)])[topic])

    def settings(self, topic: str) -> dict[str, Setting]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        entries = _result(self._client.describe_configs([resource])[resource])
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return {name: Setting(entry.value, entry.source == own) for name, entry in entries.items()}

    def change_setting(self, topic: str, name: str, value: str | None) -> None:
        change = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        entry = ConfigEntry(name, value, incremental_operation=change)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        _result(self._client.incremental_alter_configs([resource])[resource])

    def replace_settings(self, topic: str, settings: Mapping[str, str]) -> None:
        resource = ConfigResource(ResourceType.TOPIC, topic, set_config=dict(settings))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # which does not mean that nobody uses it
            asked = self._client.alter_configs([resource])
        _result(asked[resource])

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        place = TopicPartition(topic, partition, before)
        return int(_result(self._client.delete_records([place])[place]).low_watermark)

    def cluster(self) -> Cluster:
        found = _result(self._client.describe_cluster())
        brokers = {node.id: (node.host, node.port) for node in found.nodes}
        return Cluster(found.cluster_id, found.controller.id, brokers)

    def offset_of(self, topic: str, partition: int, point: int) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        spec: Any = _POINTS[point]() if point < 0 else OffsetSpec.for_timestamp(point)
        found = _result(self._client.list_offsets({place: spec})[place])
        return found.offset, found.timestamp


def _result(future: Future[Any]) -> Any:
    try:
        return future.result(ANSWER_TIMEOUT_S)
    except KafkaException as error:
        raise refused(error.args[0]) from error
