"""Records that are made durable together: by one write and one sync."""

from __future__ import annotations

import threading

from gapless.client.spool.blocks import Row
from gapless.client.spool.errors import SpoolError


class Group:
    """What is pending, and in the end whether it was stored."""

    __slots__ = (
        "_door",
        "failure",
        "first",
        "granted_bytes",
        "is_stored",
        "is_urgent",
        "rows",
        "since",
        "size_bytes",
    )

    def __init__(self, first: int) -> None:
        self.first = first
        self.rows: list[Row] = []
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
        return self.first + len(self.rows)

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
