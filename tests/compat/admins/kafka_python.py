"""kafka-python's admin client."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import BrokerResponseError

from ..clients import BrokerRefused
from . import Cluster, PartitionPlace, ProducerState, Setting

_ERROR_NUMBER = re.compile(r"\[Error (\d+)\]")


class KafkaPythonAdmin:
    name = "kafka-python"

    def __init__(self, bootstrap: str) -> None:
        self._client = KafkaAdminClient(bootstrap_servers=bootstrap)

    def close(self) -> None:
        self._client.close()

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        *,
        replication_factor: int = -1,
        settings: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        new = {
            "num_partitions": partitions,
            "replication_factor": replication_factor,
            "configs": dict(settings or {}),
        }
        with _translated_errors():
            self._client.create_topics({topic: new}, validate_only=validate_only)

    def delete_topic(self, topic: str) -> None:
        with _translated_errors():
            self._client.delete_topics([topic])

    def topics(self) -> set[str]:
        return set(self._client.list_topics())

    def describe(self, topic: str) -> dict[int, PartitionPlace]:
        (described,) = self._client.describe_topics([topic])
        if described["error_code"]:
            raise BrokerRefused(described["error_code"], topic)
        return {
            place["partition_index"]: PartitionPlace(
                place["leader_id"], tuple(place["replica_nodes"]), tuple(place["isr_nodes"])
            )
            for place in described["partitions"]
        }

    def add_partitions(self, topic: str, total: int) -> None:
        with _translated_errors():
            self._client.create_partitions({topic: total})

    def settings(self, topic: str) -> dict[str, Setting]:
        with _translated_errors():
            found = self._client.describe_configs([_resource(topic)], config_filter="all")
        entries = found["topic"][topic]
        return {
            name: Setting(entry["value"], entry["config_source"] == "DYNAMIC_TOPIC_CONFIG")
            for name, entry in entries.items()
        }

    def change_setting(self, topic: str, name: str, value: str | None) -> None:
        resource = _resource(topic, {name: value})
        change: Any = self._client.reset_configs if value is None else self._client.alter_configs
        with _translated_errors():
            outcome = change([resource], incremental=True)["topic"][topic]
        if outcome != "OK":
            raise BrokerRefused(int(_ERROR_NUMBER.findall(outcome)[0]), outcome)

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        place = TopicPartition(topic, partition)
        with _translated_errors():
            return int(self._client.delete_records({place: before})[place]["low_watermark"])

    def cluster(self) -> Cluster:
        found = self._client.describe_cluster()
        brokers = {broker["broker_id"]: (broker["host"], broker["port"]) for broker in found["brokers"]}
        return Cluster(found["cluster_id"], found["controller_id"], brokers)

    def offset_of(self, topic: str, partition: int, point: int) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        with _translated_errors():
            found = self._client.list_partition_offsets({place: point})[place]
        return found.offset, found.timestamp

    def log_sizes_bytes(self, topic: str) -> dict[int, list[int]]:
        sizes: dict[int, list[int]] = defaultdict(list)
        for broker in self._client.describe_log_dirs([topic]):
            for log_dir in broker["log_dirs"]:
                for found in log_dir["topics"]:
                    for partition in found["partitions"]:
                        if found["name"] == topic:
                            sizes[partition["partition_index"]].append(partition["partition_size"])
        return sizes

    def producers(self, topic: str, partition: int) -> list[ProducerState]:
        place = TopicPartition(topic, partition)
        with _translated_errors():
            states = self._client.describe_producers([place])[place].active_producers
        return [
            ProducerState(state.producer_id, state.producer_epoch, state.last_sequence) for state in states
        ]


def _resource(topic: str, settings: dict[str, Any] | None = None) -> Any:
    return ConfigResource(ConfigResourceType.TOPIC, topic, configs=settings)


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except BrokerResponseError as error:
        raise BrokerRefused(error.errno, error) from error
