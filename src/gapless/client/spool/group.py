"""Records that are made durable together: by one write and one sync."""

from __future__ import annotations

from gapless.client.spool.blocks import Row
from gapless.client.spool.errors import SpoolError


class Group:
    """What is pending, and in the end whether it was stored."""

    __slots__ = ("failure", "first", "is_stored", "rows", "since", "size_bytes")

    def __init__(self, first: int) -> None:
        self.first = first
        self.rows: list[Row] = []
        self.size_bytes = 0
        """Of its records, as they will be on disk."""
        self.since = 0.0
        """When its first record came."""
        self.is_stored = False
        self.failure: SpoolError | None = None

    @property
    def end(self) -> int:
        return self.first + len(self.rows)
