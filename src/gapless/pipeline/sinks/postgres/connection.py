"""Connections to PostgreSQL for driver and workers, and its errors as one line.

A worker process keeps its connection from task to task, and looks before it uses it again. A server that is
away for a moment is waited for, as long as nothing of the batch is lost by that.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

try:
    import psycopg
    from psycopg import errors
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
    from psycopg.pq import TransactionStatus
except ImportError as missing:
    from gapless.errors import UsageError as _UsageError

    raise _UsageError("a postgres sink needs psycopg: run: pip install 'gapless[postgres]'") from missing

from gapless.errors import Unreachable, UsageError
from gapless.pipeline.tasks import RowRefused

Connection = psycopg.Connection[tuple[Any, ...]]

# A server whose machine has vanished sends nothing, not even an end: libpq must look by itself.
_UNLESS_TOLD: dict[str, Any] = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "fallback_application_name": "gapless",
}
BETWEEN_TRIES_S = 0.5
# Lost connections, deadlocks, timeouts; a server that ended an idle session, or is about to take over.
TRANSIENT = (psycopg.OperationalError, psycopg.InternalError)

_kept: dict[tuple[int, str], Connection] = {}


def parsed(url: str) -> str:
    """The address as libpq takes it, with our settings where it has none."""
    try:
        # Bytes of COPY are UTF-8, whatever the user's environment says.
        return make_conninfo("", **{**_UNLESS_TOLD, **conninfo_to_dict(url), "client_encoding": "utf8"})
    except psycopg.ProgrammingError as error:
        raise UsageError(f"the url of the postgres sink cannot be read: {said(error)}") from error


def place(url: str) -> str:
    """The address for messages: no user, and never a password."""
    known = conninfo_to_dict(url)
    host = known.get("host") or known.get("hostaddr") or "localhost"
    return f"{host}:{known.get('port') or 5432}/{known.get('dbname') or known.get('user') or ''}"


def connect(url: str) -> Connection:
    """A new connection; each statement is a transaction unless one is begun."""
    # Without prepared statements, which a pooler between us and the server might not know.
    return psycopg.connect(url, autocommit=True, prepare_threshold=None)


def connect_in_time(url: str, patience_s: float) -> Connection:
    """A new connection, as soon as the server gives one."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return connect(url)
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(BETWEEN_TRIES_S)


def kept_connection(url: str, patience_s: float) -> Connection:
    """This process's connection: the one that it has, if that can still be used."""
    mine = (os.getpid(), url)  # a forked process must not use its parent's
    connection = _kept.get(mine)
    if connection is None or not _is_quiet(connection):
        if connection is not None:
            connection.close()
        connection = _kept[mine] = connect_in_time(url, patience_s)
    return connection


def give_up(connection: Connection) -> None:
    """Close it: the server then rolls back what it had begun."""
    for mine in [mine for mine, kept in _kept.items() if kept is connection]:
        del _kept[mine]
    connection.close()


def _is_quiet(connection: Connection) -> bool:
    """Whether it has nothing open, and the server has not said (goodbye) or hung up meanwhile."""
    if connection.closed or connection.info.transaction_status != TransactionStatus.IDLE:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


@contextmanager
def clear_errors(where: str, table: str) -> Iterator[None]:
    """Errors of the server become errors of ours, with one line. Only `Unreachable` may be gone next time."""
    try:
        yield
    except errors.CardinalityViolation as error:
        raise RowRefused(
            f"several rows of one batch have the same key, and nothing says which of them {table} should "
            "keep: set latest_by to a column that tells, or leave one row for each key"
        ) from error
    except TRANSIENT as error:
        raise Unreachable(f"PostgreSQL at {where}: {said(error)}") from error
    except psycopg.Error as error:
        raise RowRefused(f"PostgreSQL at {where} refuses {table}: {said(error)}") from error


def said(error: psycopg.Error) -> str:
    """What the server says is wrong, and which value it is about, without the place in the SQL."""
    first = error.diag.message_primary or (str(error).splitlines() or [type(error).__name__])[0]
    words = [first, error.diag.message_detail]
    if isinstance(error, psycopg.DataError):
        words.append(error.diag.context)  # has the column
    return "; ".join(" ".join(word.split()).rstrip(".") for word in words if word)
