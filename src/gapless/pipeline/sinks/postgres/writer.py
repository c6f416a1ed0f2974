"""What a task does: rows by COPY, and the marker, in one transaction.

The transaction begins with the slot's marker FOR UPDATE, so an earlier attempt that is still at it is waited
for: then its rows are committed, and this attempt finds nothing to do, or they are rolled back. One that
hangs is ended: by the server while it waits between statements, and by this attempt if it hangs within COPY,
where no timeout of the server reaches it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import pyarrow as pa
from psycopg import errors, sql

from gapless.errors import InvariantViolated
from gapless.pipeline.sinks.postgres.connection import (
    BETWEEN_TRIES_S,
    TRANSIENT,
    Connection,
    clear_errors,
    connect_in_time,
    give_up,
    kept_connection,
    place,
)
from gapless.pipeline.sinks.postgres.copying import HEADER, TRAILER, encoded
from gapless.pipeline.sinks.postgres.markers import Markers
from gapless.pipeline.sinks.postgres.tables import Column, Table, names
from gapless.pipeline.slots import Slot, Verdict, judge
from gapless.pipeline.tasks import Done

_APPLICATION_NAME_BYTES = 63


class Limits(NamedTuple):
    """How long a task waits: for a server, for another attempt's lock, and how long the server for a task."""

    server_s: float = 30.0
    lock_s: float = 20.0
    idle_s: float = 30.0


