"""What an administrator does, said once; each module says it in the words of one client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3


class PartitionPlace(NamedTuple):
    """Who leads a partition, who keeps it, who is in sync."""

    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


class Cluster(NamedTuple):
    """The cluster's name, its controller, and where each broker listens."""

    cluster_id: str
    controller: int
    brokers: Mapping[int, tuple[str, int]]


class Setting(NamedTuple):
    """A topic's setting, and whether it was set on the topic itself."""

    value: str | None
    is_own: bool


class ProducerState(NamedTuple):
    """What the broker remembers of a producer in a partition."""

    producer_id: int
    epoch: int
    last_sequence: int


class Admin(Protocol):
    """Every method raises BrokerRefused with the broker's error."""

    name: str

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        *,
        replication_factor: int = -1,
        settings: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Create a topic; -1 partitions or replicas are as many as the broker is configured to give it."""
        ...

    def delete_topic(self, topic: str) -> None: ...

    def topics(self) -> set[str]: ...

    def describe(self, topic: str) -> dict[int, PartitionPlace]: ...

    def add_partitions(self, topic: str, total: int) -> None: ...

    def settings(self, topic: str) -> dict[str, Setting]: ...

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        """The first offset that is left."""
        ...

    def cluster(self) -> Cluster: ...

    def close(self) -> None: ...


class ReplacingAdmin(Admin, Protocol):
    """What newer clients have dropped."""

    def replace_settings(self, topic: str, settings: Mapping[str, str]) -> None:
        """Set these and unset all others (AlterConfigs)."""
        ...


class ModernAdmin(Admin, Protocol):
    """What newer clients can do besides."""

    def change_setting(self, topic: str, name: str, value: str | None) -> None:
        """Set one setting, or unset it with None (IncrementalAlterConfigs)."""
        ...

    def offset_of(self, topic: str, partition: int, point: int) -> tuple[int, int]:
        """Offset and timestamp at EARLIEST, LATEST, MAX_TIMESTAMP or a time in ms; -1 where there is none."""
        ...


class InsightfulAdmin(ModernAdmin, Protocol):
    """What only some can look at."""

    def log_sizes_bytes(self, topic: str) -> dict[int, list[int]]:
        """DescribeLogDirs of all brokers: the sizes of each partition's replicas."""
        ...

    def producers(self, topic: str, partition: int) -> list[ProducerState]:
        """DescribeProducers."""
        ...
