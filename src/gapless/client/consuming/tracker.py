"""How far a partition is done, when its records are finished in any order. Pure.

A position is what may be committed: all records before it are finished. Offsets that were never delivered
(markers of transactions, records that compaction took) hold nothing up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from gapless.errors import InvariantViolated


class OffsetTracker:
    """What of one partition was delivered, and what of that is finished."""

    __slots__ = ("_done", "_end", "_last", "_waiting")

    def __init__(self, start: int | None = None) -> None:
        self._waiting: deque[int] = deque()
        """Delivered and not passed yet, ascending."""
        self._done: set[int] = set()
        """Finished ahead of one that is not."""
        self._end = start
        self._last = -1

    @property
    def position(self) -> int | None:
        """The first offset that is not known to be done; None before anything is known."""
        return self._waiting[0] if self._waiting else self._end

    @property
    def unfinished(self) -> int:
        """Records delivered and not finished."""
        return len(self._waiting) - len(self._done)

    def delivered(self, offsets: Iterable[int]) -> None:
        """These come next, ascending, each above all before."""
        before = len(self._waiting)
        self._waiting.extend(offsets)
        if len(self._waiting) == before:
            return
        if self._waiting[before] <= self._last:
            raise InvariantViolated(f"offset {self._waiting[before]} was delivered after {self._last}")
        self._last = self._waiting[-1]
        self._end = self._last + 1

    def done(self, offsets: Iterable[int]) -> None:
        """These are finished, in whatever order."""
        waiting, done = self._waiting, self._done
        for offset in offsets:
            if waiting and waiting[0] == offset:
                waiting.popleft()
            else:
                done.add(offset)
        while waiting and waiting[0] in done:
            done.remove(waiting.popleft())
