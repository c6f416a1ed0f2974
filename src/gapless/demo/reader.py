"""An independent look at the topic: every record up to its end, by a plain consumer."""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from gapless.demo.numbered import Sightings, number_of
from gapless.errors import Unreachable
from gapless.testing.quiet import quiet_logger

SILENCE_S = 30.0


def end_offsets(consumer: Consumer, topic: str) -> dict[int, int]:
    """Where each partition ends now."""
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    return {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1] for p in partitions}


def new_consumer(bootstrap: str) -> Consumer:
    """A consumer for assignment, tuned for many small records."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "gapless-demo",  # the API insists on one; no group is joined
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "fetch.queue.backoff.ms": 5,
            "logger": quiet_logger(),
        }
    )


def read_all(
    consumer: Consumer, topic: str, ends: dict[int, int], on_progress: Callable[[int], None]
) -> Sightings:
    """Every record before `ends`."""
    seen = Sightings()
    open_partitions = {partition for partition, end in ends.items() if end > 0}
    consumer.assign([TopicPartition(topic, partition, 0) for partition in open_partitions])
    heard_s = time.monotonic()
    while open_partitions:
        messages = consumer.consume(10_000, timeout=0.5)
        if messages:
            heard_s = time.monotonic()
        elif time.monotonic() - heard_s > SILENCE_S:
            raise Unreachable(f"the broker has not answered for {SILENCE_S:.0f} s while {topic} was read")
        for message in messages:
            partition, offset, error = message.partition(), message.offset(), message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            if partition is None or offset is None:
                continue
            if error is None:
                seen.add(number_of(message.value() or b""), partition, offset)
                offset += 1
            if offset >= ends[partition]:
                open_partitions.discard(partition)
        on_progress(len(seen))
    return seen
