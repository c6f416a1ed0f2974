"""aiokafka's admin client, in an event loop per call. It speaks old versions of the requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import BrokerResponseError

from ..clients import BrokerRefused
from . import Cluster, PartitionPlace, Setting

Result = TypeVar("Result")
_DYNAMIC_TOPIC_CONFIG = 1


class AiokafkaAdmin:
    name = "aiokafka"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def close(self) -> None:
        """Nothing is kept between calls."""

    def _ask(self, work: Callable[[Any], Awaitable[Result]]) -> Result:
        async def run() -> Result:
            client = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
            await client.start()
            try:
                return await work(client)
            finally:
                await client.close()

        try:
            return asyncio.run(run())
        except BrokerResponseError as error:
            raise BrokerRefused(error.errno, error) from error

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        *,
        replication_factor: int = -1,
        settings: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        if replication_factor == -1:  # which this client refuses to send
            replication_factor = len(self.cluster().brokers)
        new = NewTopic(topic, partitions, replication_factor, topic_configs=dict(settings or {}))
        answer = self._ask(lambda client: client.create_topics([new], validate_only=validate_only))
        _check(answer.topic_errors)

    def delete_topic(self, topic: str) -> None:
        _check(self._ask(lambda client: client.delete_topics([topic])).topic_error_codes)

    def topics(self) -> set[str]:
        return set(self._ask(lambda client: client.list_topics()))

    def describe(self, topic: str) -> dict[int, PartitionPlace]:
        (described,) = self._ask(lambda client: client.describe_topics([topic]))
        if described["error_code"]:
            raise BrokerRefused(described["error_code"], topic)
        return {
            place["partition"]: PartitionPlace(place["leader"], tuple(place["replicas"]), tuple(place["isr"]))
            for place in described["partitions"]
        }

    def add_partitions(self, topic: str, total: int) -> None:
        self._ask(lambda client: client.create_partitions({topic: NewPartitions(total)}))

    def settings(self, topic: str) -> dict[str, Setting]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        (answer,) = self._ask(lambda client: client.describe_configs([resource]))
        ((code, message, _, _, entries),) = answer.resources
        if code:
            raise BrokerRefused(code, message)
        return {
            name: Setting(value, source == _DYNAMIC_TOPIC_CONFIG) for name, value, _, source, *_ in entries
        }

    def replace_settings(self, topic: str, settings: Mapping[str, str]) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=dict(settings))
        (answer,) = self._ask(lambda client: client.alter_configs([resource]))
        ((code, message, _, _),) = answer.resources
        if code:
            raise BrokerRefused(code, message)

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        place = TopicPartition(topic, partition)
        answer = self._ask(lambda client: client.delete_records({place: RecordsToDelete(before)}))
        return int(answer[place])

    def cluster(self) -> Cluster:
        found = self._ask(lambda client: client.describe_cluster())
        brokers = {broker["node_id"]: (broker["host"], broker["port"]) for broker in found["brokers"]}
        return Cluster(found["cluster_id"], found["controller_id"], brokers)


def _check(outcomes: list[Any]) -> None:
    ((topic, code, *details),) = outcomes
    if code:
        raise BrokerRefused(code, f"{topic} {details}")
