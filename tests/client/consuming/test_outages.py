"""A store that goes away for a while: the consumer waits for it, keeps its membership, and ends when told."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gapless.client.consuming.consumer import Consumer
from gapless.client.consuming.failures import DeadLetters
from gapless.client.records import Record
from gapless.client.stores.port import StoreUnavailable
from gapless.client.stores.sqlite import SqliteStore
from gapless.errors import UsageError
from gapless.testing.postgres import Postgres
from tests.client.conftest import Kafka, new_topic, read_all, wait_for
from tests.client.consuming.helpers import member_ids, values, write
from tests.client.consuming.test_consumer import consumer_of, written
from tests.client.processes.common import stop_at_end

LONGER_THAN_ALL_RETRIES_S = 2.5


@contextmanager
def in_background(consumer: Consumer, handler: Any) -> Iterator[threading.Thread]:
    """Run, and raise what it raised."""
    raised: list[Exception] = []

    def run() -> None:
        try:
            consumer.run(handler)
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield thread
        thread.join(30)
    finally:
        consumer.stop()
        thread.join(30)
    if raised:
        raise raised[0]


@contextmanager
def blocked(path: Path) -> Iterator[None]:
    """Another program writes to the file, for ever so long."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        other.execute("BEGIN IMMEDIATE")
        yield
    finally:
        other.close()


def insert(record: Record, tx: Any) -> None:
    tx.execute("INSERT INTO effects VALUES (?)", (record.value,))


def effects(path: Path) -> list[bytes]:
    with sqlite3.connect(path) as connection:
        return [value for (value,) in connection.execute("SELECT value FROM effects ORDER BY value")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE effects (value BLOB)")
    connection.close()
    return path


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name == "gapless.client.consuming.outages"
    ]


@pytest.mark.postgres
def test_a_postgresql_that_is_restarted_stops_nobody(
    embedded: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    import psycopg

    from gapless.client.stores.postgres import PostgresStore

    topic = written(embedded, 400)
    seen = threading.Event()

    def handle(record: Record, tx: Any) -> None:
        tx.execute("INSERT INTO effects VALUES (%s)", (record.value,))
        if record.offset > 50:
            seen.set()
            time.sleep(0.002)

    with Postgres() as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE effects (value BYTEA)")
        store = PostgresStore(server.dsn)
        consumer = consumer_of(embedded, topic, semantics="exactly-once", store=store, batch_records=20)
        with in_background(consumer, handle):
            assert seen.wait(30)
            server.stop()
            time.sleep(LONGER_THAN_ALL_RETRIES_S)
            server.start()
            stop_at_end(consumer)
        with psycopg.connect(server.dsn) as connection:
            found = connection.execute("SELECT value FROM effects ORDER BY value").fetchall()
    assert [bytes(value) for (value,) in found] == values(400)
    assert len(warnings_of(caplog)) == 2, "one line when it went, one when it was back"


def test_an_sqlite_file_that_another_program_holds_is_waited_for(
    embedded: Kafka, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also for taking partitions: the store is away when the group shares them out."""
    topic = written(embedded, 60, partitions=3)
    waits = threading.Event()

    class Watched(SqliteStore):
        def take(self, *arguments: Any) -> Any:
            if not waits.is_set():
                waits.set()
                blocking.__enter__()
            return super().take(*arguments)

    blocking = blocked(path)
    store = Watched(path, busy_timeout_s=0.05)
    consumer = consumer_of(embedded, topic, semantics="exactly-once", store=store)
    with in_background(consumer, insert):
        assert waits.wait(30)
        time.sleep(LONGER_THAN_ALL_RETRIES_S)
        assert effects(path) == []
        blocking.__exit__(None, None, None)
        stop_at_end(consumer)
    assert effects(path) == values(60)
    told = Counter(line.split(":")[0] for line in warnings_of(caplog) if "waits" in line)
    assert set(told.values()) == {1}, "at most one line for each partition that waits"


def test_a_consumer_that_waits_for_its_store_still_stops_at_once(embedded: Kafka, path: Path) -> None:
    topic = written(embedded, 100)
    store = SqliteStore(path, busy_timeout_s=0.05)
    consumer = consumer_of(embedded, topic, semantics="exactly-once", store=store, batch_records=1)
    begun = threading.Event()

    def handle(record: Record, tx: Any) -> None:
        insert(record, tx)
        if record.offset == 20:
            begun.set()
        time.sleep(0.005)

    with in_background(consumer, handle) as thread:
        assert begun.wait(30)
        with blocked(path):
            time.sleep(0.5)
            stopped_at = time.monotonic()
            consumer.stop()
            thread.join(20)
            assert time.monotonic() - stopped_at < 15, "of the minute that it would wait"
    done = effects(path)
    assert done == values(len(done))
    again = consumer_of(embedded, topic, semantics="exactly-once", store=SqliteStore(path))
    stop_at_end(again)
    again.run(insert)
    assert effects(path) == values(100)


@pytest.mark.parametrize("when", ["taking", "applying"])
def test_a_store_that_stays_away_for_too_long_is_told(embedded: Kafka, path: Path, when: str) -> None:
    topic = written(embedded, 5)

    class Away(SqliteStore):
        def take(self, *arguments: Any) -> Any:
            if when == "taking":
                raise StoreUnavailable("the database is on holiday")
            return super().take(*arguments)

        def apply(self, *_arguments: Any) -> Any:
            raise StoreUnavailable("the database is on holiday")

    consumer = consumer_of(embedded, topic, store=Away(path), store_timeout_s=0.5)
    begun = time.monotonic()
    with pytest.raises(StoreUnavailable, match="on holiday"):
        consumer.run(lambda record: None)
    assert time.monotonic() - begun > 0.5


def test_a_dead_letter_is_noted_when_the_store_is_back(embedded: Kafka, path: Path) -> None:
    """The letter is written once: what waits is only the note that it was."""
    topic, letters = written(embedded, 10), new_topic(embedded)

    class Flaky(SqliteStore):
        away = 3

        def skip(self, *arguments: Any) -> None:
            if self.away:
                self.away -= 1
                raise StoreUnavailable("the database is on holiday")
            super().skip(*arguments)

    def handle(record: Record, tx: Any) -> None:
        if record.offset == 4:
            raise ValueError("poison")

    consumer = consumer_of(embedded, topic, store=Flaky(path), retries=0, on_failure=DeadLetters(letters))
    stop_at_end(consumer)
    consumer.run(handle)
    assert (consumer.counters.handled, consumer.counters.dead_lettered) == (9, 1)
    assert len(read_all(embedded, letters)) == 1


def test_a_negative_patience_is_refused(embedded: Kafka) -> None:
    with pytest.raises(UsageError, match="store_timeout_s=-1"):
        consumer_of(embedded, "t", store_timeout_s=-1)


def test_membership_is_kept_while_the_store_is_away(embedded: Kafka, path: Path) -> None:
    topic = written(embedded, 10)
    store = SqliteStore(path, busy_timeout_s=0.05)
    properties = {"max.poll.interval.ms": 6000, "session.timeout.ms": 6000}
    consumer = consumer_of(embedded, topic, store=store, properties=properties)
    with in_background(consumer, insert):
        wait_for(lambda: len(effects(path)) == 10, "the first are done")
        before = member_ids(embedded, f"group-of-{topic}")
        with blocked(path):
            write(embedded.bootstrap, topic, 10, first=10)
            time.sleep(7)
            assert member_ids(embedded, f"group-of-{topic}") == before
            assert len(before) == 1
        stop_at_end(consumer)
    assert effects(path) == values(20)
