"""The producer's side: send numbered records idempotently, keep the receipt of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from confluent_kafka import KafkaError, Message, Producer

from gapless.demo.numbered import DIGITS, Sightings, number_of, value_of
from gapless.testing.quiet import quiet_logger

SERVE_EVERY = 500


class Sender:
    """Sends the numbers 0 to `records` - 1 and knows which of them were acknowledged, and where."""

    def __init__(self, bootstrap: str, topic: str, records: int, size_bytes: int) -> None:
        self._topic = topic
        self._records = records
        self._filler = b"." * (size_bytes - DIGITS)
        self.receipts = Sightings()
        self.failures: Counter[str] = Counter()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "queue.buffering.max.messages": 100_000,
                # A broker that is back after a second should not be left alone for ten.
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 500,
                "on_delivery": self._on_delivery,
                "logger": quiet_logger(),
            }
        )

    @property
    def waiting(self) -> int:
        """Handed to the producer, and without a receipt yet."""
        return len(self._producer)

    def send_all(self, on_progress: Callable[[int], None]) -> None:
        """Send everything and wait for the last receipt; `on_progress` hears how many were acknowledged."""
        for number in range(self._records):
            while not self._send(value_of(number, self._filler)):
                self._producer.poll(0.05)  # full: wait for receipts to make room
                on_progress(len(self.receipts))
            if number % SERVE_EVERY == 0:
                self._producer.poll(0)
                on_progress(len(self.receipts))
        while self.waiting:
            self._producer.poll(0.1)
            on_progress(len(self.receipts))

    def _send(self, value: bytes) -> bool:
        try:
            self._producer.produce(self._topic, value)
        except BufferError:
            return False
        return True

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures[error.str()] += 1
            return
        value, partition, offset = message.value(), message.partition(), message.offset()
        if value is None or partition is None or offset is None:
            self.failures["a receipt without value, partition or offset"] += 1
            return
        self.receipts.add(number_of(value), partition, offset)
