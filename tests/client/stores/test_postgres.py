"""What is PostgreSQL's own: members side by side, lost answers, deadlocks, rights."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gapless.client.records import Record
from gapless.client.stores.port import Applied, Store, StoreUnavailable
from gapless.errors import UsageError
from gapless.testing.postgres import Postgres
from tests.client.stores.answer_thief import AnswerThief, Theft
from tests.client.stores.conftest import OpenStores
from tests.client.stores.kits import FIRST, GROUP, SECOND, PostgresKit, record, records
from tests.servers import emptied

ROOT = Path(__file__).resolve().parents[3]


def in_threads(*works: Callable[[], object]) -> None:
    """Run them at once; the first failure is the test's."""
    failures: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


HOLDS_ITS_ROWS = """
import sys
from tests.client.stores.kits import FIRST, PostgresKit, record
kit = PostgresKit(sys.argv[1])
store = kit.store()
store.open("billing")
store.take(FIRST)
original = store._save
def save(*arguments):
    original(*arguments)
    print("holds", flush=True)
    sys.stdin.readline()
store._save = save
store.apply(FIRST, [record(0, 0), record(1, 1)], kit.handler)
store.close()
"""


def test_members_of_a_group_never_wait_for_each_other(postgres_kit: PostgresKit, opened: OpenStores) -> None:
    """One process has written its marks and offset, and does not commit; the other does all of its work."""
    command = [sys.executable, "-c", HOLDS_ITS_ROWS, postgres_kit.dsn]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "holds\n"
        impatient = PostgresKit(postgres_kit.dsn + "?options=-c%20lock_timeout%3D100ms")
        store = opened(impatient.store(lock_timeout_s=0.1))
        store.take(SECOND)
        for at in range(3):
            batch = [record(at, at, partition=SECOND)]
            assert store.apply(SECOND, batch, impatient.handler) == Applied(1, 0)
        assert len(postgres_kit.effects()) == 3
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            store.take(FIRST)  # who wants the same partition does wait
        other.stdin.write("\n")
        other.stdin.close()
        assert other.wait() == 0
    assert store.take(FIRST) == 2
    assert len(postgres_kit.effects()) == 5


@pytest.mark.parametrize("stolen", ["question", "answer"])
def test_a_commit_without_an_answer_is_looked_up_and_not_guessed(
    postgres_kit: PostgresKit, stolen: Theft
) -> None:
    with AnswerThief(postgres_kit.dsn) as thief, closing(PostgresKit(thief.dsn).store()) as store:
        store.open(GROUP)
        store.take(FIRST)
        store.apply(FIRST, records(range(3)), postgres_kit.handler)
        thief.steal = stolen
        with pytest.raises(StoreUnavailable):
            store.apply(FIRST, records([3, 4, 3], at=3), postgres_kit.handler)
        thief.steal = None
        went_through = stolen == "answer"
        again = store.apply(FIRST, records([3, 4, 3, 5], at=3), postgres_kit.handler)
        assert again == (Applied(1, 3) if went_through else Applied(3, 1))
    assert postgres_kit.effects() == [f"shop:{number}".encode() for number in range(6)]
    assert postgres_kit.marks() == [(0, 5)]


@pytest.fixture(scope="module")
def mortal() -> Iterator[Postgres]:
    """A server that may be killed: whoever uses it leaves it running."""
    with Postgres() as server:
        yield server


def test_a_server_that_dies_again_and_again_loses_and_repeats_nothing(
    mortal: Postgres, opened: OpenStores
) -> None:
    kit = PostgresKit(emptied(mortal).dsn)
    store = opened(kit.store())
    store.take(FIRST)
    deaths = _die_at_commits(store, mortal, every=4)
    at = refused = 0
    while at < 40:
        try:
            store.apply(FIRST, records([at, max(0, at - 1)], at=2 * at), kit.handler)
            at += 1
        except StoreUnavailable:
            refused += 1
            mortal.start()
    mortal.start()  # if the last commit was quicker than its death
    assert len(deaths) >= 5
    assert refused >= len(deaths) - 1
    assert kit.effects() == [f"shop:{number}".encode() for number in range(40)]
    assert kit.marks() == [(0, 39)]


def _die_at_commits(store: Any, server: Postgres, every: int) -> list[int]:
    """Kill the server at every so-manieth commit: right before, or while it is on its way."""
    original, deaths, count = store._transaction, list[int](), 0

    @contextmanager
    def transaction() -> Iterator[Any]:
        nonlocal count
        count += 1
        killer = None
        with original() as opened:
            yield opened
            if count % every == 0:
                deaths.append(count)
                killer = threading.Thread(target=server.kill)
                killer.start()
                if count % (2 * every) == 0:
                    killer.join()
        if killer is not None:
            killer.join()

    store._transaction = transaction
    return deaths


