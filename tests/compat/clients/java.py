"""Apache's Java client, driven through py4j: 4.3 from Kafka's jars, 3.9 from those of Spark's connector."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError

from ..sample import Record, rich
from . import ANSWER_TIMEOUT_S, AS_IT_COMES, BrokerRefused, Deadline, Sending

_BYTES = "org.apache.kafka.common.serialization.ByteArray"


class JavaClient:
    """`jvm` is py4j's view of a machine with the client's jars."""

    sample = staticmethod(rich)

    def __init__(self, name: str, jvm: Any, bootstrap: str) -> None:
        self.name = name
        self.jvm = jvm
        self._bootstrap = bootstrap

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        how: Sending = AS_IT_COMES,
        *,
        bootstrap: str | None = None,
    ) -> None:
        settings = {"bootstrap.servers": bootstrap or self._bootstrap} | _producer_settings(how)
        clients = self.jvm.org.apache.kafka.clients.producer
        producer = clients.KafkaProducer(self.properties(settings))
        with translated_errors(self.jvm):
            try:
                sent = [producer.send(self._outgoing(topic, record)) for record in records]
                for future in sent:
                    future.get(int(ANSWER_TIMEOUT_S), self.jvm.java.util.concurrent.TimeUnit.SECONDS)
            finally:
                producer.close(self.duration(2_000))

    def read(self, topic: str, partition: int, start: int, count: int) -> list[Record]:
        found: list[Record] = []
        deadline = Deadline(f"{count} records of {topic}")
        place = self.place(topic, partition)
        with self.consumer() as consumer:
            consumer.assign([place])
            consumer.seek(place, start)
            while len(found) < count and deadline.open():
                polled = consumer.poll(self.duration(500)).records(place)
                found.extend(as_record(message) for message in polled)
        return found[:count]

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        place = self.place(topic, partition)
        with self.consumer() as consumer:
            return consumer.beginningOffsets([place])[place], consumer.endOffsets([place])[place]

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        place = self.place(topic, partition)
        with self.consumer() as consumer:
            found = consumer.offsetsForTimes({place: timestamp_ms})[place]
        return None if found is None else int(found.offset())

    @contextmanager
    def consumer(self, **options: str) -> Iterator[Any]:
        """A consumer to assign, in no group."""
        settings = {
            "bootstrap.servers": self._bootstrap,
            "key.deserializer": f"{_BYTES}Deserializer",
            "value.deserializer": f"{_BYTES}Deserializer",
            "enable.auto.commit": "false",
            "auto.offset.reset": "none",
            "fetch.max.wait.ms": "50",  # close() waits for the fetch that is under way
        } | {name.replace("_", "."): value for name, value in options.items()}
        consumer = self.jvm.org.apache.kafka.clients.consumer.KafkaConsumer(self.properties(settings))
        with translated_errors(self.jvm):
            try:
                yield consumer
            finally:
                consumer.close()

    def properties(self, settings: dict[str, str]) -> Any:
        properties = self.jvm.java.util.Properties()
        for name, value in settings.items():
            properties.setProperty(name, value)
        return properties

    def place(self, topic: str, partition: int) -> Any:
        return self.jvm.org.apache.kafka.common.TopicPartition(topic, partition)

    def duration(self, duration_ms: int) -> Any:
        return self.jvm.java.time.Duration.ofMillis(duration_ms)

    def _outgoing(self, topic: str, record: Record) -> Any:
        message = self.jvm.org.apache.kafka.clients.producer.ProducerRecord(
            topic, record.partition, record.timestamp_ms, record.key, record.value
        )
        for name, value in record.headers:
            message.headers().add(name, value)
        return message


@contextmanager
def translated_errors(jvm: Any) -> Iterator[None]:
    """Kafka's Java exceptions as the error numbers that they stand for."""
    try:
        yield
    except Py4JJavaError as error:
        cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        code = jvm.org.apache.kafka.common.protocol.Errors.forException(cause).code()
        if code == -1:
            raise
        raise BrokerRefused(code, cause.toString()) from error


def as_record(message: Any) -> Record:
    """What the Java client delivered."""
    headers = tuple((header.key(), header.value()) for header in message.headers().toArray())
    return Record(
        message.value(), message.key(), headers, message.timestamp(), message.partition(), message.offset()
    )


def _producer_settings(how: Sending) -> dict[str, str]:
    timeout_ms = how.answer_timeout_ms
    wanted = {
        "key.serializer": f"{_BYTES}Serializer",
        "value.serializer": f"{_BYTES}Serializer",
        "acks": "all",
        "linger.ms": 5,
        "compression.type": how.compression,
        "enable.idempotence": None if how.idempotent is None else str(how.idempotent).lower(),
        "batch.size": how.batch_bytes,
        "max.request.size": how.request_bytes_max,
        "request.timeout.ms": timeout_ms,
    }
    return {name: str(value) for name, value in wanted.items() if value is not None}
