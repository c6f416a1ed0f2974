"""Things to do at a time: session timeouts, rebalance deadlines, transaction timeouts, expirations.

A timer that is put off often (a member's session, with every heartbeat) costs one comparison then, and is
moved only when its old time comes.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush


class Timer:
    """One thing to do. Cancel it, or put it off, at any time."""

    __slots__ = ("action", "due_ms", "live")

    def __init__(self, due_ms: int, action: Callable[[], None]) -> None:
        self.due_ms = due_ms
        self.action = action
        self.live = True

    def cancel(self) -> None:
        """Never do it."""
        self.live = False

    def put_off(self, due_ms: int) -> None:
        """Do it later than planned."""
        self.due_ms = max(self.due_ms, due_ms)


class Timers:
    """All timers of a node. Those due at the same time run in the order in which they were set."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._order = 0

    def __len__(self) -> int:
        return sum(timer.live for _, _, timer in self._heap)

    def at(self, due_ms: int, action: Callable[[], None]) -> Timer:
        """Do `action` at `due_ms`."""
        timer = Timer(due_ms, action)
        self._push(timer)
        return timer

    def _push(self, timer: Timer) -> None:
        self._order += 1
        heappush(self._heap, (timer.due_ms, self._order, timer))
        if self._order % 4096 == 0:  # the cancelled must not pile up until their time comes
            self._heap = [item for item in self._heap if item[2].live]
            heapify(self._heap)

    def next_due(self) -> int | None:
        """When the first timer is due, or is to be looked at again."""
        heap = self._heap
        while heap and not heap[0][2].live:
            heappop(heap)
        return heap[0][0] if heap else None

    def run_due(self, now_ms: int) -> None:
        """Do everything whose time has come.

        What is set meanwhile waits for the next call, even if it is due: work that goes on in slices lets
        others have their turn in between.
        """
        newest = self._order
        while self._heap and self._heap[0][0] <= now_ms and self._heap[0][1] <= newest:
            timer = heappop(self._heap)[2]
            if not timer.live:
                continue
            if timer.due_ms > now_ms:
                self._push(timer)
            else:
                timer.live = False
                timer.action()
