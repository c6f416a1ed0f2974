"""The store in a PostgreSQL database: effects, marks and offset commit together.

    store = PostgresStore("postgresql://billing@db/orders")
    consumer = Consumer(bootstrap, group="billing", topics=["orders"], semantics="exactly-once", store=store)
    consumer.run(lambda record, tx: tx.execute("INSERT INTO bills (body) VALUES (%s)", (record.value,)))

Every partition has rows of its own, so members of a group never wait for each other. Needs the extra
`postgres`: pip install 'gapless[postgres]'.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Never

try:
    import psycopg
    from psycopg import errors
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
    from psycopg.pq import TransactionStatus
except ImportError as missing:
    from gapless.errors import UsageError as _UsageError

    raise _UsageError("PostgresStore needs psycopg: run: pip install 'gapless[postgres]'") from missing

from gapless.client.durations import seconds
from gapless.client.stores.keys import DedupBy
from gapless.client.stores.port import StoreUnavailable
from gapless.client.stores.schema import Statements, table_definitions
from gapless.client.stores.transactional import (
    CommitRefused,
    HandlerEndsTransaction,
    Retry,
    TransactionalStore,
)
from gapless.errors import UsageError

# A server whose machine has vanished sends nothing, not even an end: libpq must look by itself.
_UNLESS_TOLD: dict[str, Any] = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
_GIVEN_UP = (errors.SerializationFailure, errors.DeadlockDetected)
# What only a person can mend: the same again would be refused again.
_REFUSED = (
    errors.InvalidAuthorizationSpecification,
    errors.InvalidCatalogName,
    errors.InsufficientPrivilege,
    errors.UndefinedColumn,
    errors.UndefinedTable,
    errors.InvalidSchemaName,
)
_IN_TRANSACTION = int(TransactionStatus.INTRANS)
# The number of a lock that everybody takes who makes these tables.
_MAKING_TABLES = int.from_bytes(b"gapless\0")


class _Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose transactions only the store ends; `with tx.transaction()` makes a savepoint."""

    handling = False

    def commit(self) -> Never:
        raise HandlerEndsTransaction("calls commit()")

    def rollback(self) -> Never:
        raise HandlerEndsTransaction("calls rollback()")

    def close(self) -> None:
        if self.handling:
            raise HandlerEndsTransaction("closes the connection")
        super().close()


