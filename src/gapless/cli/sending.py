"""Sending with a receipt for every record: each one ends as acknowledged, failed, or still unknown."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from gapless.cli.connection import in_words, kafka_errors
from gapless.errors import GaplessError, UsageError

TOPIC_PATIENCE_S = 10.0
CREATION_PATIENCE_S = 1.5  # a cluster that creates topics on demand answers 'unknown' first


class Sending:
    """Counts what became of each record. A full queue makes `send` wait; nothing is dropped."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self.sent = 0
        self.acknowledged = 0
        self.failures: Counter[str] = Counter()

    @property
    def failed(self) -> int:
        return self.failures.total()

    @property
    def unknown(self) -> int:
        """Sent, and neither acknowledged nor failed (yet)."""
        return self.sent - self.acknowledged - self.failed

    def send(self, value: bytes | None, **where: Any) -> None:
        """Queue one record; `where` is key, headers, partition."""
        self.sent += 1
        while True:
            try:
                self._producer.produce(self._topic, value, on_delivery=self._on_delivery, **where)
                return
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:  # refused at once, e.g. larger than message.max.bytes
                self.failures[in_words(error.args[0])] += 1
                return

    def serve(self) -> None:
        """Collect the receipts that have arrived."""
        self._producer.poll(0)

    def wait(self, on_progress: Callable[[], None] | None = None) -> None:
        """Until every record has its receipt; message.timeout.ms of librdkafka (5 minutes) is the limit."""
        while self.unknown:
            self._producer.poll(0.1)
            if on_progress is not None:
                on_progress()

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failures[in_words(error)] += 1


def check_topic(producer: Producer, topic: str, partition: int | None) -> None:
    """Fail early and clearly when the topic or partition is not there; wait for one that is being created."""
    started_s = time.monotonic()
    while True:
        with kafka_errors(f"cannot send to {topic}"):
            found = producer.list_topics(topic, timeout=TOPIC_PATIENCE_S).topics[topic]
        if found.error is None:
            break
        missing = found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        may_come = missing or found.error.code() == KafkaError.LEADER_NOT_AVAILABLE
        patience_s = CREATION_PATIENCE_S if missing else TOPIC_PATIENCE_S
        if not may_come or time.monotonic() - started_s > patience_s:
            hint = f" (create it with: gapless topics create {topic})" if missing else ""
            raise GaplessError(f"cannot send to {topic}: {in_words(found.error)}{hint}")
        time.sleep(0.1)
    if partition is not None and partition not in found.partitions:
        raise UsageError(f"{topic} has no partition {partition}: it has 0 to {len(found.partitions) - 1}")
