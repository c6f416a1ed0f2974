"""Produce requests of transactions, queued so that none overtakes an earlier one in a partition.

A request waits for the coordinator of transactions if a partition is not yet part of the producer's
transaction. The producer does not wait: up to five of its requests are in flight. If a later one came to the
log first, it would be refused, because its sequence is not the next one. So a request starts when no earlier
one of the same transactional id is left in any of its partitions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from gapless.core.contract import TopicPartition

Start = Callable[[Callable[[], None]], None]
"""Starts a request. It gets a function to call once, when all its batches were appended or refused."""


class _Entry:
    """One request, from its arrival until it was appended or refused."""

    __slots__ = ("blocking", "has_left", "keys", "start")

    def __init__(self, keys: list[tuple[str, TopicPartition]], start: Start) -> None:
        self.keys = keys
        self.start = start
        self.blocking = 0
        """In how many of its queues another request is ahead of it."""
        self.has_left = False


class ProduceQueues:
    """All queues of a node: one for each transactional id and partition that is in use."""

    def __init__(self) -> None:
        self._queues: dict[tuple[str, TopicPartition], deque[_Entry]] = {}
        self._left: deque[_Entry] = deque()
        self._is_releasing = False

    def __len__(self) -> int:
        return len(self._queues)

    def enter(self, transactional_id: str, partitions: Iterable[TopicPartition], start: Start) -> None:
        """Call `start` when it is this request's turn in all its partitions, which may be now."""
        entry = _Entry([(transactional_id, name) for name in dict.fromkeys(partitions)], start)
        for key in entry.keys:
            queue = self._queues.setdefault(key, deque())
            if queue:
                entry.blocking += 1
            queue.append(entry)
        if not entry.blocking:
            self._start(entry)

    def _start(self, entry: _Entry) -> None:
        try:
            entry.start(partial(self._leave, entry))
        except Exception:
            # The broker survives a request that fails, so those behind it must not wait for it.
            if not entry.has_left:
                self._leave(entry)
            raise

    def _leave(self, entry: _Entry) -> None:
        """Take a request out of its queues, and start those that it blocked.

        Most of these leave at once. The loop, in place of recursion, keeps the stack flat for a long queue.
        """
        entry.has_left = True
        self._left.append(entry)
        if self._is_releasing:
            return
        self._is_releasing = True
        failure: Exception | None = None
        while self._left:
            for follower in self._unblocked(self._left.popleft()):
                try:
                    self._start(follower)
                except Exception as error:  # noqa: BLE001 - raised below, when all have had their turn
                    failure = failure or error
        self._is_releasing = False
        if failure is not None:
            raise failure

    def _unblocked(self, left: _Entry) -> list[_Entry]:
        unblocked = []
        for key in left.keys:
            queue = self._queues[key]
            queue.popleft()
            if not queue:
                del self._queues[key]
                continue
            queue[0].blocking -= 1
            if not queue[0].blocking:
                unblocked.append(queue[0])
        return unblocked
