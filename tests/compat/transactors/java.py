"""Apache's Java producer: 4.3 speaks the newer protocol if the broker offers it, 3.9 the older one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError

from ..clients.java import JavaClient
from . import Fenced

_FENCED = ("ProducerFencedException", "InvalidProducerEpochException")
_BYTES = "org.apache.kafka.common.serialization.ByteArraySerializer"


class JavaTransactor:
    def __init__(self, client: JavaClient, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._client = client
        settings = {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": str(timeout_ms),
            "key.serializer": _BYTES,
            "value.serializer": _BYTES,
        }
        clients = client.jvm.org.apache.kafka.clients
        self._clients = clients
        self._producer = clients.producer.KafkaProducer(client.properties(settings))
        self._sent: list[Any] = []
        with _fencing():
            self._producer.initTransactions()

    def begin(self) -> None:
        with _fencing():
            self._producer.beginTransaction()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        record = self._clients.producer.ProducerRecord(topic, partition, None, None, value)
        with _fencing():
            self._sent.append(self._producer.send(record))

    def flush(self) -> None:
        with _fencing():
            self._producer.flush()
            for future in self._sent:
                future.get()
        self._sent.clear()

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        offsets = {
            self._client.place(topic, partition): self._clients.consumer.OffsetAndMetadata(offset),
        }
        metadata = self._clients.consumer.ConsumerGroupMetadata(group)
        with _fencing():
            self._producer.sendOffsetsToTransaction(offsets, metadata)

    def commit(self) -> None:
        with _fencing():
            self._producer.commitTransaction()

    def abort(self) -> None:
        with _fencing():
            self._producer.abortTransaction()

    def close(self) -> None:
        self._producer.close(self._client.duration(0))


@contextmanager
def _fencing() -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        cause = error.java_exception
        while cause is not None:
            if cause.getClass().getSimpleName() in _FENCED:
                raise Fenced(cause.toString()) from error
            cause = cause.getCause()
        raise