class PostgresStore(TransactionalStore):
    """Effects once, in a PostgreSQL database. The handler's second argument is the open `psycopg.Connection`.

    - `dsn`: a connection string or URL, as libpq takes it. It can set timeouts, TLS or the isolation level.
    - `lock_timeout_s`: how long `take` waits for a transaction of the partition's earlier owner.
    - `dedup_by`: what makes two records the same: `"identity"`, or a function that returns bytes, or None.
    - `forget_after`: delete marks of sources, or keys, that were not seen for so long (None: never).
    """

    statements = Statements.written("%s", locking="FOR UPDATE")

    def __init__(
        self,
        dsn: str,
        *,
        lock_timeout_s: float = 30.0,
        dedup_by: str | DedupBy = "identity",
        forget_after: str | float | None = None,
    ) -> None:
        super().__init__(dedup_by, forget_after)
        try:
            self._dsn = make_conninfo("", **{**_UNLESS_TOLD, **conninfo_to_dict(dsn)})
        except (psycopg.ProgrammingError, AttributeError) as error:  # the latter for what is no text
            raise UsageError(f"the dsn of PostgresStore cannot be read: {_said(error)}") from error
        self._lock_timeout_ms = int(seconds(lock_timeout_s) * 1000)
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self._closed = False

    def _disconnect(self) -> None:
        with self._lock:
            idle, self._idle, self._closed = self._idle, [], True
        for connection in idle:
            connection.close()

    def _prepare(self) -> None:
        self._closed = False
        try:
            self._repeated(self._make_tables)
        except StoreUnavailable as error:
            if isinstance(error.__cause__, _REFUSED):
                raise UsageError(f"{error}: see docs/stores.md for the tables and rights it needs") from error
            raise

    def _make_tables(self) -> None:
        """Make what is missing; a user who may not is served if everything is there."""
        tables = ("gapless_offsets", "gapless_marks", "gapless_seen")
        with self._transaction() as connection:
            found = connection.execute(
                "SELECT to_regclass(name) FROM unnest(%s::text[]) AS name", (list(tables),)
            ).fetchall()
            missing = [
                table for (there,), table in zip(found, table_definitions("BYTEA"), strict=True) if not there
            ]
            if missing:
                # One after the other: two who make the same table at once collide, IF NOT EXISTS or not.
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MAKING_TABLES,))
            for definition in missing:
                connection.execute(definition)

    def _before_waiting(self, transaction: Any) -> None:
        transaction.execute("SELECT set_config('lock_timeout', %s, true)", (str(self._lock_timeout_ms),))

    @contextmanager
    def _transaction(self) -> Iterator[_Connection]:
        connection: _Connection | None = None
        try:
            connection = self._checked_out()
            with connection.transaction():
                connection.handling = True
                try:
                    yield connection
                finally:
                    connection.handling = False
        except _GIVEN_UP as error:
            raise Retry(_said(error)) from error
        except psycopg.IntegrityError as error:
            raise CommitRefused(error) from error
        except (psycopg.OperationalError, psycopg.InternalError, *_REFUSED) as error:
            raise StoreUnavailable(f"PostgreSQL: {_said(error)}") from error
        finally:
            if connection is not None:
                self._give_back(connection)

    def _checked_out(self) -> _Connection:
        with self._lock:
            if self._closed:
                raise UsageError("the store is closed: call open(group) first")
            while self._idle:
                connection = self._idle.pop()
                if _is_quiet(connection):
                    return connection
                connection.close()
        return _Connection.connect(self._dsn, autocommit=True)

    def _give_back(self, connection: _Connection) -> None:
        with self._lock:
            if not self._closed and not connection.closed and _status(connection) == TransactionStatus.IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def _is_open(self, transaction: Any) -> bool:
        # As _status does it, which is ten times slower: this is asked after every record.
        return transaction.pgconn.transaction_status == _IN_TRANSACTION  # type: ignore[no-any-return]

    def _check_open(self, transaction: Any) -> None:
        if _status(transaction) == TransactionStatus.UNKNOWN:
            raise psycopg.OperationalError("the connection was lost while the handler ran")
        self._check_not_ended(transaction)
        raise HandlerEndsTransaction(
            "went on after an error of the database without `with tx.transaction()` around what failed"
        )

    def _check_not_ended(self, transaction: Any) -> None:
        if _status(transaction) == TransactionStatus.IDLE:
            raise HandlerEndsTransaction("has said COMMIT or ROLLBACK, so effects and marks may now differ")

    def _is_ours(self, error: Exception, transaction: Any) -> bool:
        if not isinstance(error, psycopg.OperationalError) or isinstance(error, errors.QueryCanceled):
            return False
        return _status(transaction) != TransactionStatus.INTRANS  # else it was another connection's

    def _remember(self, transaction: Any, keys: Sequence[bytes], now_s: int) -> set[bytes]:
        insert = (
            "INSERT INTO gapless_seen (group_name, key, seen_at)"
            " SELECT %s, key, %s FROM unnest(%s::bytea[]) AS key ON CONFLICT DO NOTHING RETURNING key"
        )
        # In one order for everybody, so that members who see the same keys wait and do not deadlock.
        return {
            bytes(key)
            for (key,) in transaction.execute(insert, (self._group, now_s, sorted(keys))).fetchall()
        }

    def _write(self, transaction: Any, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if len(rows) == 1:
            transaction.execute(statement, rows[0])
        else:
            with transaction.cursor() as cursor:
                cursor.executemany(statement, rows)


def _is_quiet(connection: psycopg.Connection[Any]) -> bool:
    """Whether an idle connection can be used: a server that went away has said so, or has hung up."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


def _status(connection: psycopg.Connection[Any]) -> TransactionStatus:
    return connection.info.transaction_status


def _said(error: Exception) -> str:
    """The first line: others tell where in the SQL it was."""
    return (str(error).splitlines() or [type(error).__name__])[0]
