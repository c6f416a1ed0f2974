"""Who has a store open: consumers of one group may share it, and what is open ends with the last of them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gapless.errors import UsageError


class Openings:
    """Counts those who have opened a store and not closed it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._group: str | None = None
        self._count = 0

    def enter(self, group: str) -> None:
        """UsageError if the store is open for another group: what is done is remembered under one name."""
        with self._lock:
            if self._count and group != self._group:
                raise UsageError(
                    f"the store is open for group {self._group!r}, and group {group!r} would mark its records"
                    " under that name: give each group a store of its own (the database may be the same)"
                )
            self._group = group
            self._count += 1

    def leave(self, end: Callable[[], None]) -> None:
        """Who was the last ends what is open, before anybody opens it again."""
        with self._lock:
            self._count = max(0, self._count - 1)
            if self._count == 0:
                end()
