"""Requests that wait: for a high watermark, for more bytes, or for a deadline.

An entry is looked at again when a partition that it watches was touched, and at its deadline; it answers
itself by returning a message. Nothing here blocks, and nothing is scanned that did not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any

from gapless.core.contract import Request, TopicPartition

Poll = Callable[[bool], Any | None]
"""Called with whether time is up; returns the reply, or None to go on waiting. Must reply when time is up."""


class Delayed:
    """One waiting request."""

    __slots__ = ("done", "poll", "request", "watched")

    def __init__(self, request: Request, watched: tuple[TopicPartition, ...], poll: Poll) -> None:
        self.request = request
        self.watched = watched
        self.poll = poll
        self.done = False


class WaitingRequests:
    """All waiting requests of a node, found by partition, by deadline and by connection."""

    def __init__(self) -> None:
        self._watchers: dict[TopicPartition, dict[Delayed, None]] = {}
        self._deadlines: list[tuple[int, int, Delayed]] = []
        self._by_connection: dict[int, dict[Delayed, None]] = {}
        self._order = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, request: Request, deadline_ms: int, watched: Iterable[TopicPartition], poll: Poll) -> None:
        """Let a request wait."""
        entry = Delayed(request, tuple(watched), poll)
        for partition in entry.watched:
            self._watchers.setdefault(partition, {})[entry] = None
        self._by_connection.setdefault(request.connection, {})[entry] = None
        self._count += 1
        self._order += 1  # entries with equal deadlines expire in the order in which they came
        heappush(self._deadlines, (deadline_ms, self._order, entry))

    def next_deadline(self) -> int | None:
        """When an entry is due, None if nothing waits."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][2].done:
            heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def touched(self, partition: TopicPartition) -> Sequence[tuple[Request, Any]]:
        """The requests that a change of `partition` completes, with their replies."""
        watchers = self._watchers.get(partition)
        if watchers is None:
            return ()
        completed = []
        for entry in list(watchers):
            if (message := entry.poll(False)) is not None:
                self._remove(entry)
                completed.append((entry.request, message))
        return completed

    def expired(self, now_ms: int) -> Iterator[tuple[Request, Any]]:
        """The requests whose time is up, with their replies."""
        while (deadline_ms := self.next_deadline()) is not None and deadline_ms <= now_ms:
            entry = heappop(self._deadlines)[2]
            self._remove(entry)
            yield entry.request, entry.poll(True)

    def drop_connection(self, connection: int) -> None:
        """Forget what a closed connection was waiting for."""
        for entry in list(self._by_connection.get(connection, ())):
            self._remove(entry)

    def _remove(self, entry: Delayed) -> None:
        if entry.done:
            return
        entry.done = True
        self._count -= 1
        _discard(self._by_connection, entry.request.connection, entry)
        for partition in entry.watched:
            _discard(self._watchers, partition, entry)
        if len(self._deadlines) > 64 and len(self._deadlines) > 2 * self._count:
            # Fetches are mostly answered long before their deadline: do not keep the dead until then.
            live = [item for item in self._deadlines if not item[2].done]
            live.sort()
            self._deadlines = live


def _discard(index: dict[Any, dict[Delayed, None]], key: object, entry: Delayed) -> None:
    entries = index.get(key)
    if entries is not None:
        entries.pop(entry, None)
        if not entries:
            del index[key]
