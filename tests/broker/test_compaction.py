"""A running broker compacts while it serves: clients find the last value of each key."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from gapless.testing.broker import EmbeddedBroker

TOPIC = "table"
DEADLINE_S = 60.0


def read_all(broker: EmbeddedBroker) -> list[tuple[int, bytes, bytes | None]]:
    """Everything in the topic, by a consumer that begins at offset 0."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "any", "enable.partition.eof": True}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found = []
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            break
        found.append((message.offset() or 0, message.key() or b"", message.value()))
    consumer.close()
    return found


def wait_until_compacted(broker: EmbeddedBroker, at_most: int) -> list[tuple[int, bytes, bytes | None]]:
    """Wait until no more records than that are left, and return them.

    A pass that starts while records are still written compacts only the segments that exist by then.
    """
    deadline = time.monotonic() + DEADLINE_S
    while len(found := read_all(broker)) > at_most:
        assert time.monotonic() < deadline, f"{len(found)} records are left\n{broker.last_words()}"
    return found


def test_a_broker_compacts_while_it_serves_and_survives_being_killed() -> None:
    with EmbeddedBroker(config={"log.cleaner.backoff.ms": "100"}) as broker:
        configs = {"cleanup.policy": "compact", "segment.bytes": "20000", "min.cleanable.dirty.ratio": "0.01"}
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=configs)])[TOPIC].result()
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "batch.size": 2000}
        )
        for i in range(3000):
            producer.produce(TOPIC, key=f"k{i % 10}", value=f"value {i}")
        producer.flush()
        compacted = wait_until_compacted(broker, 1999)
        offsets = [offset for offset, _, _ in compacted]
        assert offsets == sorted(offsets)
        newest = {key: value for _, key, value in compacted}
        assert newest == {b"k%d" % (i % 10): b"value %d" % i for i in range(2990, 3000)}
        producer.produce(TOPIC, key="k0", value="after")
        producer.flush()
        broker.kill()
        broker.restart()
        again = {key: value for _, key, value in read_all(broker)}
        assert again == {**newest, b"k0": b"after"}
