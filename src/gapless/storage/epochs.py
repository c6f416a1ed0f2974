"""Which leader epoch began at which offset: the history by which replicas find the point where they diverge.

An entry is made by the first batch of a newer epoch. The history always describes the log as it is: cut at
its end, entries of cut batches go; cut at its start, the epoch in force there begins at the new start.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter

NONE = -1

_epoch_of = itemgetter(0)
_start_of = itemgetter(1)


class EpochHistory:
    """Ascending (epoch, start offset) entries. Every change sets `changed`, for whoever keeps a file."""

    __slots__ = ("changed", "entries", "latest")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self.entries = list(entries)
        self.latest = self.entries[-1][0] if self.entries else NONE
        self.changed = False

    def begin(self, epoch: int, offset: int) -> None:
        """The batch at `offset` is the first of `epoch`; an epoch that is known or older changes nothing."""
        if epoch > self.latest:
            self._replace([*self.entries, (epoch, offset)])

    def end_of(self, epoch: int, end_offset: int) -> tuple[int, int]:
        """The largest known epoch at or below `epoch`, and where the next one (or nothing) begins.

        One that is older than all that is known has ended where they begin: what it wrote was deleted.
        """
        if epoch < 0 or not self.entries:
            return NONE, NONE
        index = bisect_right(self.entries, epoch, key=_epoch_of)
        if index == 0:
            return epoch, self.entries[0][1]
        ends_at = self.entries[index][1] if index < len(self.entries) else end_offset
        return self.entries[index - 1][0], ends_at

    def cut_end(self, offset: int) -> None:
        """Forget epochs that began at or after `offset`."""
        if self.entries and self.entries[-1][1] >= offset:
            self._replace([entry for entry in self.entries if entry[1] < offset])

    def cut_start(self, offset: int) -> None:
        """Forget epochs that ended before `offset`; the one in force there begins at it."""
        index = bisect_right(self.entries, offset, key=_start_of)
        if index > 1 or (index and self.entries[0][1] < offset):
            self._replace([(self.entries[index - 1][0], offset), *self.entries[index:]])

    def clear(self) -> None:
        """Forget everything."""
        self._replace([])

    def _replace(self, entries: list[tuple[int, int]]) -> None:
        self.entries = entries
        self.latest = entries[-1][0] if entries else NONE
        self.changed = True
