"""Effects, marks and offset are one step in a database with transactions, whatever the handler does (E6)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from gapless.client.records import Record
from gapless.client.stores.port import Applied, HandlerFailed, PartitionTaken
from gapless.client.stores.transactional import HandlerEndsTransaction
from gapless.errors import UsageError
from tests.client.stores.conftest import OpenStores
from tests.client.stores.kits import FIRST, Kit, PostgresKit, SqliteKit, record, records


def statement(sql: str) -> Callable[[Record, Any], None]:
    return lambda _record, transaction: transaction.execute(sql)


ENDINGS: dict[str, Callable[[Record, Any], object]] = {
    "commit()": lambda _, transaction: transaction.commit(),
    "rollback()": lambda _, transaction: transaction.rollback(),
    "close": lambda _, transaction: transaction.close(),
    "COMMIT": statement("COMMIT"),
    "ROLLBACK": statement(" rollback "),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_handler_that_ends_the_transaction_is_told_so(
    transactional: Kit, opened: OpenStores, ending: str
) -> None:
    store = opened(transactional.store())
    store.take(FIRST)

    def ends(each: Record, transaction: Any) -> None:
        ENDINGS[ending](each, transaction)

    with pytest.raises(HandlerEndsTransaction, match="leave the transaction open"):
        store.apply(FIRST, [record(0, 0)], ends)
    assert transactional.effects() == []
    assert store.apply(FIRST, [record(0, 0)], transactional.handler) == Applied(1, 0)


def test_with_and_scripts_of_sqlite_end_transactions_too(sqlite_kit: SqliteKit, opened: OpenStores) -> None:
    store = opened(sqlite_kit.store())
    store.take(FIRST)

    def uses_with(each: Record, transaction: Any) -> None:
        with transaction:
            sqlite_kit.handler(each, transaction)

    def runs_script(each: Record, transaction: Any) -> None:
        sqlite_kit.handler(each, transaction)
        transaction.executescript("SELECT 1")

    for wrong in (uses_with, runs_script):
        with pytest.raises(HandlerEndsTransaction):
            store.apply(FIRST, [record(0, 0)], wrong)
    assert sqlite_kit.effects() == []


def test_a_handler_may_use_savepoints(transactional: Kit, opened: OpenStores) -> None:
    store = opened(transactional.store())
    store.take(FIRST)

    def tries_twice(each: Record, transaction: Any) -> None:
        transaction.execute("SAVEPOINT attempt")
        transactional.handler(each, transaction)
        transaction.execute("ROLLBACK TO SAVEPOINT attempt")
        transactional.handler(each, transaction)

    assert store.apply(FIRST, records(range(2)), tries_twice) == Applied(2, 0)
    assert transactional.effects() == [b"shop:0", b"shop:1"]


def test_a_swallowed_error_of_postgresql_is_not_taken_for_success(
    postgres_kit: PostgresKit, opened: OpenStores
) -> None:
    import psycopg

    store = opened(postgres_kit.store())
    store.take(FIRST)

    def swallows(_record: Record, transaction: Any) -> None:
        with pytest.raises(psycopg.errors.UndefinedTable):
            transaction.execute("INSERT INTO nowhere VALUES (1)")

    with pytest.raises(HandlerEndsTransaction, match=r"with tx\.transaction\(\)"):
        store.apply(FIRST, [record(0, 0)], swallows)

    def recovers(each: Record, transaction: Any) -> None:
        with pytest.raises(psycopg.errors.UndefinedTable), transaction.transaction():
            transaction.execute("INSERT INTO nowhere VALUES (1)")
        postgres_kit.handler(each, transaction)

    assert store.apply(FIRST, [record(0, 0)], recovers) == Applied(1, 0)


DEFERRED = "CREATE TABLE child (parent BIGINT REFERENCES effects (number) DEFERRABLE INITIALLY DEFERRED)"


def test_a_rule_that_is_looked_at_last_fails_the_handler(
    transactional: SqliteKit | PostgresKit, opened: OpenStores
) -> None:
    transactional.query(DEFERRED)
    store = opened(transactional.store())
    store.take(FIRST)
    if isinstance(transactional, SqliteKit):
        store._connection.execute("PRAGMA foreign_keys = ON")  # type: ignore[attr-defined]

    def breaks_it(each: Record, transaction: Any) -> None:
        transactional.handler(each, transaction)
        transaction.execute("INSERT INTO child VALUES (77)")

    with pytest.raises(HandlerFailed, match=r"(?i)foreign key"):
        store.apply(FIRST, [record(0, 0)], breaks_it)
    assert transactional.effects() == []
    assert store.apply(FIRST, [record(0, 0)], transactional.handler) == Applied(1, 0)


def test_a_zombie_that_is_at_work_when_it_is_replaced_changes_nothing(
    transactional: Kit, opened: OpenStores
) -> None:
    """Either its transaction comes first and the successor sees it, or it is refused as a whole."""
    zombie, successor = opened(transactional.store()), opened(transactional.store())
    zombie.take(FIRST)
    at_work, replaced = threading.Event(), threading.Event()
    became: list[object] = []

    def slow(each: Record, transaction: Any) -> None:
        transactional.handler(each, transaction)
        at_work.set()
        replaced.wait(0.5)  # in SQLite the successor waits for us

    def work() -> None:
        try:
            became.append(zombie.apply(FIRST, records(range(3)), slow))
        except PartitionTaken as taken:
            became.append(taken)

    thread = threading.Thread(target=work)
    thread.start()
    at_work.wait()
    begins_at = successor.take(FIRST)
    replaced.set()
    thread.join()
    assert successor.apply(FIRST, records(range(5)), transactional.handler).handled == 5 - (begins_at or 0)
    assert transactional.effects() == [f"shop:{number}".encode() for number in range(5)]
    if begins_at is None:
        assert isinstance(became[0], PartitionTaken)
    else:
        assert became == [Applied(3, 0)]


def test_a_zombies_handler_that_fails_on_its_successors_writes_is_not_blamed(
    transactional: SqliteKit | PostgresKit, opened: OpenStores
) -> None:
    transactional.query("CREATE TABLE once (body INTEGER PRIMARY KEY)")
    zombie, successor = opened(transactional.store()), opened(transactional.store())

    def once(each: Record, transaction: Any) -> None:
        transaction.execute(f"INSERT INTO once VALUES ({each.offset})")

    zombie.take(FIRST)
    successor.take(FIRST)
    successor.apply(FIRST, records([0]), once)
    with pytest.raises(PartitionTaken):
        zombie.apply(FIRST, records([0]), once)


def test_old_marks_are_forgotten_when_a_partition_is_taken(
    transactional: SqliteKit | PostgresKit, opened: OpenStores
) -> None:
    store = opened(transactional.store(forget_after="1h"))
    store.take(FIRST)
    store.apply(FIRST, [record(0, 0, source="gone"), record(1, 5, source="gone")], transactional.handler)
    transactional.query("UPDATE gapless_marks SET touched_at = touched_at - 7200")
    store.apply(FIRST, [record(2, 0, source="here")], transactional.handler)
    assert len(transactional.marks()) == 3
    store.take(FIRST)
    assert transactional.marks() == [(0, 0)]
    assert store.apply(
        FIRST, [record(3, 0, source="here"), record(4, 0, source="gone")], transactional.handler
    ) == (Applied(1, 1))


def test_old_keys_are_forgotten_at_work(
    transactional: SqliteKit | PostgresKit, opened: OpenStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(transactional.store(forget_after="1h", dedup_by=lambda each: each.key))
    store.take(FIRST)
    store.apply(FIRST, [record(0, key=b"a"), record(1, key=b"b")], transactional.handler)
    transactional.query("UPDATE gapless_seen SET seen_at = seen_at - 7200")
    assert store.apply(FIRST, [record(2, key=b"a")], transactional.handler).repeated == 1  # not looked at yet
    now = time.monotonic()
    monkeypatch.setattr("time.monotonic", lambda: now + 3600)
    assert store.apply(FIRST, [record(3, key=b"a")], transactional.handler).handled == 1


@pytest.mark.parametrize("forget_after", [0, "0s", "soon"])
def test_a_time_that_cannot_be_is_refused(transactional: Kit, forget_after: object) -> None:
    with pytest.raises(UsageError):
        transactional.store(forget_after=forget_after)
