"""The Java client's Admin, through py4j."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from py4j.java_gateway import JavaMember

from ..clients import ANSWER_TIMEOUT_S
from ..clients.java import JavaClient, translated_errors
from . import EARLIEST, LATEST, MAX_TIMESTAMP, Cluster, PartitionPlace, ProducerState, Setting


class JavaAdmin:
    def __init__(self, client: JavaClient, bootstrap: str) -> None:
        self.name = client.name
        self._jvm = client.jvm
        self._place = client.place
        self._api = client.jvm.org.apache.kafka.clients.admin
        self._client = self._api.Admin.create(client.properties({"bootstrap.servers": bootstrap}))

    def close(self) -> None:
        self._client.close()

    def _result(self, future: Any) -> Any:
        with translated_errors(self._jvm):
            return future.get(int(ANSWER_TIMEOUT_S), self._jvm.java.util.concurrent.TimeUnit.SECONDS)

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        *,
        replication_factor: int = -1,
        settings: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        new = self._api.NewTopic(topic, partitions, replication_factor).configs(dict(settings or {}))
        options = self._api.CreateTopicsOptions().validateOnly(validate_only)
        self._result(self._client.createTopics([new], options).all())

    def delete_topic(self, topic: str) -> None:
        self._result(self._client.deleteTopics([topic]).all())

    def topics(self) -> set[str]:
        return set(self._result(self._client.listTopics().names()))

    def describe(self, topic: str) -> dict[int, PartitionPlace]:
        described = self._result(self._client.describeTopics([topic]).allTopicNames())[topic]
        return {
            place.partition(): PartitionPlace(
                place.leader().id(),
                tuple(node.id() for node in place.replicas()),
                tuple(node.id() for node in place.isr()),
            )
            for place in described.partitions()
        }

    def add_partitions(self, topic: str, total: int) -> None:
        more = {topic: self._api.NewPartitions.increaseTo(total)}
        self._result(self._client.createPartitions(more).all())

    def settings(self, topic: str) -> dict[str, Setting]:
        resource = self._resource(topic)
        config = self._result(self._client.describeConfigs([resource]).all())[resource]
        own = "DYNAMIC_TOPIC_CONFIG"
        return {
            entry.name(): Setting(entry.value(), entry.source().toString() == own)
            for entry in config.entries().toArray()
        }

    def change_setting(self, topic: str, name: str, value: str | None) -> None:
        change = self._api.AlterConfigOp.OpType.valueOf("DELETE" if value is None else "SET")
        operation = self._api.AlterConfigOp(self._api.ConfigEntry(name, value), change)
        self._result(self._client.incrementalAlterConfigs({self._resource(topic): [operation]}).all())

    def replace_settings(self, topic: str, settings: Mapping[str, str]) -> None:
        """Only in the older client: Kafka 4 dropped it from the Java API, not from the protocol."""
        entries = [self._api.ConfigEntry(name, value) for name, value in settings.items()]
        self._result(self._client.alterConfigs({self._resource(topic): self._api.Config(entries)}).all())

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        place = self._place(topic, partition)
        answer = self._client.deleteRecords({place: self._records_before(before)})
        return int(self._result(answer.lowWatermarks()[place]).lowWatermark())

    def cluster(self) -> Cluster:
        found = self._client.describeCluster()
        brokers = {node.id(): (node.host(), node.port()) for node in self._result(found.nodes()).toArray()}
        return Cluster(self._result(found.clusterId()), self._result(found.controller()).id(), brokers)

    def offset_of(self, topic: str, partition: int, point: int) -> tuple[int, int]:
        specs = self._api.OffsetSpec
        named = {EARLIEST: specs.earliest, LATEST: specs.latest, MAX_TIMESTAMP: specs.maxTimestamp}
        place = self._place(topic, partition)
        spec = named[point]() if point < 0 else specs.forTimestamp(point)
        found = self._result(self._client.listOffsets({place: spec}).partitionResult(place))
        return found.offset(), found.timestamp()

    def log_sizes_bytes(self, topic: str) -> dict[int, list[int]]:
        brokers = list(self.cluster().brokers)
        described = self._result(self._client.describeLogDirs(brokers).allDescriptions())
        sizes: dict[int, list[int]] = defaultdict(list)
        for log_dirs in described.values():
            for log_dir in log_dirs.values():
                for place, replica in log_dir.replicaInfos().items():
                    if place.topic() == topic:
                        sizes[place.partition()].append(replica.size())
        return sizes

    def producers(self, topic: str, partition: int) -> list[ProducerState]:
        place = self._place(topic, partition)
        answer = self._client.describeProducers([place]).partitionResult(place)
        return [
            ProducerState(state.producerId(), state.producerEpoch(), state.lastSequence())
            for state in self._result(answer).activeProducers()
        ]

    def _resource(self, topic: str) -> Any:
        resources = self._jvm.org.apache.kafka.common.config.ConfigResource
        return resources(resources.Type.TOPIC, topic)

    def _records_before(self, offset: int) -> Any:
        """py4j overlooks a static method with a namesake that is not static, unless told that it is there."""
        kind = self._api.RecordsToDelete
        factory = JavaMember("beforeOffset", None, f"z:{kind._fqn}", kind._gateway_client)
        return factory(offset)
