"""Clients that run for long: an exactly-once job, and readers that remember all that they were ever shown."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from gapless.testing import Cluster
from tests.cluster.workload import IMPATIENT, PATIENCE_S, Record, client, place_of

BATCH = 50


class Runner:
    """A thread that repeats its work until it is told to stop. Its failure is kept for whoever asks."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.work()
        except BaseException as error:
            self.failure = error
        finally:
            self.end()

    def work(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        raise NotImplementedError


class Reader(Runner):
    """Reads a topic's partitions as they grow, and keeps what it was shown."""

    def __init__(self, cluster: Cluster, topic: str, partitions: int, **settings: Any) -> None:
        super().__init__()
        self.seen: list[Record] = []
        self._consumer = Consumer(
            {**IMPATIENT_READER, **client(cluster, group_id="watchers", enable_auto_commit=False, **settings)}
        )
        self._consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])

    def work(self) -> None:
        for message in self._consumer.consume(BATCH, 0.1):
            if message.error() is None:
                self.seen.append(place_of(message))

    def end(self) -> None:
        self._consumer.close()


class Job(Runner):
    """Copies a topic to another, partition by partition, in transactions together with its own offsets.

    The key of a copy names its transaction and how many records that one has, so that half a transaction
    shows. After any error it begins anew from the committed offsets, as a restarted process would.
    """

    def __init__(
        self, cluster: Cluster, source: str, target: str, name: str = "job", **consumer_settings: Any
    ) -> None:
        super().__init__()
        self.committed = 0
        self.restarts: list[str] = []
        self._cluster = cluster
        self._source, self._target, self._name = source, target, name
        self._consumer_settings = consumer_settings
        self._attempts = 0
        self._clients: tuple[Consumer, Producer] | None = None

    def work(self) -> None:
        try:
            if self._clients is None:
                self._clients = self._begin()
            self._copy(*self._clients)
        except KafkaException as error:
            self.restarts.append(str(error.args[0]))
            self.end()

    def end(self) -> None:
        if self._clients is not None:
            consumer, producer = self._clients
            self._clients = None
            with suppress(KafkaException):  # a producer that has failed fatally says so again
                producer.purge()
                producer.flush(0)
            consumer.close()

    def _begin(self) -> tuple[Consumer, Producer]:
        reading = client(
            self._cluster,
            group_id=self._name,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            **self._consumer_settings,
        )
        writing = client(
            self._cluster, transactional_id=self._name, transaction_timeout_ms=15_000, linger_ms=0
        )
        producer = Producer({**IMPATIENT, **writing})
        producer.init_transactions(PATIENCE_S)
        consumer = Consumer({**IMPATIENT_READER, **reading})
        consumer.subscribe([self._source])
        return consumer, producer

    def _copy(self, consumer: Consumer, producer: Producer) -> None:
        messages = [each for each in consumer.consume(BATCH, 0.2) if each.error() is None]
        if not messages:
            return
        self._attempts += 1
        producer.begin_transaction()
        for message in messages:
            key = b"%d/%d" % (self._attempts, len(messages))
            producer.produce(self._target, message.value(), key, message.partition() or 0)
        offsets = _positions_after(messages)
        _with_retries(
            lambda: producer.send_offsets_to_transaction(
                offsets, consumer.consumer_group_metadata(), PATIENCE_S
            )
        )
        _with_retries(lambda: producer.commit_transaction(PATIENCE_S))
        self.committed += 1


IMPATIENT_READER = {
    key: value for key, value in IMPATIENT.items() if not key.startswith(("request.timeout", "retry."))
} | {"fetch.wait.max.ms": 100, "retry.backoff.ms": 10}


def _positions_after(messages: list[Message]) -> list[TopicPartition]:
    last = {(message.topic(), message.partition()): message.offset() for message in messages}
    return [
        TopicPartition(topic or "", partition or 0, (offset or 0) + 1)
        for (topic, partition), offset in last.items()
    ]


def _with_retries(call: Callable[[], object]) -> None:
    """As librdkafka asks: what it calls retriable is called again, anything else ends this transaction."""
    for attempt in range(10):
        try:
            call()
            return
        except KafkaException as error:
            if not error.args[0].retriable() or attempt == 9:
                raise


def half_transactions(copies: list[Record]) -> list[str]:
    """Transactions of which a reader of committed records sees some records and not all."""
    counts: dict[bytes, int] = {}
    for record in copies:
        counts[record.key] = counts.get(record.key, 0) + 1
    return [
        f"{count} of the records of transaction {key.decode()} can be read"
        for key, count in counts.items()
        if count != int(key.partition(b"/")[2])
    ]
