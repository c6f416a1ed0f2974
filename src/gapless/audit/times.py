"""How many records there were when: counts in slots of time that widen as the time gets longer.

A slot is some power of two of seconds, so that two histories of any widths can be added. What is kept is
bounded: by so many slots for each of few makers, and fewer for each of many.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gapless.pipeline.dedup.runs import Ints

NARROWEST_MS = 1000
_MOST_SLOTS, _FEWEST_SLOTS, _MOST_COUNTS = 240, 12, 200_000
_SLOT_BITS = 40
_LATEST_MS = NARROWEST_MS << _SLOT_BITS


class History:
    """Counts by key and slot."""

    def __init__(self, width_ms: int = NARROWEST_MS) -> None:
        self.width_ms = width_ms
        self._counts: dict[int, int] = {}
        self._earliest = self._latest = 0
        self._keys = 0

    def add(self, keys: Ints, times_ms: Ints, counts: Ints | None = None) -> None:
        """Records, one for each row, or as many as it says. What has no time is left out."""
        known = (times_ms >= 0) & (times_ms < _LATEST_MS)
        if not known.all():
            keys, times_ms = keys[known], times_ms[known]
            counts = None if counts is None else counts[known]
        if not len(keys):
            return
        self._make_room(int(times_ms.min()), int(times_ms.max()), int(keys.max()) + 1)
        combined = (keys << _SLOT_BITS) | (times_ms // self.width_ms)
        cells, inverse = np.unique(combined, return_inverse=True)
        sums = np.bincount(inverse, counts, len(cells)).astype(np.int64)
        for cell, count in zip(cells.tolist(), sums.tolist(), strict=True):
            self._counts[cell] = self._counts.get(cell, 0) + count

    def cells(self) -> Iterator[tuple[int, int, int]]:
        """Key, beginning of the slot in ms, count."""
        mask = (1 << _SLOT_BITS) - 1
        for cell, count in sorted(self._counts.items()):
            yield cell >> _SLOT_BITS, (cell & mask) * self.width_ms, count

    def _make_room(self, earliest: int, latest: int, keys: int) -> None:
        self._earliest = min(earliest, self._earliest) if self._counts else earliest
        self._latest = max(latest, self._latest) if self._counts else latest
        self._keys = max(keys, self._keys)
        most = min(_MOST_SLOTS, max(_FEWEST_SLOTS, _MOST_COUNTS // self._keys))
        while self._latest // self.width_ms - self._earliest // self.width_ms >= most:
            self._widen()

    def _widen(self) -> None:
        self.width_ms *= 2
        mask = (1 << _SLOT_BITS) - 1
        before, self._counts = self._counts, {}
        for cell, count in before.items():
            wider = (cell & ~mask) | ((cell & mask) >> 1)
            self._counts[wider] = self._counts.get(wider, 0) + count