@dataclass(frozen=True, slots=True)
class PostgresWriter:
    """Writes slots into a table. Upserts if there is a key."""

    url: str
    table: Table
    columns: Sequence[Column]
    markers: Markers
    key: Sequence[str] = ()
    latest_by: str | None = None
    limits: Limits = field(default_factory=Limits)

    def establish(self, slots: Sequence[Slot], *, reset: bool) -> None:
        with self._clear_errors(), connect_in_time(self.url, self.limits.server_s) as connection:
            self.markers.establish(connection, slots, reset=reset)

    def write(self, slot: Slot, rows: Iterator[pa.RecordBatch]) -> Done:
        began_s = time.monotonic()
        # Whatever makes the rows may take its time, and must not take it inside of a transaction.
        first = next(rows, None)
        batches = rows if first is None else chain([first], rows)
        with self._clear_errors():
            connection, position = self._begin(slot)
            try:
                skipped = judge(slot, position) is Verdict.SKIP
                count = 0
                if not skipped:
                    count = self._put(connection, batches)
                    self.markers.move(connection, slot)
                self._commit(connection)
            except BaseException:
                give_up(connection)
                raise
        return Done(slot.name, count, skipped, time.monotonic() - began_s)

    def _clear_errors(self) -> AbstractContextManager[None]:
        return clear_errors(place(self.url), str(self.table))

    def _begin(self, slot: Slot) -> tuple[Connection, int | None]:
        """A transaction that holds the slot's marker, and its position. Nothing is lost by trying again."""
        deadline_s = time.monotonic() + self.limits.server_s + self.limits.lock_s
        while True:
            connection = kept_connection(self.url, self.limits.server_s)
            try:
                connection.execute(self._beginning(slot))
                return connection, self.markers.take(connection, slot.name)
            except errors.UndefinedTable:
                return connection, None
            except errors.LockNotAvailable:
                connection.execute("ROLLBACK")
                if time.monotonic() > deadline_s:
                    raise
                self._end_others(connection, slot)
            except TRANSIENT:
                give_up(connection)
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(BETWEEN_TRIES_S)
            except BaseException:
                give_up(connection)
                raise

    def _beginning(self, slot: Slot) -> sql.Composed:
        return sql.SQL(
            "BEGIN ISOLATION LEVEL READ COMMITTED;"
            " SET LOCAL lock_timeout = {lock_ms};"
            " SET LOCAL idle_in_transaction_session_timeout = {idle_ms};"
            " SET LOCAL application_name = {name};"
            # A commit that the server may forget again is none.
            " SELECT set_config('synchronous_commit', 'on', true)"
            " WHERE current_setting('synchronous_commit') = 'off'"
        ).format(
            lock_ms=int(self.limits.lock_s * 1000),
            idle_ms=int(self.limits.idle_s * 1000),
            name=self._session_name(slot),
        )

    def _session_name(self, slot: Slot) -> str:
        """Names the session while it writes the slot: for people, and for the attempt after it."""
        whole = f"{self.markers.pipeline}/{self.markers.sink}/{slot.name}"
        digest = hashlib.sha256(whole.encode()).hexdigest()[:16]
        return f"gapless {digest} {whole}".encode("ascii", "replace")[:_APPLICATION_NAME_BYTES].decode()

    def _end_others(self, connection: Connection, slot: Slot) -> None:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
            " AND pid <> pg_backend_pid() AND datname = current_database()",
            (self._session_name(slot),),
        )

    def _put(self, connection: Connection, batches: Iterator[pa.RecordBatch]) -> int:
        if not self.key and all(column.direct for column in self.columns):
            return self._copy(connection, self.table.quoted(), batches)
        stage = self._stage(connection)
        self._copy(connection, stage, batches)
        return connection.execute(self._from_stage(stage)).rowcount

    def _copy(self, connection: Connection, into: sql.Identifier, batches: Iterator[pa.RecordBatch]) -> int:
        columns = [column.name for column in self.columns]
        types = [column.native for column in self.columns]
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(into, names(columns))
        sent = 0
        with connection.cursor() as cursor:
            with cursor.copy(statement) as copy:
                copy.write(HEADER)
                for batch in batches:
                    for data in encoded(batch, types):
                        copy.write(data)
                    sent += len(batch)
                copy.write(TRAILER)
            if cursor.rowcount != sent:
                raise InvariantViolated(f"{sent} rows were sent to PostgreSQL, which took {cursor.rowcount}")
        return sent

    def _stage(self, connection: Connection) -> sql.Identifier:
        """A temporary table for rows as they are sent. It stays with the connection; a commit empties it."""
        kinds = [(column.name, column.native) for column in self.columns]
        name = "gapless_stage_" + hashlib.sha256(repr(kinds).encode()).hexdigest()[:16]
        stage = sql.Identifier("pg_temp", name)
        there = connection.execute("SELECT to_regclass(%s)", (f"pg_temp.{name}",)).fetchone()
        if there == (None,):
            columns = sql.SQL(", ").join(
                sql.SQL("{} {}").format(sql.Identifier(column), sql.SQL(kind)) for column, kind in kinds
            )
            connection.execute(
                sql.SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DELETE ROWS").format(
                    sql.Identifier(name), columns
                )
            )
        return stage

    def _from_stage(self, stage: sql.Identifier) -> sql.Composed:
        columns = [column.name for column in self.columns]
        values = sql.SQL(", ").join(
            sql.Identifier("s", column.name)
            if column.cast is None
            else sql.SQL("{}::{}").format(sql.Identifier("s", column.name), sql.SQL(column.cast))
            for column in self.columns
        )
        return sql.SQL("INSERT INTO {} AS t ({}) SELECT {} FROM {} AS s{}").format(
            self.table.quoted(), names(columns), values, self._chosen(stage), self._on_conflict()
        )

    def _chosen(self, stage: sql.Identifier) -> sql.Composable:
        """The latest rows of each key. Two that are equally late are left, and the server refuses them."""
        if self.latest_by is None:
            return stage
        return sql.SQL(
            "(SELECT * FROM (SELECT *, rank() OVER (PARTITION BY {} ORDER BY {} DESC NULLS LAST)"
            " AS gapless_rank FROM {}) AS ranked WHERE gapless_rank = 1)"
        ).format(names(self.key), sql.Identifier(self.latest_by), stage)

    def _on_conflict(self) -> sql.Composable:
        others = [column.name for column in self.columns if column.name not in self.key]
        if not self.key:
            return sql.SQL("")
        if not others:
            return sql.SQL(" ON CONFLICT ({}) DO NOTHING").format(names(self.key))
        updates = sql.SQL(", ").join(
            sql.SQL("{} = {}").format(sql.Identifier(name), sql.Identifier("excluded", name))
            for name in others
        )
        upsert = sql.SQL(" ON CONFLICT ({}) DO UPDATE SET {}").format(names(self.key), updates)
        if self.latest_by is None:
            return upsert
        # What came late must not replace what is newer, whichever batches they happened to be in.
        return upsert + sql.SQL(" WHERE {old} IS NULL OR {new} >= {old}").format(
            old=sql.Identifier("t", self.latest_by), new=sql.Identifier("excluded", self.latest_by)
        )

    def _commit(self, connection: Connection) -> None:
        connection.execute("COMMIT")
