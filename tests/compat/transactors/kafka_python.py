"""kafka-python: the older protocol."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kafka import KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.errors import InvalidProducerEpochError, ProducerFencedError

from ..clients import ANSWER_TIMEOUT_S
from . import Fenced


class KafkaPythonTransactor:
    name = "kafka-python"

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            acks="all",
        )
        self._sent: list[Any] = []
        with _fencing():
            self._producer.init_transactions()

    def begin(self) -> None:
        with _fencing():
            self._producer.begin_transaction()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        with _fencing():
            self._sent.append(self._producer.send(topic, value=value, partition=partition))

    def flush(self) -> None:
        with _fencing():
            for future in self._sent:
                future.get(timeout=ANSWER_TIMEOUT_S)
        self._sent.clear()

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        offsets = {TopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1)}
        with _fencing():
            self._producer.send_offsets_to_transaction(offsets, group)

    def commit(self) -> None:
        with _fencing():
            self._producer.commit_transaction()

    def abort(self) -> None:
        with _fencing():
            self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=0)


@contextmanager
def _fencing() -> Iterator[None]:
    try:
        yield
    except (ProducerFencedError, InvalidProducerEpochError) as error:
        raise Fenced(str(error)) from error
