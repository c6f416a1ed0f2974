"""Records that are made durable together: by one write and one sync."""

from __future__ import annotations

from gapless.client.spool.errors import SpoolError


class Group:
    """What is pending, and in the end whether it was stored."""

    __slots__ = ("failure", "is_stored")

    def __init__(self) -> None:
        self.is_stored = False
        self.failure: SpoolError | None = None
