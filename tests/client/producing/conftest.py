"""A producer that idles, on a cluster that forgets offsets after a minute, while other tests run.

The shortest time for which Kafka keeps offsets is a minute. So that nobody waits for it, the producer starts
with the first test in this folder, and the test that looks at it runs last of all.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from gapless.client.producing.ledger import Ledger, register
from gapless.testing.cluster import Cluster
from tests.client.conftest import Kafka, new_topic
from tests.client.producing.sending import new_sender, properties_of, send

_NEEDS_A_MINUTE = "test_offsets_do_not_expire_while_their_producer_is_idle"
_CONTROL = "nobody-keeps-this-alive"
_KEEP_ALIVE_S = 15.0


class Idle:
    """The producer and its surroundings."""

    def __init__(self, kafka: Kafka, folder: Path) -> None:
        self.kafka = kafka
        self.folder = folder
        self.source = "idle"
        self.topic = new_topic(kafka)
        self.sender = new_sender(kafka, folder, self.source, keep_alive_s=_KEEP_ALIVE_S)
        self.sender.start()
        send(self.sender, self.topic, range(10), 1).wait(30)
        control = Consumer(properties_of(kafka, **{"group.id": _CONTROL}))
        control.commit(offsets=[register(10, "control")], asynchronous=False)
        control.close()
        self.since = time.monotonic()
        self._ledger = Ledger(properties_of(kafka))

    def has_control_expired(self) -> bool:
        return self._ledger.read(_CONTROL) is None

    def close(self) -> None:
        self._ledger.rest()
        self.sender.close(5)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.name == _NEEDS_A_MINUTE)


@pytest.fixture(scope="session", autouse=True)
def _idle_of_session(request: pytest.FixtureRequest) -> Iterator[Idle | None]:
    if not any(item.name == _NEEDS_A_MINUTE for item in request.session.items):
        yield None
        return
    settings = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(brokers=1, settings=settings, proxy=False) as cluster,
    ):
        idle = Idle(Kafka("embedded", cluster.bootstrap, cluster, cluster.brokers), Path(folder))
        yield idle
        idle.close()


@pytest.fixture
def idle(_idle_of_session: Idle | None) -> Idle:
    """It has been idle since it was started."""
    assert _idle_of_session is not None
    return _idle_of_session
