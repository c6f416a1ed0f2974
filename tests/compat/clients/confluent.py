"""confluent-kafka: librdkafka, the client of most languages but Java."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from ..sample import Record, rich
from . import ANSWER_TIMEOUT_S, AS_IT_COMES, BrokerRefused, Deadline, Sending


class Confluent:
    """One short-lived librdkafka instance per call, as a program would have."""

    name = "confluent"
    sample = staticmethod(rich)

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        how: Sending = AS_IT_COMES,
        *,
        bootstrap: str | None = None,
    ) -> None:
        producer = Producer({"bootstrap.servers": bootstrap or self._bootstrap} | producer_properties(how))
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                failures.append(error)

        for record in records:
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                partition=record.partition,
                headers=list(record.headers),
                timestamp=record.timestamp_ms or 0,
                on_delivery=delivered,
            )
        left = producer.flush(ANSWER_TIMEOUT_S)
        if failures:
            raise refused(failures[0])
        if left:
            raise TimeoutError(f"{left} records not acknowledged")

    def read(self, topic: str, partition: int, start: int, count: int) -> list[Record]:
        found: list[Record] = []
        deadline = Deadline(f"{count} records of {topic}")
        with self.consumer() as consumer:
            consumer.assign([TopicPartition(topic, partition, start)])
            while len(found) < count and deadline.open():
                found.extend(as_record(message) for message in consumer.consume(count - len(found), 0.5))
        return found

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        deadline = Deadline(f"leader of {topic}")
        with self.consumer() as consumer:
            while deadline.open():
                try:
                    return consumer.get_watermark_offsets(TopicPartition(topic, partition), ANSWER_TIMEOUT_S)
                except KafkaException as error:
                    # Alone among its calls this one does not try again while a new topic finds its leader.
                    if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                        raise refused(error.args[0]) from error
        raise AssertionError

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        with self.consumer() as consumer:
            wanted = TopicPartition(topic, partition, timestamp_ms)
            (found,) = consumer.offsets_for_times([wanted], timeout=ANSWER_TIMEOUT_S)
        if found.error is not None:
            raise refused(found.error)
        return None if found.offset < 0 else int(found.offset)

    @contextmanager
    def consumer(self, **options: str) -> Iterator[Consumer]:
        """A consumer to assign. librdkafka wants a group's name even if the group is never joined."""
        properties = {
            "bootstrap.servers": self._bootstrap,
            "group.id": "never-joined",
            "enable.auto.commit": "false",
            "auto.offset.reset": "error",
        }
        consumer = Consumer(properties | {name.replace("_", "."): value for name, value in options.items()})
        try:
            yield consumer
        finally:
            consumer.close()


def producer_properties(how: Sending) -> dict[str, str]:
    """librdkafka's names for it; also kcat's."""
    wanted = {
        "acks": "all",
        "compression.type": how.compression,
        "enable.idempotence": None if how.idempotent is None else str(how.idempotent).lower(),
        "batch.size": how.batch_bytes,
        "message.max.bytes": how.request_bytes_max,
        "socket.timeout.ms": how.answer_timeout_ms,
        "request.timeout.ms": how.answer_timeout_ms,
        "reconnect.backoff.max.ms": 200,
    }
    return {name: str(value) for name, value in wanted.items() if value is not None}


def as_record(message: Message) -> Record:
    """What librdkafka delivered, or its error."""
    error = message.error()
    if error is not None:
        raise refused(error)
    _, timestamp_ms = message.timestamp()
    headers: Any = message.headers() or ()
    partition: Any = message.partition()
    return Record(message.value(), message.key(), tuple(headers), timestamp_ms, partition, message.offset())


def refused(error: KafkaError) -> Exception:
    """librdkafka's own errors have negative numbers, and are not the broker's."""
    return BrokerRefused(error.code(), error.str()) if error.code() > 0 else RuntimeError(error)
