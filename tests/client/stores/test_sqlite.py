"""What is SQLite's own: durable commits, several processes on one file, files that cannot be used."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from gapless.client.records import Record
from gapless.client.stores.port import Applied, StoreUnavailable
from gapless.client.stores.sqlite import SqliteStore
from gapless.errors import UsageError
from tests.client.stores.conftest import OpenStores
from tests.client.stores.kits import FIRST, GROUP, SECOND, SqliteKit, record, records


def test_a_commit_is_on_disk(sqlite_kit: SqliteKit, opened: OpenStores) -> None:
    store = opened(sqlite_kit.store())
    seen: list[Any] = []

    def looks(_record: Record, transaction: Any) -> None:
        for name in ("journal_mode", "synchronous"):
            seen.append(transaction.execute(f"PRAGMA {name}").fetchone()[0])

    store.take(FIRST)
    store.apply(FIRST, [record(0)], looks)
    full = 2
    assert seen == ["wal", full]


def test_who_waits_too_long_for_the_file_is_told_and_may_try_again(
    sqlite_kit: SqliteKit, opened: OpenStores
) -> None:
    store = opened(sqlite_kit.store(busy_timeout_s=0.05))
    store.take(FIRST)
    other = sqlite3.connect(sqlite_kit.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match=r"another process held it for 0\.05 s: raise busy_timeout_s"):
        store.apply(FIRST, records(range(3)), sqlite_kit.handler)
    other.execute("ROLLBACK")
    other.close()
    assert store.apply(FIRST, records(range(3)), sqlite_kit.handler) == Applied(3, 0)


def test_stores_on_one_file_take_turns(sqlite_kit: SqliteKit, opened: OpenStores) -> None:
    stores = [opened(sqlite_kit.store()) for _ in range(2)]
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            partition = (FIRST, SECOND)[number]
            stores[number].take(partition)
            for at in range(40):
                stores[number].apply(partition, [record(at, at, partition=partition)], sqlite_kit.handler)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(sqlite_kit.effects()) == 80


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be looked at as if it were one" * 20)
    with pytest.raises(UsageError, match=r"notes\.txt.*name another file"):
        SqliteStore(path).open(GROUP)
    assert path.read_text().startswith("not a database")


def test_a_folder_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does its folder exist"):
        SqliteStore(tmp_path / "nowhere" / "store.db").open(GROUP)


@pytest.mark.parametrize("path", ["", ":memory:"])
def test_memory_is_no_place_for_what_must_outlive_the_process(path: str) -> None:
    with pytest.raises(UsageError, match="needs a file"):
        SqliteStore(path)


def test_what_is_no_path_is_refused() -> None:
    with pytest.raises(UsageError, match="the path of a file, not 7"):
        SqliteStore(7)  # type: ignore[arg-type]


OPENS_UNPRIVILEGED = """
import os, sys
from gapless.client.stores.sqlite import SqliteStore
from gapless.errors import UsageError
if os.geteuid() == 0:  # which may write everywhere
    os.setgid(65534)
    os.setuid(65534)
try:
    SqliteStore(sys.argv[1]).open("billing")
except UsageError as error:
    print(error)
"""


def test_a_file_that_may_not_be_written_is_refused() -> None:
    with TemporaryDirectory() as folder:  # pytest's own can only be entered by who runs it
        path = Path(folder) / "store.db"
        SqliteKit(path)
        path.chmod(0o444)
        path.parent.chmod(0o555)
        command = [sys.executable, "-c", OPENS_UNPRIVILEGED, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        path.parent.chmod(0o755)
    assert "make the file and its folder writable" in done.stdout, done.stderr


def test_a_full_disk_stops_the_store_and_not_the_record(sqlite_kit: SqliteKit, opened: OpenStores) -> None:
    store = opened(sqlite_kit.store())
    store.take(FIRST)

    def fills_it(each: Record, transaction: Any) -> None:
        sqlite_kit.handler(each, transaction)
        transaction.execute("PRAGMA max_page_count = 1")  # as small as it is now
        transaction.execute("INSERT INTO effects (body) VALUES (zeroblob(1000000))")

    with pytest.raises(StoreUnavailable, match="make room on its disk"):
        store.apply(FIRST, records(range(3)), fills_it)
    assert sqlite_kit.effects() == []
    assert store.apply(FIRST, records(range(3)), sqlite_kit.handler) == Applied(3, 0)
    assert len(sqlite_kit.effects()) == 3


def test_a_failed_commit_is_looked_up_and_not_guessed(
    sqlite_kit: SqliteKit, opened: OpenStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit went through, but all that we see of it is an error."""
    store = opened(sqlite_kit.store())
    store.take(FIRST)

    def commits_and_fails(connection: sqlite3.Connection, sql: str, *arguments: Any) -> Any:
        done = sqlite3.Connection.execute(connection, sql, *arguments)
        if sql.startswith("COMMIT"):
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error
        return done

    with monkeypatch.context() as patched:
        patched.setattr("gapless.client.stores.sqlite._Connection.execute", commits_and_fails)
        with pytest.raises(StoreUnavailable, match="disk I/O error"):
            store.apply(FIRST, records(range(3)), sqlite_kit.handler)
    assert store.apply(FIRST, records(range(4)), sqlite_kit.handler) == Applied(1, 3)
    assert len(sqlite_kit.effects()) == 4


def test_the_second_thread_may_use_what_the_first_opened(sqlite_kit: SqliteKit, opened: OpenStores) -> None:
    store = opened(sqlite_kit.store())
    thread = threading.Thread(target=lambda: store.take(FIRST))
    thread.start()
    thread.join()
    assert store.apply(FIRST, [record(0)], sqlite_kit.handler) == Applied(1, 0)


def test_the_file_may_be_closed_twice_and_opened_again(sqlite_kit: SqliteKit) -> None:
    store = sqlite_kit.store()
    for _ in range(2):
        store.open(GROUP)
        store.close()
        store.close()
