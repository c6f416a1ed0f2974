"""Claim C8 on a broker that is killed: in the middle of transactions, at random, and while it commits."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from gapless.testing.broker import EmbeddedBroker

from .clients import ANSWER_TIMEOUT_S, Deadline, eventually
from .clients.java import JavaClient
from .isolation import values
from .transactors import Fenced, Transactor
from .transactors.confluent import ConfluentTransactor
from .transactors.java import JavaTransactor

RECORDS = 2000
PER_TRANSACTION = 20
CRASH_AFTER = (20, 300, 500, 800, 1300, 1700)
# librdkafka 2.16 forgets all brokers when its only one is down, but goes on to send a group's offsets to the
# one that it has forgotten, without an answer ever.
PATIENT: dict[str, str | int | float | bool] = {
    "metadata.recovery.strategy": "none",
    "reconnect.backoff.max.ms": 100,
}
CALL_TIMEOUT_S = 10.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "data") as running:
        yield running


def create(broker: EmbeddedBroker, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic(topic, 2, 1) for topic in topics]).values():
        future.result(ANSWER_TIMEOUT_S)


def crash(broker: EmbeddedBroker) -> None:
    broker.kill()
    broker.start()


def transactors(request: pytest.FixtureRequest, name: str, broker: EmbeddedBroker) -> Transactor:
    if name == "confluent":
        return ConfluentTransactor(broker.bootstrap, "x", 60_000)
    machine = request.getfixturevalue(name.replace("-", "_").replace(".", "_"))
    client = JavaClient(name, machine, broker.bootstrap)
    return JavaTransactor(client, broker.bootstrap, "x", 60_000)


@pytest.mark.parametrize("name", ["confluent", "java-4.3", "java-3.9"])
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_goes_on_after_a_crash_of_the_broker(
    request: pytest.FixtureRequest, name: str, commit: bool, broker: EmbeddedBroker
) -> None:
    create(broker, "t")
    transactor = transactors(request, name, broker)
    try:
        transactor.begin()
        transactor.send("t", 0, b"before")
        transactor.flush()
        crash(broker)
        transactor.send("t", 1, b"after")
        transactor.flush()
        if commit:
            transactor.commit()
        else:
            transactor.abort()
    finally:
        transactor.close()
    for partition, value in ((0, b"before"), (1, b"after")):
        expected = [value] if commit else []
        eventually(partial(values, broker.bootstrap, "t", partition), expected)


def test_a_transaction_that_was_open_at_the_crash_is_aborted_by_the_successor(broker: EmbeddedBroker) -> None:
    create(broker, "t")
    first = ConfluentTransactor(broker.bootstrap, "x", 60_000)
    first.begin()
    first.send("t", 0, b"left open")
    first.flush()
    crash(broker)
    second = ConfluentTransactor(broker.bootstrap, "x", 60_000)
    second.begin()
    second.send("t", 0, b"goes on")
    second.commit()
    eventually(lambda: values(broker.bootstrap, "t"), [b"goes on"])


# ------------------------------------------------------------------------- consume, transform, produce


class Copier:
    """Carries records to another topic, its position in the same transaction; restarted when it fails."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.copied = 0
        self.attempts = 0

    def run(self, records: int) -> None:
        deadline = Deadline(f"copies of {records} records", 120)
        while self.copied < records and deadline.open():
            self.attempts += 1
            try:
                self._session(records, deadline)
            except KafkaException as error:
                if error.args[0].code() == KafkaError._INVALID_ARG:
                    raise

    def _session(self, records: int, deadline: Deadline) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": "copier",
                "transaction.timeout.ms": 10_000,
            }
            | PATIENT
        )
        producer.init_transactions(CALL_TIMEOUT_S)
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "copier",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
            | PATIENT
        )
        try:
            (position,) = consumer.committed([TopicPartition("source", 0)], CALL_TIMEOUT_S)
            self.copied = max(0, position.offset)
            consumer.assign([TopicPartition("source", 0, self.copied)])
            while self.copied < records and deadline.open():
                self._transaction(producer, consumer)
        finally:
            consumer.close()

    def _transaction(self, producer: Producer, consumer: Consumer) -> None:
        messages = [message for message in consumer.consume(PER_TRANSACTION, 1.0) if message.error() is None]
        if not messages:
            return
        following = (messages[-1].offset() or 0) + 1
        producer.begin_transaction()
        try:
            for message in messages:
                producer.produce("target", value=message.value(), partition=int(message.value() or 0) % 2)
            offsets = [TopicPartition("source", 0, following)]
            metadata = consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction(offsets, metadata, CALL_TIMEOUT_S)
            producer.commit_transaction(CALL_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].txn_requires_abort():
                producer.abort_transaction(CALL_TIMEOUT_S)
            raise
        self.copied = following


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_while_the_broker_is_killed_at_random(broker: EmbeddedBroker) -> None:
    create(broker, "source", "target")
    feeder = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for number in range(RECORDS):
        feeder.produce("source", value=b"%d" % number, partition=0)
    assert feeder.flush(ANSWER_TIMEOUT_S) == 0
    copier = Copier(broker.bootstrap)
    thread = threading.Thread(target=copier.run, args=(RECORDS,))
    thread.start()
    chance = random.Random(4)
    for copied in CRASH_AFTER:
        while copier.copied < copied and thread.is_alive():
            time.sleep(chance.uniform(0.001, 0.02))
        crash(broker)
    thread.join(150)
    assert copier.copied == RECORDS
    for partition in (0, 1):
        expected = [b"%d" % number for number in range(partition, RECORDS, 2)]
        eventually(partial(values, broker.bootstrap, "target", partition), expected)


def write_until_it_fails(broker: EmbeddedBroker, first: int, kill_after_s: float) -> int:
    """Transactions that write their number to both partitions; the next number."""
    transactor = ConfluentTransactor(broker.bootstrap, "x", 60_000, answer_timeout_s=0.5)
    killer = threading.Timer(kill_after_s, broker.kill)
    killer.start()
    number = first
    try:
        while broker.running:
            transactor.begin()
            for partition in (0, 1):
                transactor.send("t", partition, b"%d" % number)
            number += 1
            transactor.commit()
    except (KafkaException, Fenced):
        return number
    finally:
        killer.join()
        transactor.close()
    return number


def test_a_crash_at_any_moment_of_many_transactions_tears_none(broker: EmbeddedBroker) -> None:
    create(broker, "t")
    chance = random.Random(5)
    number = 0
    for _ in range(6):
        number = write_until_it_fails(broker, number, chance.uniform(0.05, 0.3))
        broker.start()
    successor = ConfluentTransactor(broker.bootstrap, "x", 60_000)
    successor.begin()
    for partition in (0, 1):
        successor.send("t", partition, b"last")
    successor.commit()
    eventually(lambda: values(broker.bootstrap, "t", 0)[-1:], [b"last"])
    shown = values(broker.bootstrap, "t", 0)
    assert shown == values(broker.bootstrap, "t", 1)
    assert len(shown) == len(set(shown))
    assert len(shown) > 2
