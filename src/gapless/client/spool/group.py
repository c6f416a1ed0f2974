"""Records that are made durable together: by one write and one sync."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from gapless.client.spool.blocks import Row, Rows, Stream
from gapless.client.spool.errors import SpoolError


class Group:
    """What is pending, and in the end whether it was stored."""

    __slots__ = (
        "_door",
        "_parts",
        "failure",
        "first",
        "granted_bytes",
        "is_stored",
        "is_urgent",
        "rows",
        "rows_at",
        "since",
        "size_bytes",
    )

    def __init__(self, first: int) -> None:
        self.first = first
        self._parts: list[Rows] = []
        """Its records, but for the last."""
        self.rows: list[Row] = []
        """The last ones, which came one by one."""
        self.rows_at = first
        """Their position."""
        self.size_bytes = 0
        """Of its records, as they will be on disk; counted when somebody asks for room."""
        self.granted_bytes = 0
        """May be appended before somebody must ask again. Whoever appends subtracts from it."""
        self.since = 0.0
        """When its first record came."""
        self.is_urgent = False
        """Somebody waits for it."""
        self.is_stored = False
        self.failure: SpoolError | None = None
        self._door = threading.Lock()
        self._door.acquire()

    @property
    def end(self) -> int:
        return self.rows_at + len(self.rows)

    def add(self, batch: Rows, following: Mapping[Stream, int]) -> None:
        """Records that came together, and the next sequence of each of their streams."""
        before = {stream: stream.next_sequence for stream in following}
        end = self.end + len(batch.values)
        new = [Rows.of(self.rows), batch] if self.rows else [batch]
        try:
            for stream, sequence in following.items():
                stream.next_sequence = sequence
            # No call, and no round of a loop, between these: an interrupt comes before or after all of them.
            self._parts += new
            self.rows = []
            self.rows_at = end
        except BaseException:
            for stream, sequence in before.items():
                stream.next_sequence = sequence
            raise

    def columns(self) -> Rows:
        """All of its records. Nothing can be appended any more."""
        if self.rows or len(self._parts) > 1:
            parts = [*self._parts, Rows.of(self.rows)] if self.rows else self._parts
            self._parts, self.rows_at, self.rows = [Rows.joined(parts)], self.end, []
        return self._parts[0]

    def forget_records(self) -> None:
        """Those who keep a ticket need not keep the records."""
        self._parts = []

    def settle(self, failure: SpoolError | None) -> None:
        """Stored, or never."""
        self.failure = failure
        self.is_stored = failure is None
        self._door.release()

    @property
    def is_settled(self) -> bool:
        return self.is_stored or self.failure is not None

    def wait(self) -> None:
        """Until it is settled. Far quicker than a condition, and each who passes lets the next one pass."""
        with self._door:
            pass
