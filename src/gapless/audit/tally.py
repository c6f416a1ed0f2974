"""What one partition holds, counted by the task that reads it: columns in, a few rows out.

    tally = Tally()
    tally.add(makers, sequences, offsets, times_ms)    # Arrow columns, in the order of the log
    tally.rows()                                       # a RecordBatch of `SCHEMA`

Of most sources a partition holds one stretch, however many records there are; so what is kept follows
sources and gaps, not records. Repeated and late records are counted all, and named up to a limit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from gapless.audit.stretches import (
    HIGHEST,
    Spots,
    Stretches,
    concatenated,
    no_stretches,
    rejoined,
    stretches_of,
    united,
)
from gapless.audit.times import History
from gapless.pipeline.dedup.makers import Makers
from gapless.pipeline.dedup.runs import Flags, Ints, Runs, no_runs, sift
from gapless.pipeline.dedup.seen import Seen

HELD, AGAIN, LATE, WHOLE, WHEN, BEYOND = "held", "again", "late", "whole", "when", "beyond"
"""Kinds of rows: sequences that are there; that came again; that came after a later one; the partition as a
whole (`first` of its `last` records have no identity); records by time (`last` of them in a slot of `first`
ms); how many more of a maker came again (`first`) and late (`last`) than are named."""

SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("maker", pa.binary()),
        *((name, pa.int64()) for name in ("first", "last")),
        *((f"first_{name}", pa.int64()) for name in ("offset", "ms", "row")),
        *((f"last_{name}", pa.int64()) for name in ("offset", "ms", "row")),
    ]
)
MOST_NAMED = 50_000
_NO_SPOT = (-1, -1, -1)


class Before(NamedTuple):
    """What is known of a partition from reading it up to an offset."""

    end: int
    records: int
    seen: Seen


class Tally:
    """Counts the records of one partition, which must come in the order of the log.

    Or those that have come since it was read `before`: then it tells only what is new.
    """

    def __init__(self, before: Before | None = None, *, most_named: int = MOST_NAMED) -> None:
        self._makers = Makers()
        self._seen = Seen.nothing() if before is None else before.seen
        self._before = no_runs()
        self._first_row = 0 if before is None else before.records
        self._held = no_stretches()
        self._again = _Named(most_named)
        self._late = _Named(most_named)
        self._highest = np.empty(0, np.int64)
        self._when = History()
        self._records = self._without_identity = 0
        self._begin: tuple[int, ...] = _NO_SPOT
        self._end: tuple[int, ...] = _NO_SPOT

    def add(self, makers: Any, sequences: Any, offsets: Any, times_ms: Any) -> None:
        if not len(offsets):
            return
        count = len(offsets)
        first_row = self._first_row + self._records
        spots = Spots(offsets.to_numpy(), times_ms.to_numpy(), first_row + np.arange(count))
        if not self._records:
            self._begin = tuple(int(column[0]) for column in spots)
        self._end = tuple(int(column[-1]) for column in spots)
        self._records += count
        met = len(self._makers.known)
        told = self._makers.read(makers, sequences)
        if len(self._makers.known) > met:
            self._recall(met)
        possible = told.sequences < HIGHEST
        places, keys, numbers = (column[possible] for column in told)
        self._without_identity += count - len(places)
        if len(places):
            self._judge(keys, numbers, spots.at(places))

    def rows(self) -> Any:
        """All that was found, as one RecordBatch."""
        whole = (WHOLE, None, self._without_identity, self._records, *self._begin, *self._end)
        table = [
            whole,
            *self._rows_of(HELD, self._held),
            *self._rows_of(AGAIN, self._again.stretches()),
            *self._rows_of(LATE, self._late.stretches()),
        ]
        for key, begins_ms, count in self._when.cells():
            spot = (-1, begins_ms, -1)
            table.append((WHEN, self._makers.known[key], self._when.width_ms, count, *spot, *spot))
        for key in sorted(self._again.beyond.keys() | self._late.beyond.keys()):
            beyond = (self._again.beyond.get(key, 0), self._late.beyond.get(key, 0))
            table.append((BEYOND, self._makers.known[key], *beyond, *_NO_SPOT, *_NO_SPOT))
        return pa.RecordBatch.from_arrays(
            [
                pa.array(column, each.type)
                for column, each in zip(zip(*table, strict=True), SCHEMA, strict=True)
            ],
            schema=SCHEMA,
        )

    def _judge(self, keys: Ints, sequences: Ints, spots: Spots) -> None:
        self._when.add(keys, spots.times_ms)
        fresh, _ = sift(keys, sequences, self._before, self._held.runs)
        order = np.argsort(keys, kind="stable")
        keys, sequences, spots, fresh = keys[order], sequences[order], spots.at(order), fresh[order]
        late = fresh & self._are_late(keys, sequences)
        for flags, named in ((~fresh, self._again), (late, self._late)):
            if flags.any():
                named.add(stretches_of(keys[flags], sequences[flags], spots.at(flags)))
        if late.any():
            order = np.lexsort((sequences, keys))
            keys, sequences, spots, fresh = keys[order], sequences[order], spots.at(order), fresh[order]
        if fresh.any():
            new = stretches_of(keys[fresh], sequences[fresh], spots.at(fresh))
            self._held = united(self._held, new)

    def _recall(self, met: int) -> None:
        """Look up what was seen before of makers who are new here."""
        known = self._makers.known
        keys, firsts, lasts = self._seen.runs_of(pa.array(known[met:], pa.binary()))
        # New keys are greater than all before them, so the runs stay sorted.
        columns = zip(self._before, (keys + met, firsts, lasts), strict=True)
        self._before = Runs(*map(np.concatenate, columns))
        highest = np.full(len(known) - met, -1, np.int64)
        np.maximum.at(highest, keys, lasts)
        self._highest = np.concatenate([self._highest, highest])

    def _are_late(self, keys: Ints, sequences: Ints) -> Flags:
        """Of rows by key, otherwise as they came: those that come after a higher sequence of their key."""
        starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
        before = np.empty(len(keys), np.int64)
        before[1:] = sequences[:-1]
        before[starts] = self._highest[keys[starts]]
        late = sequences < before
        if late.any():
            ends = np.append(starts[1:], len(keys))
            for group in np.unique(np.searchsorted(starts, np.flatnonzero(late), "right") - 1):
                part = slice(starts[group], ends[group])
                highest = np.maximum.accumulate(before[part])
                late[part] = sequences[part] < highest
        own = keys[starts]
        self._highest[own] = np.maximum(self._highest[own], np.maximum.reduceat(sequences, starts))
        return late

    def _rows_of(self, kind: str, found: Stretches) -> list[tuple[Any, ...]]:
        makers = [self._makers.known[key] for key in found.keys.tolist()]
        columns = (found.firsts, found.lasts, *found.begins, *found.ends)
        return [(kind, *row) for row in zip(makers, *(column.tolist() for column in columns), strict=True)]


class _Named:
    """Stretches up to a limit, and how many records there were beyond it."""

    def __init__(self, limit: int) -> None:
        self._room = limit
        self._parts = [no_stretches()]
        self.beyond: dict[int, int] = {}
        """Records by key."""

    def add(self, more: Stretches) -> None:
        named = more.at(np.arange(min(self._room, len(more.keys))))
        rest = more.at(np.arange(len(named.keys), len(more.keys)))
        self._room -= len(named.keys)
        self._parts.append(named)
        for key, size in zip(rest.keys.tolist(), (rest.lasts - rest.firsts + 1).tolist(), strict=True):
            self.beyond[key] = self.beyond.get(key, 0) + size

    def stretches(self) -> Stretches:
        """By key, and as they came. What was cut between two batches of columns is whole again."""
        every = concatenated(self._parts)
        return rejoined(every.at(np.lexsort((every.begins.rows, every.keys))))
