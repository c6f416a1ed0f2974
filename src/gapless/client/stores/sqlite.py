"""The store in an SQLite file: effects, marks and offset commit together, with nothing to install.

    store = SqliteStore("orders.db")
    consumer = Consumer(bootstrap, group="billing", topics=["orders"], semantics="exactly-once", store=store)
    consumer.run(lambda record, tx: tx.execute("INSERT INTO bills (body) VALUES (?)", (record.value,)))

The handler's tables live in the same file. SQLite lets one transaction write at a time: the handlers of all
partitions take turns, also those of other processes that use the file. A commit is on disk before the next
record is handled (WAL, synchronous=FULL).
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from types import TracebackType
from typing import Any, Literal, Never

from gapless.client.durations import seconds
from gapless.client.stores.keys import DedupBy
from gapless.client.stores.port import StoreUnavailable
from gapless.client.stores.schema import Statements, table_definitions
from gapless.client.stores.transactional import (
    CommitRefused,
    HandlerEndsTransaction,
    TransactionalStore,
)
from gapless.errors import UsageError

OLDEST_SQLITE = (3, 35, 0)  # has RETURNING

# What is wrong with the disk, the file or the neighbours: no record is to blame, and trying again may help.
_NOT_THE_RECORDS_FAULT = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_READONLY,
}


# Compiled statements are cached by their text, and the authorizer is not asked again: these are ours.
_COMMIT = "COMMIT /* of the store */"
_ROLLBACK = "ROLLBACK /* of the store */"


class _Connection(sqlite3.Connection):
    """A connection whose transactions only the store ends.

    Methods refuse by themselves; for SQL there is SQLite's authorizer, which is asked when a statement is
    compiled, and not again while it is cached.
    """

    handling = False
    refused: str | None = None

    def guard(self) -> None:
        self.set_authorizer(self._authorize)

    def _authorize(self, action: int, argument: str | None, *_: str | None) -> int:
        if self.handling and action == sqlite3.SQLITE_TRANSACTION:
            self.refused = argument
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    def commit(self) -> Never:
        raise HandlerEndsTransaction("calls commit()")

    def rollback(self) -> Never:
        raise HandlerEndsTransaction("calls rollback()")

    def close(self) -> None:
        if self.handling:
            raise HandlerEndsTransaction("closes the connection")
        super().close()

    def __enter__(self) -> Never:
        raise HandlerEndsTransaction("uses the connection in a with statement, which commits")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        return False


class SqliteStore(TransactionalStore):
    """Effects once, in an SQLite file. The handler's second argument is the open `sqlite3.Connection`.

    - `busy_timeout_s`: how long to wait for another process that writes to the file.
    - `dedup_by`: what makes two records the same: `"identity"`, or a function that returns bytes, or None.
    - `forget_after`: delete marks of sources, or keys, that were not seen for so long (None: never).
    """

    statements = Statements.written("?", locking="")

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_timeout_s: float = 30.0,
        dedup_by: str | DedupBy = "identity",
        forget_after: str | float | None = None,
    ) -> None:
        super().__init__(dedup_by, forget_after)
        try:
            self._path = os.fspath(path)
        except TypeError:
            raise UsageError(f"SqliteStore needs the path of a file, not {path!r}") from None
        if self._path in {"", ":memory:"}:
            raise UsageError("SqliteStore needs a file: what is in memory does not outlive the process")
        self._busy_timeout_s = seconds(busy_timeout_s)
        self._lock = threading.Lock()  # one connection, as the file takes one writer anyway
        self._connection: _Connection | None = None

    def _disconnect(self) -> None:
        with self._lock:
            self._drop_connection()

    def _prepare(self) -> None:
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            oldest = ".".join(map(str, OLDEST_SQLITE))
            raise UsageError(
                f"SQLite {sqlite3.sqlite_version} is too old: SqliteStore needs {oldest} or newer"
            )
        try:
            with self._transaction() as connection:
                for definition in table_definitions("BLOB", " WITHOUT ROWID"):
                    connection.execute(definition)
        except StoreUnavailable as error:
            if isinstance(error.__cause__, sqlite3.Error) and not _is_busy(error.__cause__):
                raise UsageError(str(error)) from error
            raise

    def _connected(self) -> _Connection:
        if self._connection is None:
            connection = sqlite3.connect(
                self._path,
                timeout=self._busy_timeout_s,
                isolation_level=None,  # we say BEGIN and COMMIT ourselves
                check_same_thread=False,  # the lock lets one thread in at a time
                factory=_Connection,
            )
            try:
                (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
                if mode != "wal":
                    raise UsageError(f"{self._path} cannot use a write-ahead log (journal mode {mode})")
                connection.execute("PRAGMA synchronous = FULL")
                connection.guard()
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.handling = False
            self._connection.close()
            self._connection = None

    @contextmanager
    def _transaction(self) -> Iterator[_Connection]:
        with self._lock:
            try:
                connection = self._connected()
                connection.execute("BEGIN IMMEDIATE")
                try:
                    connection.handling, connection.refused = True, None
                    try:
                        yield connection
                    finally:
                        connection.handling = False
                    connection.execute(_COMMIT)
                except BaseException:
                    if connection.in_transaction:
                        connection.execute(_ROLLBACK)
                    raise
            except sqlite3.IntegrityError as error:
                raise CommitRefused(error) from error
            except sqlite3.Error as error:
                self._drop_connection()
                raise StoreUnavailable(self._explained(error)) from error

    _is_open = staticmethod(attrgetter("in_transaction"))

    def _check_open(self, transaction: Any) -> None:
        self._check_not_ended(transaction)
        raise HandlerEndsTransaction("went on after an error that made SQLite roll back")

    def _check_not_ended(self, transaction: Any) -> None:
        if transaction.refused is not None:
            raise HandlerEndsTransaction(f"says {transaction.refused}")

    def _is_ours(self, error: Exception, transaction: Any) -> bool:
        return isinstance(error, sqlite3.Error) and _primary_code(error) in _NOT_THE_RECORDS_FAULT

    def _remember(self, transaction: Any, keys: Sequence[bytes], now_s: int) -> set[bytes]:
        insert = "INSERT INTO gapless_seen (group_name, key, seen_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
        group = self._group
        return {key for key in keys if transaction.execute(insert, (group, key, now_s)).rowcount}

    def _write(self, transaction: Any, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        transaction.executemany(statement, rows)

    def _explained(self, error: sqlite3.Error) -> str:
        advice = {
            sqlite3.SQLITE_BUSY: f"another process held it for {self._busy_timeout_s:g} s:"
            " raise busy_timeout_s, or look for a handler that takes too long",
            sqlite3.SQLITE_CANTOPEN: "does its folder exist, and may this process write there?",
            sqlite3.SQLITE_FULL: "make room on its disk",
            sqlite3.SQLITE_NOTADB: "it holds something else: name another file",
            sqlite3.SQLITE_READONLY: "make the file and its folder writable for this process",
        }.get(_primary_code(error))
        return f"the SQLite file {self._path}: {error}" + (f" ({advice})" if advice else "")


def _primary_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _is_busy(error: BaseException) -> bool:
    return isinstance(error, sqlite3.Error) and _primary_code(error) in {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
    }
