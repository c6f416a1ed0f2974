"""The table `gapless_markers`: how far each slot of a sink is written. It lies beside the rows' table.

`position` is the next source offset of a slot that is a source partition, or the next batch of one that is a
task. It moves in the transaction that writes the slot's rows, and belongs to the checkpoint that made it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from psycopg import sql

from gapless.pipeline.sinks.port import SinkRefused
from gapless.pipeline.sinks.postgres.connection import Connection
from gapless.pipeline.sinks.postgres.tables import Table, exists, make
from gapless.pipeline.slots import MarkerMismatch, Slot

NAME = "gapless_markers"

_DEFINITION = sql.SQL(
    "CREATE TABLE IF NOT EXISTS {} (pipeline text, sink text, slot text, position bigint NOT NULL,"
    " batch bigint NOT NULL, checkpoint text NOT NULL, updated timestamptz NOT NULL DEFAULT now(),"
    " PRIMARY KEY (pipeline, sink, slot))"
)
_OWNED = sql.SQL("pipeline = %(pipeline)s AND sink = %(sink)s")
_MAKE = sql.SQL(
    "INSERT INTO {} (pipeline, sink, slot, position, batch, checkpoint)"
    " VALUES (%(pipeline)s, %(sink)s, %(slot)s, %(position)s, %(batch)s, %(checkpoint)s)"
    " ON CONFLICT (pipeline, sink, slot) DO "
)
_RESET = sql.SQL(
    "UPDATE SET position = excluded.position, batch = excluded.batch, updated = now()"
    " WHERE {}.checkpoint = excluded.checkpoint"
)


class Markers(NamedTuple):
    """The markers of one sink of one pipeline, as one checkpoint may move them."""

    table: Table
    pipeline: str
    sink: str
    checkpoint: str

    def make_table(self, connection: Connection) -> None:
        """Make the table if it is not there. Two processes may try at once."""
        if not exists(connection, self.table):
            make(connection, _DEFINITION.format(self.table.quoted()))

    def check_owner(self, connection: Connection) -> None:
        """Raise if another checkpoint made these markers."""
        if not exists(connection, self.table):
            return
        row = connection.execute(
            sql.SQL("SELECT checkpoint FROM {} WHERE {} AND checkpoint <> %(checkpoint)s LIMIT 1").format(
                self.table.quoted(), _OWNED
            ),
            self._names(),
        ).fetchone()
        if row is not None:
            raise self.refusal()

    def refusal(self) -> SinkRefused:
        return SinkRefused(
            f"another checkpoint of pipeline {self.pipeline} has written to sink {self.sink} (see table "
            f"{self.table}): bring that checkpoint back, give the pipeline a new name, or run "
            "`gapless pipeline clean FILE`, after which everything is written again"
        )

    def establish(self, connection: Connection, slots: Sequence[Slot], *, reset: bool) -> None:
        """Let each slot have a marker; set those that there are only with `reset`."""
        statement = _MAKE.format(self.table.quoted()) + (
            _RESET.format(self.table.quoted()) if reset else sql.SQL("NOTHING")
        )
        values = [
            {**self._names(), "slot": slot.name, "position": slot.start, "batch": slot.batch}
            for slot in slots
        ]
        with connection.transaction(), connection.cursor() as cursor:
            cursor.executemany(statement, values)
            self.check_owner(connection)

    def take(self, connection: Connection, slot: str) -> int | None:
        """The slot's position, which nobody else can move until this transaction ends; None if it is gone."""
        row = connection.execute(
            sql.SQL("SELECT position, checkpoint FROM {} WHERE {} AND slot = %(slot)s FOR UPDATE").format(
                self.table.quoted(), _OWNED
            ),
            {**self._names(), "slot": slot},
        ).fetchone()
        if row is None:
            return None
        position, checkpoint = row
        if checkpoint != self.checkpoint:
            raise MarkerMismatch(str(self.refusal()))
        return int(position)

    def move(self, connection: Connection, slot: Slot) -> None:
        connection.execute(
            sql.SQL(
                "UPDATE {} SET position = %(position)s, batch = %(batch)s, updated = now()"
                " WHERE {} AND slot = %(slot)s"
            ).format(self.table.quoted(), _OWNED),
            {**self._names(), "slot": slot.name, "position": slot.end, "batch": slot.batch},
        )

    def check_not_ahead(self, connection: Connection, batch: int) -> None:
        """Raise if tasks have written this batch or a later one, though the checkpoint never began it.

        A source partition's marker is an offset, which says by itself what is written. A task's marker is the
        number of a batch, and an old copy of the checkpoint may have other rows under that number.
        """
        row = connection.execute(
            sql.SQL(
                "SELECT batch FROM {} WHERE {} AND slot ~ '^task-[0-9]+$' AND position = batch + 1"
                " AND position > %(number)s ORDER BY batch DESC LIMIT 1"
            ).format(self.table.quoted(), _OWNED),
            {**self._names(), "number": batch},
        ).fetchone()
        if row is not None:
            raise MarkerMismatch(
                f"sink {self.sink} has batch {row[0]}, which this checkpoint has not reached: it is an old "
                "copy. Bring the newest one back, or give the pipeline a new name"
            )

    def positions(self, connection: Connection) -> dict[str, int]:
        """Every slot's position."""
        if not exists(connection, self.table):
            return {}
        return dict(
            connection.execute(
                sql.SQL("SELECT slot, position FROM {} WHERE {} ORDER BY slot").format(
                    self.table.quoted(), _OWNED
                ),
                self._names(),
            ).fetchall()
        )

    def restore(self, connection: Connection, positions: Mapping[str, int], batch: int) -> list[str]:
        """Make those of the markers that are not there. Says which."""
        statement = _MAKE.format(self.table.quoted()) + sql.SQL("NOTHING")
        made = []
        with connection.transaction():
            self.check_owner(connection)
            for slot, position in positions.items():
                values = {**self._names(), "slot": slot, "position": position, "batch": batch}
                if connection.execute(statement, values).rowcount == 1:
                    made.append(slot)
        return made

    def remove(self, connection: Connection) -> None:
        connection.execute(
            sql.SQL("DELETE FROM {} WHERE {}").format(self.table.quoted(), _OWNED), self._names()
        )

    def _names(self) -> dict[str, str]:
        return {"pipeline": self.pipeline, "sink": self.sink, "checkpoint": self.checkpoint}
