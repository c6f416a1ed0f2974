"""confluent-kafka (librdkafka): the older protocol."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from ..clients import ANSWER_TIMEOUT_S
from . import Fenced

_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)


class ConfluentTransactor:
    name = "confluent"

    def __init__(
        self,
        bootstrap: str,
        transactional_id: str,
        timeout_ms: int,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        self._bootstrap = bootstrap
        self._answer_timeout_s = answer_timeout_s
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "linger.ms": 0,
                "reconnect.backoff.max.ms": 200,
                "metadata.recovery.strategy": "none",
            }
        )
        with _fencing():
            self._producer.init_transactions(ANSWER_TIMEOUT_S)

    def begin(self) -> None:
        with _fencing():
            self._producer.begin_transaction()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        with _fencing():
            self._producer.produce(topic, value=value, partition=partition)

    def flush(self) -> None:
        self._producer.flush(ANSWER_TIMEOUT_S)

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": group})
        try:
            metadata = consumer.consumer_group_metadata()
            offsets = [TopicPartition(topic, partition, offset)]
            with _fencing():
                self._producer.send_offsets_to_transaction(offsets, metadata, ANSWER_TIMEOUT_S)
        finally:
            consumer.close()

    def commit(self) -> None:
        with _fencing():
            self._producer.commit_transaction(self._answer_timeout_s)

    def abort(self) -> None:
        with _fencing():
            self._producer.abort_transaction(self._answer_timeout_s)

    def close(self) -> None:
        del self._producer


@contextmanager
def _fencing() -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        cause = error.args[0]
        if cause.code() in _FENCED or (cause.fatal() and "fence" in cause.str().lower()):
            raise Fenced(cause.str()) from error
        raise