def test_an_unreachable_server_is_told_and_comes_back(mortal: Postgres, opened: OpenStores) -> None:
    kit = PostgresKit(emptied(mortal).dsn)
    store = opened(kit.store())
    store.take(FIRST)
    mortal.stop()
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="PostgreSQL: "):
            store.apply(FIRST, records(range(3)), kit.handler)
    with pytest.raises(StoreUnavailable, match="PostgreSQL: "):
        kit.store().open(GROUP)
    mortal.start()
    assert store.apply(FIRST, records(range(3)), kit.handler) == Applied(3, 0)
    mortal.restart()  # while nobody asks
    assert store.apply(FIRST, records(range(4)), kit.handler) == Applied(1, 3)


def test_a_handler_that_does_not_mention_the_lost_connection_is_not_believed(
    mortal: Postgres, opened: OpenStores
) -> None:
    import psycopg

    kit = PostgresKit(emptied(mortal).dsn)
    store = opened(kit.store())
    store.take(FIRST)

    def silent(each: Record, transaction: Any) -> None:
        kit.handler(each, transaction)
        mortal.restart()
        with pytest.raises(psycopg.OperationalError):
            kit.handler(each, transaction)

    with pytest.raises(StoreUnavailable, match="lost while the handler ran"):
        store.apply(FIRST, records(range(3)), silent)
    assert store.apply(FIRST, records(range(3)), kit.handler) == Applied(3, 0)
    assert len(kit.effects()) == 3


def counts(store: Any, partition: Any, first: str, second: str) -> Callable[[], None]:
    """A handler's work on two rows that everybody wants."""

    def handler(_record: Record, transaction: Any) -> None:
        for name in (first, second):
            (amount,) = transaction.execute("SELECT amount FROM sums WHERE name = %s", (name,)).fetchone()
            time.sleep(0.001)
            transaction.execute("UPDATE sums SET amount = %s WHERE name = %s", (amount + 1, name))

    def work() -> None:
        store.take(partition)
        for at in range(8):
            assert store.apply(partition, [record(at, at, partition=partition)], handler) == Applied(1, 0)

    return work


def test_transactions_that_postgresql_gives_up_are_run_again(
    postgres_kit: PostgresKit, opened: OpenStores
) -> None:
    """Serializable, and two rows in opposite order: both kinds of giving up."""
    postgres_kit.query("CREATE TABLE sums (name TEXT PRIMARY KEY, amount INT)")
    postgres_kit.query("INSERT INTO sums VALUES ('a', 0), ('b', 0)")
    options = "?options=-c%20default_transaction_isolation%3Dserializable%20-c%20deadlock_timeout%3D20ms"
    store = opened(PostgresKit(postgres_kit.dsn + options).store())
    in_threads(counts(store, FIRST, "a", "b"), counts(store, SECOND, "b", "a"))
    assert postgres_kit.query("SELECT amount FROM sums") == [(16,), (16,)]


def test_an_error_of_the_records_own_is_the_handlers(postgres_kit: PostgresKit, opened: OpenStores) -> None:
    from gapless.client.stores.port import HandlerFailed

    store = opened(postgres_kit.store())
    store.take(FIRST)

    def handler(_record: Record, transaction: Any) -> None:
        transaction.execute("SELECT 1 / 0")

    with pytest.raises(HandlerFailed, match="division by zero"):
        store.apply(FIRST, [record(0)], handler)


def test_many_that_start_at_once_make_the_tables_once(postgres_kit: PostgresKit, opened: OpenStores) -> None:
    stores = [postgres_kit.store() for _ in range(6)]
    at_once = threading.Barrier(len(stores))

    def start(store: Store) -> None:
        at_once.wait(30)
        opened(store)

    for _ in range(10):
        postgres_kit.query("DROP TABLE IF EXISTS gapless_offsets, gapless_marks, gapless_seen")
        in_threads(*(partial(start, store) for store in stores))


def test_who_may_not_make_tables_is_told_what_to_do_and_may_use_them(
    postgres_kit: PostgresKit, opened: OpenStores
) -> None:
    role = f"clerk_{time.time_ns()}"
    postgres_kit.query(f"CREATE ROLE {role} LOGIN")
    postgres_kit.query(f"GRANT USAGE ON SCHEMA public TO {role}")
    clerks = PostgresKit.__new__(PostgresKit)
    clerks.__dict__ = {**postgres_kit.__dict__, "dsn": postgres_kit.dsn.replace("gapless@", f"{role}@")}
    with pytest.raises(UsageError, match=r"permission denied.*docs/stores\.md"):
        clerks.store().open(GROUP)
    opened(postgres_kit.store())
    postgres_kit.query(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}")
    postgres_kit.query(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}")
    store = opened(clerks.store())
    store.take(FIRST)
    assert store.apply(FIRST, records(range(3)), clerks.handler) == Applied(3, 0)


@pytest.mark.postgres
def test_a_dsn_that_cannot_be_read_is_refused() -> None:
    from gapless.client.stores.postgres import PostgresStore

    with pytest.raises(UsageError, match="dsn of PostgresStore"):
        PostgresStore("nonsense")
    with pytest.raises(UsageError, match="dsn of PostgresStore"):
        PostgresStore(7)  # type: ignore[arg-type]


def test_a_closed_store_says_so(postgres_kit: PostgresKit, opened: OpenStores) -> None:
    store = opened(postgres_kit.store())
    store.close()
    with pytest.raises(UsageError, match="closed"):
        store.take(FIRST)
