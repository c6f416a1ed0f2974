"""One broker for all tests of the pipeline."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from gapless.testing.broker import EmbeddedBroker
from tests.servers import KEEPS_RECORDS_OF_ANY_AGE

_numbers = itertools.count()


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    with EmbeddedBroker(config=KEEPS_RECORDS_OF_ANY_AGE) as broker:
        yield broker.bootstrap


@pytest.fixture
def topic(bootstrap: str) -> str:
    """A new topic with two partitions."""
    name = f"pipeline-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result()
    return name


@pytest.fixture
def send(bootstrap: str, topic: str) -> Iterator[Callable[[range], None]]:
    """Sends the numbers of a range, acknowledged when it returns."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})

    def go(numbers: range) -> None:
        for number in numbers:
            producer.produce(topic, str(number).encode(), key=b"k%d" % number, partition=number % 2)
        assert producer.flush(30) == 0

    yield go
    producer.flush(0)
