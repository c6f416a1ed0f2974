"""One Spark session and one broker, as the tests of the pipeline have them, and a way between topics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.pipeline.conftest import bootstrap, topic

__all__ = ["bootstrap", "topic"]

PARTITIONS = 2


class Route(NamedTuple):
    """A definition file, and what goes in and comes out."""

    file: Path
    name: str
    send: Callable[[range], None]
    arrived: Callable[[], Counter[bytes]]


@pytest.fixture
def route(bootstrap: str, topic: str, tmp_path: Path) -> Iterator[Route]:
    """From a topic to another one, every value with a mark."""
    out = f"{topic}-out"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(out, PARTITIONS, 1)])[out].result()
    file = tmp_path / "orders.toml"
    file.write_text(
        f"""\
name = "{topic}"
checkpoint = "checkpoint"
[source]
bootstrap = "{bootstrap}"
topics = ["{topic}"]
max_records_per_batch = 200
[transform]
sql = "SELECT key, concat('out ', CAST(value AS STRING)) AS value FROM records"
[[sinks]]
type = "kafka"
topic = "{out}"
[spark]
master = "local[2]"
"""
    )
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})

    def send(numbers: range) -> None:
        for number in numbers:
            producer.produce(topic, b"%d" % number, key=b"k%d" % number, partition=number % PARTITIONS)
        assert producer.flush(30) == 0

    yield Route(file, topic, send, lambda: _values(bootstrap, out))
    producer.flush(0)


def _values(bootstrap: str, topic: str) -> Counter[bytes]:
    """All that is committed in a topic, and how often."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "look",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    found: Counter[bytes] = Counter()
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        ended = 0
        while ended < PARTITIONS:
            message = consumer.poll(30)
            assert message is not None
            if message.error() is not None:
                ended += 1
            else:
                found[message.value() or b""] += 1
    finally:
        consumer.close()
    return found


def once_each(numbers: range) -> Counter[bytes]:
    return Counter(b"out %d" % number for number in numbers)
