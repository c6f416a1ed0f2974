"""How far one partition is: the next offset, and which sequences of which source are done. Pure.

A record is done when its offset lies below the next one, or when its identity is marked: the same record may
stand in the log twice, when a producer had to send it again. Changes are pending until the store has
committed them; after a rollback the progress is what it was before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gapless.client.formats import SEQUENCE_HEADER, identity_of, sequence_header
from gapless.client.records import Record
from gapless.client.stores.intervals import Intervals, Run

MAX_SEQUENCE = (1 << 63) - 2
"""The highest that databases can keep. A header that says more is not of our producers."""

_NOTHING_YET = -1

Stream = tuple[str, bytes]
"""Source and incarnation."""


class Mark(NamedTuple):
    """An interval as it is kept in a table: one row."""

    source: str
    incarnation: bytes
    first: int
    last: int


class MarkChange(NamedTuple):
    """A row that begins at `first` is written; with `swallows`, those that begin in the rest of it go."""

    mark: Mark
    swallows: bool


class Progress:
    """What is done of one partition, with the changes that are not yet committed."""

    __slots__ = ("_added", "_by_identity", "_marks", "_next", "_next_committed")

    def __init__(
        self, next_offset: int | None = None, marks: Iterable[Mark] = (), *, by_identity: bool = True
    ) -> None:
        self._next = self._next_committed = _NOTHING_YET if next_offset is None else next_offset
        self._by_identity = by_identity
        self._added: dict[Stream, Intervals] = {}
        runs: dict[Stream, list[Run]] = {}
        for mark in marks:
            runs.setdefault((mark.source, mark.incarnation), []).append(Run(mark.first, mark.last))
        self._marks = {stream: Intervals(sorted(found)) for stream, found in runs.items()}

    @property
    def next_offset(self) -> int | None:
        """The offset after the last that is done, pending ones too; None before the first."""
        return None if self._next == _NOTHING_YET else self._next

    def is_past(self, offset: int) -> bool:
        """Whether the offset alone tells that a record is done."""
        return offset < self._next

    def advance(self, record: Record) -> bool:
        """Note a record as done, pending; False if it had been done before. In the order of offsets."""
        if record.offset < self._next:
            return False
        self._next = record.offset + 1
        identity = identity_of(record.headers) if self._by_identity else None
        if identity is None or identity.sequence > MAX_SEQUENCE:
            return True
        source, incarnation, sequence = identity
        stream = (source, incarnation)
        marks = self._marks.get(stream)
        if marks is None:
            marks = self._marks[stream] = Intervals()
        if not marks.add(sequence):
            return False
        added = self._added.get(stream)
        if added is None:
            added = self._added[stream] = Intervals()
        added.add(sequence)
        return True

    def advance_all(self, records: Iterable[Record]) -> list[Record]:
        """As `advance` for each of the records, which are in the order of offsets; those that are new.

        Most records continue a run: the same source, the next sequence, and none above it is marked. For
        these it is enough to compare headers with the expected ones; the run is noted when it ends.
        """
        new: list[Record] = []
        add, end = new.append, 0
        expected: list[tuple[str, bytes | None]] = []  # a record without headers continues no run
        stream: Stream | None = None
        for record in records:
            headers = record.headers
            if headers == expected and stream is not None:
                end += 1
                expected[1] = (SEQUENCE_HEADER, sequence_header(end))
                add(record)
                continue
            if stream is not None:
                self._extend(stream, end, new[-1].offset)
                stream = None
            if not self.advance(record):
                continue
            add(record)
            identity = identity_of(headers) if self._by_identity and len(headers) == 2 else None
            if identity is not None and identity.sequence < MAX_SEQUENCE // 2:
                end = identity.sequence + 1
                if self._marks[identity.source, identity.incarnation].end == end:
                    stream = (identity.source, identity.incarnation)
                    expected = [headers[0], (SEQUENCE_HEADER, sequence_header(end))]
        if stream is not None:
            self._extend(stream, end, new[-1].offset)
        return new

    def _extend(self, stream: Stream, end: int, last_offset: int) -> None:
        """Note the rest of a run, of which the first is noted."""
        self._marks[stream].extend(end)
        self._added[stream].extend(end)
        self._next = last_offset + 1

    def changes(self) -> list[MarkChange]:
        """The rows that make a table say what is pending, each once."""
        found: dict[tuple[Stream, int], MarkChange] = {}
        for stream, added in self._added.items():
            marks = self._marks[stream]
            for run in added:
                whole = marks.run_with(run.first) or run
                earlier = found.get((stream, whole.first))
                # What follows the new numbers inside the whole was there before: a row that began there.
                swallows = whole.last > run.last or (earlier is not None and earlier.swallows)
                found[stream, whole.first] = MarkChange(Mark(*stream, *whole), swallows)
        return list(found.values())

    def commit(self) -> None:
        """What was pending is so."""
        self._added.clear()
        self._next_committed = self._next

    def rollback(self) -> None:
        """What was pending never was."""
        for stream, added in self._added.items():
            marks = self._marks[stream]
            for run in added:
                marks.remove(run)
            if not len(marks):
                del self._marks[stream]
        self._added.clear()
        self._next = self._next_committed

    def marks(self) -> list[Mark]:
        """All intervals, pending ones too."""
        return [Mark(*stream, *run) for stream, marks in self._marks.items() for run in marks]
