"""A set of whole numbers that mostly come one after the other, kept as the intervals that they fill.

A source numbers its records without holes, and a partition keeps their order: what a consumer has done of one
source is usually a single interval, however many records it was. Numbers that come early or late cost an
interval each until the hole beside them is filled.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gapless.errors import GaplessError


class Run(NamedTuple):
    """Numbers without a hole, both ends included."""

    first: int
    last: int


class IntervalsOverlap(GaplessError):
    """Intervals that were read back touch or overlap: whoever wrote them, it was not this code alone."""


class Intervals:
    """Numbers >= 0. Asking and adding take logarithmic time in the number of intervals.

    >>> done = Intervals([(0, 4)])
    >>> done.add(5), done.add(3), done.add(9)
    (True, False, True)
    >>> list(done)
    [Run(first=0, last=5), Run(first=9, last=9)]
    """

    __slots__ = ("_bounds",)

    # Where membership changes, in order: [first, last + 1, first, last + 1, ...]. A number is in the set when
    # an odd count of bounds is not above it.

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        self._bounds: list[int] = []
        for first, last in runs:
            if last < first or first < 0 or (self._bounds and first <= self._bounds[-1]):
                raise IntervalsOverlap(
                    f"the interval {first}-{last} is not apart from and above those before it"
                )
            self._bounds += (first, last + 1)

    def __contains__(self, number: int) -> bool:
        return bisect_right(self._bounds, number) & 1 == 1

    def __iter__(self) -> Iterator[Run]:
        return (Run(first, end - 1) for first, end in zip(self._bounds[::2], self._bounds[1::2], strict=True))

    def __len__(self) -> int:
        """How many intervals there are."""
        return len(self._bounds) >> 1

    def count(self) -> int:
        """How many numbers there are."""
        return sum(self._bounds[1::2]) - sum(self._bounds[::2])

    def run_with(self, number: int) -> Run | None:
        """The interval that a number is in."""
        at = bisect_right(self._bounds, number)
        return Run(self._bounds[at - 1], self._bounds[at] - 1) if at & 1 else None

    def add(self, number: int) -> bool:
        """Add one number; False if it was there."""
        bounds = self._bounds
        if bounds and bounds[-1] == number:
            bounds[-1] = number + 1
            return True
        if number in self:
            return False
        self._fill(number, number + 1)
        return True

    @property
    def end(self) -> int:
        """One more than the highest number; 0 if there is none."""
        return self._bounds[-1] if self._bounds else 0

    def extend(self, end: int) -> None:
        """Let the last interval go on up to there."""
        self._bounds[-1] = max(self._bounds[-1], end)

    def _fill(self, start: int, end: int) -> None:
        """Add numbers of which none is there; join with the neighbours that they touch."""
        bounds = self._bounds
        at = bisect_left(bounds, start)
        joins_below = at < len(bounds) and bounds[at] == start and at & 1 == 1
        above = at + 1 if joins_below else at
        joins_above = above < len(bounds) and bounds[above] == end and above & 1 == 0
        if joins_below and joins_above:
            del bounds[at : at + 2]
        elif joins_below:
            bounds[at] = end
        elif joins_above:
            bounds[above] = start
        else:
            bounds[at:at] = (start, end)

    def remove(self, run: Run) -> None:
        """Take numbers out again, all of which are there in one interval."""
        bounds = self._bounds
        start, end = run.first, run.last + 1
        at = bisect_right(bounds, start)
        if at & 1 == 0 or bounds[at] < end:
            raise IntervalsOverlap(
                f"the interval {run.first}-{run.last} cannot be taken out: it is not there"
            )
        keeps_below, keeps_above = bounds[at - 1] < start, bounds[at] > end
        if keeps_below and keeps_above:
            bounds[at:at] = (start, end)
        elif keeps_below:
            bounds[at] = start
        elif keeps_above:
            bounds[at - 1] = end
        else:
            del bounds[at - 1 : at + 1]
