"""Two clusters for the client library: three of our own brokers, and Apache Kafka, each behind a bad network.

`kafka` runs a test on both. Every test finds the cluster whole. `apache` alone, or `embedded` alone, where
a fault exists in one of them only.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer as BareConsumer
from confluent_kafka import TopicPartition as BareTopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from gapless.client.records import Record
from gapless.testing.cluster import Cluster
from gapless.testing.proxy import FaultProxy
from gapless.testing.quiet import quiet_logger
from tests.servers import KEEPS_RECORDS_OF_ANY_AGE, ApacheBehindProxy

PATIENCE_S = 30.0
_numbers = itertools.count()

# librdkafka says on stderr what we provoke; our own clients say it to this logger.
logging.getLogger("gapless.client.librdkafka").addHandler(logging.NullHandler())
logging.getLogger("gapless.client.librdkafka").propagate = False


class Kafka:
    """A cluster of either kind, with the faults that both can have."""

    def __init__(self, name: str, bootstrap: str, network: FaultProxy | Cluster, brokers: list[int]) -> None:
        self.name = name
        self.bootstrap = bootstrap
        self.replicas = len(brokers)
        self._network = network
        self._brokers = brokers
        properties: dict[str, Any] = {"bootstrap.servers": bootstrap, "logger": quiet_logger()}
        self.admin = AdminClient(properties)

    @property
    def cluster(self) -> Cluster:
        """The embedded cluster, with all its verbs."""
        assert isinstance(self._network, Cluster), f"{self.name} has no such verbs"
        return self._network

    def lose_acks(self, count: int = 1) -> None:
        """The next writes happen, and their answers get lost."""
        self._network.lose_acks(count)

    @property
    def acks_lost(self) -> int:
        return self._network.acks_lost

    def isolate(self) -> None:
        """Nobody reaches any broker, until `heal`."""
        for broker in self._brokers:
            self._network.isolate(broker)

    def heal(self) -> None:
        self._network.heal()

    @contextmanager
    def outage(self) -> Iterator[None]:
        """The whole cluster is away."""
        self.isolate()
        try:
            yield
        finally:
            self.heal()

    def repair(self) -> None:
        """Undo all faults."""
        if isinstance(self._network, Cluster):
            self._network.repair()
        else:
            self._network.heal()


def new_topic(kafka: Kafka, partitions: int = 1, **config: str) -> str:
    """A topic of its own for a test, with as many replicas as the cluster keeps."""
    name = f"t{next(_numbers)}"
    if kafka.name == "embedded":
        kafka.cluster.create_topic(name, partitions, config=config)
        return name
    topic = NewTopic(name, partitions, kafka.replicas, config=dict(config))
    kafka.admin.create_topics([topic])[name].result(PATIENCE_S)
    wait_for(
        lambda: len(kafka.admin.list_topics(name, timeout=PATIENCE_S).topics[name].partitions) == partitions,
        f"{name} is known to the broker",
    )
    return name


def read_all(kafka: Kafka | str, topic: str, committed: bool = True, **properties: str) -> list[Record]:
    """All records of a topic, partition by partition, each in the order of the log."""
    reader = BareConsumer(
        {
            "bootstrap.servers": kafka if isinstance(kafka, str) else kafka.bootstrap,
            "group.id": "reads-all",
            "enable.auto.commit": "false",
            "enable.partition.eof": "true",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "fetch.wait.max.ms": "50",
            "logger": quiet_logger(),
            **properties,
        }
    )
    try:
        partitions = [
            BareTopicPartition(topic, each, 0)
            for each in sorted(reader.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions)
        ]
        # A new leader that does not know yet what was committed does not tell its end, but tells readers that
        # they are at one.
        ends = [reader.get_watermark_offsets(each, timeout=PATIENCE_S)[1] for each in partitions]
        found: dict[int, list[Record]] = {each.partition: [] for each in partitions}
        reader.assign(partitions)
        to_read = set(found)
        while to_read:
            message = reader.poll(PATIENCE_S)
            assert message is not None, f"{topic} cannot be read to its end"
            problem, partition = message.error(), message.partition() or 0
            if problem is None:
                found[partition].append(Record.of(message))
            elif problem.name() == "_PARTITION_EOF":
                if (message.offset() or 0) >= ends[partition]:
                    to_read.discard(partition)
            else:
                assert problem.retriable() or not problem.fatal(), problem
        return [record for each in found.values() for record in each]
    finally:
        reader.close()


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Until a condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"in vain waited {timeout_s:g} s until {what}"
        time.sleep(0.01)


@pytest.fixture(scope="session")
def _embedded_of_session() -> Iterator[Kafka]:
    settings = {
        "broker.session.timeout.ms": "1000",
        "broker.heartbeat.interval.ms": "200",
        "replica.lag.time.max.ms": "1500",
        **KEEPS_RECORDS_OF_ANY_AGE,
    }
    with Cluster(brokers=3, settings=settings) as cluster:
        kafka = Kafka("embedded", cluster.bootstrap, cluster, cluster.brokers)
        yield kafka
        del kafka.admin  # which ends with its last reference, and must not outlive its cluster


@pytest.fixture
def embedded(_embedded_of_session: Kafka) -> Kafka:
    """Three embedded brokers, whole."""
    _embedded_of_session.repair()
    return _embedded_of_session


@pytest.fixture
def apache(apache_of_session: ApacheBehindProxy) -> Iterator[Kafka]:
    """Apache Kafka, whole."""
    kafka = Kafka("apache", apache_of_session.bootstrap, apache_of_session.network, [1])
    kafka.repair()
    yield kafka
    del kafka.admin  # the traceback of an expected error may refer to this object, and so to the client


@pytest.fixture(params=["embedded", "apache"])
def kafka(request: pytest.FixtureRequest) -> Kafka:
    """Three embedded brokers, then Apache Kafka: `.bootstrap`, `.name`, and faults; whole."""
    found: Kafka = request.getfixturevalue(request.param)
    return found
