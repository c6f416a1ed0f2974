"""What has been acknowledged and not yet promised, and the seals that promise it.

`Acknowledged` collects sequences of one source and incarnation as the cluster acknowledges them, from any
thread. They usually come in order, so that a topic's partition is one run however many records there were.
Taking gives all of it away; what could not be written to the ledger is put back and goes into the next seal.

    acknowledged = Acknowledged()
    acknowledged.note("orders", 0, 0)
    acknowledged.note_run("orders", 0, 1, 99)
    acknowledged.take()        # (Interval("orders", 0, 0, 99),)
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from threading import Lock

from gapless.client.formats import Interval, Seal
from gapless.client.spool.records import Spooled

StreamKey = tuple[bytes, str, int]
"""(incarnation, topic, partition): what a sequence counts in."""

MAX_INTERVALS_PER_SEAL = 2_000
"""So that a seal stays below the size that brokers accept (1 MB), whatever the topics are called."""


class Acknowledged:
    """Acknowledged sequences that no seal has promised yet, and counts of all there ever were."""

    __slots__ = ("_counts", "_lock", "_runs")

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        self._lock = Lock()
        self._runs: dict[tuple[str, int], list[list[int]]] = {}
        self._counts: dict[str, int] = dict(counts or {})

    def note(self, topic: str, partition: int, sequence: int) -> None:
        self.note_run(topic, partition, sequence, sequence)

    def note_many(self, topic: str, partition: int, sequences: Iterable[int]) -> None:
        """Sequences of one partition in any order."""
        for first, last in _runs_of(sequences):
            self.note_run(topic, partition, first, last)

    def note_run(self, topic: str, partition: int, first: int, last: int) -> None:
        """All from `first` to `last`, both included."""
        with self._lock:
            new = self._add(topic, partition, first, last)
            self._counts[topic] = self._counts.get(topic, 0) + new

    def take(self) -> tuple[Interval, ...]:
        """All that was noted since the last time, in order; nothing is left."""
        return self.take_with_counts()[0]

    def take_with_counts(self) -> tuple[tuple[Interval, ...], dict[str, int]]:
        """What `take` gives, and the counts of the same moment."""
        with self._lock:
            intervals = self._intervals()
            self._runs.clear()
            return intervals, dict(self._counts)

    def put_back(self, intervals: Iterable[Interval]) -> None:
        """What was taken could not be promised: the next seal has to."""
        with self._lock:
            for interval in intervals:
                self._add(*interval)

    def peek_with_counts(self) -> tuple[tuple[Interval, ...], dict[str, int]]:
        """Return the same as `take_with_counts`, and leave it there."""
        with self._lock:
            return self._intervals(), dict(self._counts)

    def take_seals(self, source: str, incarnation: bytes, reason: str) -> list[Seal]:
        """Seals for all that is not promised yet: usually one, none if there is nothing."""
        intervals, counts = self.take_with_counts()
        return seals_of(source, incarnation, reason, intervals, counts)

    def _intervals(self) -> tuple[Interval, ...]:
        return tuple(
            Interval(topic, partition, first, last)
            for (topic, partition), runs in sorted(self._runs.items())
            for first, last in runs
        )

    @property
    def anything(self) -> bool:
        """Whether there is something to promise."""
        return bool(self._runs)

    def _add(self, topic: str, partition: int, first: int, last: int) -> int:
        """Join a run to the others; how many of its sequences are new among those not yet taken."""
        runs = self._runs.get((topic, partition))
        if runs is None:
            self._runs[topic, partition] = [[first, last]]
            return last - first + 1
        newest = runs[-1]
        if first == newest[1] + 1:
            newest[1] = last
            return last - first + 1
        return _join(runs, first, last)


def _join(runs: list[list[int]], first: int, last: int) -> int:
    """Put [first, last] into sorted disjoint runs; how many sequences that added."""
    at = bisect_right(runs, first - 1, key=lambda run: run[1] + 1) if runs else 0
    if at and runs[at - 1][1] + 1 >= first:
        at -= 1
    end = at
    covered = 0
    low, high = first, last
    while end < len(runs) and runs[end][0] <= last + 1:
        covered += runs[end][1] - runs[end][0] + 1
        low, high = min(low, runs[end][0]), max(high, runs[end][1])
        end += 1
    runs[at:end] = [[low, high]]
    return high - low + 1 - covered


def _runs_of(sequences: Iterable[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    first = last = -2
    for sequence in sequences:
        if sequence == last + 1:
            last = sequence
            continue
        if last >= 0:
            runs.append((first, last))
        first = last = sequence
    if last >= 0:
        runs.append((first, last))
    return runs


def seals_of(
    source: str, incarnation: bytes, reason: str, intervals: tuple[Interval, ...], counts: Mapping[str, int]
) -> list[Seal]:
    """Seals that together promise the intervals, none of them too large for a broker."""
    sealed_at_ms = time.time_ns() // 1_000_000
    return [
        Seal(
            source,
            incarnation,
            sealed_at_ms,
            reason,
            intervals[at : at + MAX_INTERVALS_PER_SEAL],
            dict(counts),
        )
        for at in range(0, len(intervals), MAX_INTERVALS_PER_SEAL)
    ]


class Promises:
    """What the transactional path promises: a transaction is acknowledged when it is committed, and sealed in
    a later one. `open_*` is what the transaction that is open holds; it is decided by `commit` or `abort`.

    Sequences of the spool's own incarnation are dense and sent in order, so the last of each transaction is
    enough. Records of other incarnations (which an at-least-once producer had left in the spool) are counted
    one by one. For one thread, but for `unwritten`.
    """

    def __init__(self, source: str, incarnation: bytes) -> None:
        self._source = source
        self._incarnation = incarnation
        self._acknowledged: dict[bytes, Acknowledged] = {incarnation: Acknowledged()}
        self._following: dict[tuple[str, int], int] = {}
        self._open_lasts: dict[tuple[str, int], int] = {}
        self._open_others: list[Spooled] = []
        self._open_seals: list[Seal] = []
        self._lock = Lock()
        """Held while seals change between acknowledged and open."""

    @property
    def anything(self) -> bool:
        return any(each.anything for each in self._acknowledged.values())

    def recovered(self, following: Mapping[StreamKey, int]) -> list[Seal]:
        """Seals for all that earlier processes have sent, whether or not they came to promise it."""
        own = self._own(following)
        intervals = tuple(Interval(*where, 0, own[where] - 1) for where in sorted(own))
        return seals_of(self._source, self._incarnation, "recovered", intervals, _counts(own))

    def begin_at(self, following: Mapping[StreamKey, int]) -> None:
        """Promise from here on: these are the next sequences."""
        self._following = self._own(following)
        self._acknowledged = {self._incarnation: Acknowledged(_counts(self._following))}

    def add(self, records: Sequence[Spooled]) -> None:
        """Records that the open transaction sends."""
        lasts = {(each[1], each[2], each[3]): each[4] for each in records}
        foreign = False
        for (incarnation, topic, partition), last in lasts.items():
            if incarnation == self._incarnation:
                self._open_lasts[topic, partition] = last
            else:
                foreign = True
        if foreign:
            self._open_others += [each for each in records if each.incarnation != self._incarnation]

    def seals(self, reason: str) -> list[Seal]:
        """Seals that the open transaction writes: for all that earlier ones have sent."""
        with self._lock:
            for incarnation, acknowledged in self._acknowledged.items():
                self._open_seals += acknowledged.take_seals(self._source, incarnation, reason)
            return self._open_seals

    def unwritten(self, reason: str) -> list[Seal]:
        """Return seals for all that no committed transaction has sealed. From any thread; changes nothing."""
        with self._lock:
            seals = list(self._open_seals)
            for incarnation, acknowledged in self._acknowledged.items():
                intervals, counts = acknowledged.peek_with_counts()
                seals += seals_of(self._source, incarnation, reason, intervals, counts)
            return seals

    def commit(self) -> None:
        """What the open transaction held is in the cluster."""
        with self._lock:
            self._commit()

    def _commit(self) -> None:
        own = self._acknowledged[self._incarnation]
        for where, last in self._open_lasts.items():
            own.note_run(*where, self._following.get(where, 0), last)
            self._following[where] = last + 1
        for each in self._open_others:
            of_another = self._acknowledged.setdefault(each.incarnation, Acknowledged())
            of_another.note(each.topic, each.partition, each.sequence)
        self._clear()

    def abort(self) -> None:
        """Nothing of the open transaction counts: the next seals have to tell what its seals did."""
        with self._lock:
            for seal in self._open_seals:
                self._acknowledged[seal.incarnation].put_back(seal.intervals)
            self._clear()

    def _clear(self) -> None:
        self._open_lasts.clear()
        self._open_others.clear()
        self._open_seals.clear()

    def _own(self, following: Mapping[StreamKey, int]) -> dict[tuple[str, int], int]:
        return {
            (topic, partition): sequence
            for (incarnation, topic, partition), sequence in following.items()
            if incarnation == self._incarnation and sequence > 0
        }


def _counts(following: Mapping[tuple[str, int], int]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for (topic, _), sequence in following.items():
        counts[topic] = counts.get(topic, 0) + sequence
    return counts
