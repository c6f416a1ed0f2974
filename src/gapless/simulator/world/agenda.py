"""Virtual time: what will happen, and when. What is due at the same time happens in the order of planning."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush


class Agenda:
    """A queue of things to do."""

    __slots__ = ("_order", "_queue", "now_ms")

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self._queue: list[tuple[int, int, Callable[[], object]]] = []
        self._order = 0

    def at(self, due_ms: int, action: Callable[[], object]) -> None:
        """Do something at a time, or now if that has passed."""
        self._order += 1
        heappush(self._queue, (max(self.now_ms, due_ms), self._order, action))

    def after(self, ms: int, action: Callable[[], object]) -> None:
        """Do something later."""
        self._order += 1
        heappush(self._queue, (self.now_ms + ms, self._order, action))

    def next_due(self, end_ms: int) -> int:
        """When the next thing is due; after `end_ms` if nothing is by then."""
        return self._queue[0][0] if self._queue else end_ms + 1

    def take_next(self) -> Callable[[], object]:
        """What is due first, to be done now."""
        return heappop(self._queue)[2]
