"""The table of "Choosing semantics", for brokers that die and answers that get lost, counted at the effect.

What crashes do is shown elsewhere: of producers in producing/test_{direct,fallback,crashes}.py, of
consumers in consuming/test_crashes.py. Rows that differ only in their consumer are here once: neither fault
reaches it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gapless.client import Consumer, Producer, SqliteStore
from gapless.client.records import Record
from tests.client.conftest import Kafka, new_topic, read_all
from tests.client.producing.dying import send_and_die

RECORDS = 60
QUICK = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    # How long a lost answer is waited for.
    "request.timeout.ms": 2_000,
    "socket.timeout.ms": 2_000,
}


class Row(NamedTuple):
    """A row of the table, and what the two columns say."""

    producer: str
    spool_mode: str | None
    consumer: str
    may_lose: bool = False
    may_repeat: bool = False

    def __str__(self) -> str:
        return f"{self.producer}-{self.spool_mode}-{self.consumer}"


ROWS = [
    Row("at-most-once", None, "at-most-once", may_lose=True),
    Row("at-least-once", None, "at-least-once"),
    Row("at-least-once", "fallback", "at-least-once", may_repeat=True),
    Row("at-least-once", "always", "exactly-once"),
    Row("exactly-once", "always", "exactly-once"),
]


def produce(kafka: Kafka, topic: str, row: Row, folder: Path, fault: str) -> None:
    options: dict[str, Any] = {"backoff_ms": 50, "seal_every_s": 0, "properties": QUICK}
    if row.spool_mode is not None:
        options |= {"spool": folder / "spool", "spool_mode": row.spool_mode}
    if row.producer != "at-most-once":
        options |= {"retries": 20}
    with Producer(kafka.bootstrap, topic, row.producer, **options) as producer:
        producer.send(topic, b"first", wait=True)
        for number in range(RECORDS):
            if number == RECORDS // 3 and fault == "an answer is lost":
                kafka.lose_acks(1)
            elif number == RECORDS // 3:
                kafka.cluster.kill(kafka.cluster.leader(topic))
            producer.send(topic, b"%d" % number)
        assert producer.flush(60) == 0, producer.problem
    kafka.repair()
    with Producer(kafka.bootstrap, "the-end", seal_every_s=0, properties=QUICK) as producer:
        producer.send(topic, b"end", wait=True)


def effects(kafka: Kafka, topic: str, row: Row, folder: Path) -> Counter[bytes]:
    """What a consumer does with all records of the topic."""
    seen: list[bytes] = []

    def act(record: Record, _transaction: object = None) -> None:
        seen.append(record.value or b"")
        if record.value == b"end":
            consumer.stop()

    store = SqliteStore(folder / "effects.db") if row.consumer == "exactly-once" else None
    consumer = Consumer(kafka.bootstrap, group=topic, topics=topic, semantics=row.consumer, store=store)
    consumer.run(act)
    return Counter(seen)


def test_what_a_dead_producer_repeats_is_done_once(kafka: Kafka, tmp_path: Path) -> None:
    """Spool `always` and an exactly-once consumer: the topic has records twice, effects are once."""
    topic = new_topic(kafka)
    options: dict[str, Any] = {
        "spool": str(tmp_path / "spool"),
        "spool_mode": "always",
        "seal_every_s": 0,
        "properties": QUICK,
    }
    send_and_die(kafka, topic, "noting", 10, **options)
    with Producer(kafka.bootstrap, "dying", **options) as producer:
        assert producer.flush(60) == 0
        producer.send(topic, b"end", wait=True)
    found = effects(kafka, topic, ROWS[3], tmp_path)
    assert len(read_all(kafka, topic)) > len(found) == found.total() == 12


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_an_answer_is_lost(kafka: Kafka, tmp_path: Path, row: Row) -> None:
    check(kafka, tmp_path, row, "an answer is lost")


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_broker_dies(embedded: Kafka, tmp_path: Path, row: Row) -> None:
    """On the embedded cluster, which has three; the Apache Kafka of the tests is one broker."""
    check(embedded, tmp_path, row, "a broker dies")


def check(kafka: Kafka, folder: Path, row: Row, fault: str) -> None:
    topic = new_topic(kafka)
    produce(kafka, topic, row, folder, fault)
    found = effects(kafka, topic, row, folder)
    expected = {b"first", b"end", *(b"%d" % number for number in range(RECORDS))}
    assert set(found) <= expected
    if not row.may_lose:
        assert set(found) == expected
    if not row.may_repeat:
        assert max(found.values()) == 1
