"""An administrator: moves and adds partitions, changes settings and deletes records while everybody works."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gapless.simulator.clients.client import REQUEST_MS, Client
from gapless.simulator.clients.process import Process
from gapless.simulator.history import Place
from gapless.wire.apis import ApiKey
from gapless.wire.messages import (
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    DeleteRecordsRequest,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
)

if TYPE_CHECKING:
    from gapless.simulator.scene import Scene

MAX_TRIES = 6
TIMEOUT_MS = 1_000
TOPIC_RESOURCE = 2
SET = 0
PREFERRED, UNCLEAN = 0, 1

Topic = AlterPartitionReassignmentsRequest.ReassignableTopic
Resource = IncrementalAlterConfigsRequest.AlterConfigsResource
Deleted = DeleteRecordsRequest.DeleteRecordsTopic


class Admin(Client):
    """Asks for something until there is an answer; whether it is refused does not matter."""

    def __init__(self, scene: Scene, name: str) -> None:
        super().__init__(scene, name)
        self._uncleanly: dict[Place, list[tuple[int, int]]] = {}
        """Brokers that were asked to let anybody lead a place, and in which life, until they answer."""

    def move(self, place: Place, replicas: tuple[int, ...] | None) -> None:
        """Reassign a partition to other brokers; None calls off what is under way."""
        part = Topic.ReassignablePartition(
            partition_index=place[1], replicas=None if replicas is None else list(replicas)
        )
        body = AlterPartitionReassignmentsRequest(
            timeout_ms=TIMEOUT_MS,
            allow_replication_factor_change=True,
            topics=[Topic(name=place[0], partitions=[part])],
        )
        self.begin(self._ask_anybody(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, body))

    def elect_preferred(self) -> None:
        """Give every partition back to its first replica, if that is in sync."""
        body = ElectLeadersRequest(election_type=PREFERRED, topic_partitions=None, timeout_ms=TIMEOUT_MS)
        self.begin(self._ask_anybody(ApiKey.ELECT_LEADERS, 2, body))

    def elect_anybody(self, place: Place) -> None:
        """Let anybody lead a partition that nobody leads."""
        parts = ElectLeadersRequest.TopicPartitions(topic=place[0], partitions=[place[1]])
        body = ElectLeadersRequest(election_type=UNCLEAN, topic_partitions=[parts], timeout_ms=TIMEOUT_MS)
        self.begin(self._elect_anybody(place, body))

    def _elect_anybody(self, place: Place, body: ElectLeadersRequest) -> Process:
        asked = self._uncleanly.setdefault(place, [])
        for tries in range(MAX_TRIES):
            broker, overdue_ms = self._anybody(), self.world.now_ms + REQUEST_MS
            life = (broker, self.world.hosts[broker].life)
            asked.append(life)
            answer = yield self.ask(broker, ApiKey.ELECT_LEADERS, 2, body)
            if answer is not None or self.world.now_ms < overdue_ms:
                asked.remove(life)  # it has dealt with it, or it never got it
            if answer is not None:
                return
            yield self.back_off(tries)

    def lets_anybody_lead(self, place: Place) -> bool:
        """Whether some broker may still act on such a request: it lives, and has not answered."""
        hosts = self.world.hosts
        asked = self._uncleanly.get(place, ())
        return any(hosts[broker].alive and hosts[broker].life == life for broker, life in asked)

    def add_partition(self, topic: str, count: int) -> None:
        """Let a topic have so many partitions."""
        wish = CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=count, assignments=None)
        body = CreatePartitionsRequest(topics=[wish], timeout_ms=TIMEOUT_MS, validate_only=False)
        self.begin(self._ask_anybody(ApiKey.CREATE_PARTITIONS, 3, body))

    def configure(self, topic: str, key: str, value: str) -> None:
        """Change one setting of a topic."""
        change = Resource.AlterableConfig(name=key, config_operation=SET, value=value)
        resource = Resource(resource_type=TOPIC_RESOURCE, resource_name=topic, configs=[change])
        body = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        self.begin(self._ask_anybody(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body))

    def delete_records(self, place: Place, before: int) -> None:
        """Take away all below an offset."""
        part = Deleted.DeleteRecordsPartition(partition_index=place[1], offset=before)
        body = DeleteRecordsRequest(topics=[Deleted(name=place[0], partitions=[part])], timeout_ms=TIMEOUT_MS)
        self.begin(
            self._ask_leader(
                place,
                ApiKey.DELETE_RECORDS,
                2,
                body,
                lambda answer: answer.topics[0].partitions[0].error_code,
            )
        )

    def _ask_anybody(self, key: ApiKey, version: int, body: Any) -> Process:
        for tries in range(MAX_TRIES):
            answer = yield self.ask(self._anybody(), key, version, body)
            if answer is not None:
                return
            yield self.back_off(tries)

    def _ask_leader(
        self, place: Place, key: ApiKey, version: int, body: Any, error_of: Callable[[Any], int]
    ) -> Process:
        for tries in range(MAX_TRIES):
            broker, _ = yield from self.leader(place)
            answer = yield self.ask(broker, key, version, body)
            if answer is not None and not error_of(answer):
                return
            self.forget_leader(place)
            yield self.back_off(tries)
