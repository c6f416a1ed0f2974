"""The two that are compared, started and measured in the same way.

Each gets a fresh folder under the one work folder of the run (so both are on the same file system), listens
on 127.0.0.1, keeps its default settings, and leaves nothing behind. Its address is known before the start.
One setting of Kafka's is as ours, or groups would show nothing but that pause: a new group's first rebalance
waits for nobody (group.initial.rebalance.delay.ms is 0).
"""

from __future__ import annotations

from typing import Protocol

from gapless.testing.apache_kafka import ApacheKafka
from gapless.testing.broker import EmbeddedBroker
from gapless.testing.processes import free_ports

OURS = "gapless"
PEER = "kafka"
TITLES = {OURS: "Gapless", PEER: "Apache Kafka"}

KAFKA_HEAP_MB = 1024


class Broker(Protocol):
    """One broker, or several that are one cluster, for one session."""

    replicas: int
    """Of each partition of a topic that a session makes."""

    @property
    def bootstrap(self) -> str: ...

    @property
    def pids(self) -> list[int]:
        """Of all its processes."""

    def prepare(self) -> None:
        """Whatever must be done once before the first start and is not part of it."""

    def start(self) -> None:
        """Start, and return when clients can connect."""

    def discard(self) -> None:
        """Kill it and remove its data."""


class Gapless:
    """Our broker, as users run it: `gapless up`."""

    replicas = 1

    def __init__(self) -> None:
        port = free_ports(1)[0]
        self.bootstrap = f"127.0.0.1:{port}"
        self._broker = EmbeddedBroker(port=port)

    @property
    def pids(self) -> list[int]:
        return [self._broker.pid]

    def prepare(self) -> None:
        """Nothing: a folder needs no formatting."""

    def start(self) -> None:
        self._broker.start()

    def discard(self) -> None:
        self._broker.kill()
        self._broker.close()


class Kafka:
    """Apache Kafka with a heap of 1 GB, its disk formatted before the clock runs."""

    replicas = 1

    def __init__(self) -> None:
        self._broker = ApacheKafka(heap_mb=KAFKA_HEAP_MB)

    @property
    def bootstrap(self) -> str:
        return self._broker.bootstrap

    @property
    def pids(self) -> list[int]:
        return [self._broker.pid]

    def prepare(self) -> None:
        self._broker.prepare()

    def start(self) -> None:
        self._broker.start()

    def discard(self) -> None:
        self._broker.kill()
        self._broker.close()


def make_one(name: str) -> Broker:
    """A new broker of that kind, not started."""
    return Gapless() if name == OURS else Kafka()
