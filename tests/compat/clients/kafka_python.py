"""kafka-python: the pure Python client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import BrokerResponseError

from ..sample import Record, rich_without_null_headers
from . import ANSWER_TIMEOUT_S, AS_IT_COMES, BrokerRefused, Deadline, Sending


class KafkaPython:
    name = "kafka-python"
    sample = staticmethod(rich_without_null_headers)

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
        producer = KafkaProducer(bootstrap_servers=bootstrap or self._bootstrap, **_producer_settings(how))
        try:
            sent = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            for future in sent:
                future.get(timeout=ANSWER_TIMEOUT_S)
        except BrokerResponseError as error:
            raise BrokerRefused(error.errno, error) from error
        finally:
            producer.close()

    def read(self, topic: str, partition: int, start: int, count: int) -> list[Record]:
        found: list[Record] = []
        deadline = Deadline(f"{count} records of {topic}")
        place = TopicPartition(topic, partition)
        with self.consumer() as consumer:
            consumer.assign([place])
            consumer.seek(place, start)
            while len(found) < count and deadline.open():
                polled = consumer.poll(timeout_ms=500, max_records=count - len(found))
                found.extend(as_record(message) for message in polled.get(place, ()))
        return found

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        with self.consumer() as consumer:
            return consumer.beginning_offsets([place])[place], consumer.end_offsets([place])[place]

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        place = TopicPartition(topic, partition)
        with self.consumer() as consumer:
            found = consumer.offsets_for_times({place: timestamp_ms})[place]
        return None if found is None else int(found.offset)

    @contextmanager
    def consumer(self, **options: object) -> Iterator[Any]:
        """A consumer to assign, in no group."""
        settings = {"group_id": None, "enable_auto_commit": False, "auto_offset_reset": "none"} | options
        consumer = KafkaConsumer(bootstrap_servers=self._bootstrap, **settings)
        try:
            yield consumer
        except BrokerResponseError as error:
            raise BrokerRefused(error.errno, error) from error
        finally:
            consumer.close()


def _producer_settings(how: Sending) -> dict[str, object]:
    wanted = {
        "acks": "all",
        "compression_type": None if how.compression == "none" else how.compression,
        "enable_idempotence": how.idempotent,
        "batch_size": how.batch_bytes,
        "max_request_size": how.request_bytes_max,
        "request_timeout_ms": how.answer_timeout_ms,
    }
    return {name: value for name, value in wanted.items() if value is not None}


def as_record(message: Any) -> Record:
    """What kafka-python delivered."""
    headers = tuple((name, value) for name, value in message.headers)
    return Record(message.value, message.key, headers, message.timestamp, message.partition, message.offset)
