"""What was fetched and is not done: bounded queues between the polling thread and the workers.

Each partition that is ours is a `Holding`. Its records wait in lanes: one, or by key as many as there are
workers. A lane is worked on by one thread at a time, so its order is kept; lanes with work queue up for any
worker. A holding that is taken away is *gone*: nothing of it begins any more, and what is being handled may
end. One lock guards all of it, taken once per batch.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence

from confluent_kafka import Message

from gapless.client.consuming.outages import Outage
from gapless.client.consuming.tracker import OffsetTracker
from gapless.client.records import Record, TopicPartition


class Lane:
    """Records that are to be handled one after the other."""

    __slots__ = ("batch_records", "busy", "holding", "listed", "queue")

    def __init__(self, holding: Holding) -> None:
        self.holding = holding
        self.queue: deque[Message] = deque()
        self.busy = False
        self.listed = False
        """Whether it is in line for a worker."""
        self.batch_records = 1
        """How many are taken at once: grows while they are quick, so that a slow handler holds nothing up."""


class Holding:
    """One partition that is ours, or was until a moment ago."""

    __slots__ = (
        "commits_itself",
        "committed",
        "gone",
        "has_position",
        "lanes",
        "moved",
        "outage",
        "partition",
        "paused",
        "queued_bytes",
        "queued_records",
        "resume_at",
        "target",
        "tracker",
        "waiting",
    )

    def __init__(self, partition: TopicPartition, start: int | None, lanes: int) -> None:
        self.partition = partition
        self.tracker = OffsetTracker(start)
        self.lanes = [Lane(self) for _ in range(lanes)]
        self.queued_records = 0
        self.queued_bytes = 0
        self.paused = False
        self.gone = False
        self.committed: int | None = None
        """What the group was last told."""
        self.has_position = False
        """Whether librdkafka's lookup of the first offset is known to have ended."""
        self.commits_itself = True
        """Unless the user commits offsets of their own."""
        self.moved = False
        """Whether the position is more than where the group let us begin."""
        self.waiting = False
        """Nothing may be fetched yet: what came before is still at work, or another consumer was faster."""
        self.resume_at = 0.0
        self.outage = Outage(partition)
        self.target: int | None = None
        """Where to go on after waiting, if the user has chosen."""

    @property
    def busy(self) -> bool:
        return any(lane.busy for lane in self.lanes)


class Work:
    """Some records of a lane, for one thread. `done` tells how many of them, from the first, are done."""

    __slots__ = ("done", "given", "is_ending", "lane", "messages", "records", "told")

    def __init__(self, lane: Lane, messages: Sequence[Message]) -> None:
        self.lane = lane
        self.messages = messages
        self.records = Record.of_all(lane.holding.partition, messages)
        """The same, made only now: what is made long before it is needed costs far more."""
        self.is_ending = False
        """Whether its room is given to others already."""
        self.done = 0
        self.given = 0
        """How many the user has got, where records are pulled."""
        self.told = 0
        """How many the tracker knows to be done."""

    @property
    def holding(self) -> Holding:
        return self.lane.holding


def _offsets(messages: Iterable[Message]) -> list[int]:
    return list(map(Message.offset, messages))  # type: ignore[arg-type]  # those without one are errors


class Backlog:
    """All holdings, and who works on what."""

    def __init__(
        self, *, lanes: int, batch_records: int, batch_s: float, queue_records: int, queue_bytes: int
    ) -> None:
        self._lanes = lanes
        self._batch_records = batch_records
        self._batch_s = batch_s
        self._queue_records = queue_records
        self._queue_bytes = queue_bytes
        self._lock = threading.Lock()
        self._has_work = threading.Condition(self._lock)
        self._has_changed = threading.Condition(self._lock)
        self._ready: deque[Lane] = deque()
        self._holdings: dict[tuple[str, int], Holding] = {}
        self._leaving: list[Holding] = []
        """Gone, with a handler still at work."""
        self._awaited: list[Holding] = []
        """Full ones, on which the polling thread waits."""
        self._stopped = False

    # What the polling thread does

    def add(self, partition: TopicPartition, start: int | None) -> Holding:
        holding = Holding(partition, start, self._lanes)
        with self._lock:
            self._holdings[partition] = holding
        return holding

    def get(self, partition: tuple[str, int]) -> Holding | None:
        return self._holdings.get(partition)

    def holdings(self) -> list[Holding]:
        with self._lock:
            return list(self._holdings.values())

    def has_any(self) -> bool:
        """Whether any record waits or is being handled."""
        with self._lock:
            return any(holding.queued_records for holding in self._holdings.values())

    def put(self, holding: Holding, messages: Sequence[Message]) -> None:
        """Records of one partition, in their order, as librdkafka gave them."""
        with self._lock:
            if holding.gone:
                return
            holding.tracker.delivered(_offsets(messages))
            holding.has_position = True
            self._count(holding, messages, 1)
            lanes = holding.lanes
            if len(lanes) == 1:
                lanes[0].queue.extend(messages)
            else:
                for message, offset in zip(messages, _offsets(messages), strict=True):
                    key = message.key()
                    # Without a key there is no order to keep: spread them.
                    spread = offset if key is None else hash(key)
                    lanes[spread % len(lanes)].queue.append(message)
            for lane in lanes:
                self._list(lane)

    def _list(self, lane: Lane) -> None:
        if lane.queue and not lane.busy and not lane.listed:
            lane.listed = True
            self._ready.append(lane)
            self._has_work.notify()

    def drop(self, partitions: Iterable[TopicPartition]) -> list[Holding]:
        """They are no longer ours: what waits is forgotten, nothing of it begins."""
        with self._lock:
            found = [self._holdings.pop(each) for each in partitions if each in self._holdings]
            self._forget(found)
            self._leaving += [holding for holding in found if holding.busy]
        return found

    def _forget(self, holdings: Sequence[Holding]) -> None:
        """Nothing of them begins any more. The lock is held."""
        for holding in holdings:
            holding.gone = True
            holding.queued_records = holding.queued_bytes = 0
            for lane in holding.lanes:
                lane.queue.clear()
        self._ready = deque(lane for lane in self._ready if not lane.holding.gone)
        self._awaited = [holding for holding in self._awaited if not holding.gone]
        self._has_changed.notify_all()

    def wait_until_idle(self, holdings: Sequence[Holding], timeout_s: float) -> bool:
        """Whether nobody works on any of them any more."""
        with self._lock:
            return self._has_changed.wait_for(
                lambda: not any(holding.busy for holding in holdings), timeout_s
            )

    def is_leaving(self, partition: TopicPartition) -> bool:
        """Whether a handler still works on what was ours before."""
        with self._lock:
            return any(holding.partition == partition for holding in self._leaving)

    def left(self) -> list[Holding]:
        """Those gone on which work has ended since the last call."""
        if not self._leaving:
            return []
        with self._lock:
            ended = [holding for holding in self._leaving if not holding.busy]
            self._leaving = [holding for holding in self._leaving if holding.busy]
        return ended

    def room(self) -> int:
        """How many records may be fetched without filling any partition that is not paused by much."""
        with self._lock:
            queued = [each.queued_records for each in self._holdings.values() if not each.paused]
        return max(1, self._queue_records - max(queued, default=0))

    def wait_for_room(self, timeout_s: float) -> list[Holding]:
        """Return at once if no partition is full; else wait until those that are full are half empty.

        Those that are still full after the time are told. Who waits is woken once, not for every batch: each
        change of threads costs more than many records.
        """
        with self._lock:
            self._awaited = self._full()
            if not self._awaited:
                return []
            self._has_changed.wait_for(lambda: self._stopped or not self._awaited, timeout_s)
            self._awaited = []
            return self._full()

    def _full(self) -> list[Holding]:
        return [
            holding
            for holding in self._holdings.values()
            if not holding.paused
            and (holding.queued_records >= self._queue_records or holding.queued_bytes >= self._queue_bytes)
        ]

    def _is_half_empty(self, holding: Holding) -> bool:
        return (
            holding.queued_records * 2 <= self._queue_records
            and holding.queued_bytes * 2 <= self._queue_bytes
        )

    def half_empty(self) -> list[Holding]:
        """Those that were paused and have room again."""
        with self._lock:
            return [
                holding
                for holding in self._holdings.values()
                if holding.paused and not holding.waiting and self._is_half_empty(holding)
            ]

    def positions(self, holdings: Iterable[Holding]) -> list[tuple[Holding, int]]:
        """How far each is done, where that is more (or other) than the group was told."""
        with self._lock:
            return [
                (holding, position)
                for holding in holdings
                if holding.moved
                and holding.commits_itself
                and (position := holding.tracker.position) is not None
                and position != holding.committed
            ]

    # What workers do

    def take(self, timeout_s: float | None = None) -> Work | None:
        """The next records of any lane that nobody works on; None after the time, or when all is stopped.

        Raises UnreadableRecord, and then nothing begins any more: what is behind it must not overtake it.
        """
        with self._lock:
            if not self._has_work.wait_for(lambda: self._ready or self._stopped, timeout_s) or self._stopped:
                return None
            lane = self._ready.popleft()
            lane.busy, lane.listed = True, False
            queue = lane.queue
            messages = [queue.popleft() for _ in range(min(len(queue), lane.batch_records))]
        try:
            return Work(lane, messages)
        except Exception:
            self.stop()
            with self._lock:
                self._give_back(lane, ())
            raise
        except BaseException:  # an interrupt; whoever pulls may go on after it
            with self._lock:
                self._give_back(lane, messages)
            raise

    def _give_back(self, lane: Lane, rest: Sequence[Message]) -> None:
        """Others may take it; the rest waits again, in front. The lock is held."""
        lane.busy = False
        if not lane.holding.gone:
            lane.queue.extendleft(reversed(rest))
            self._list(lane)
        self._tell_who_waits(lane.holding)

    def end(self, work: Work) -> None:
        """Only the store's commit is left: its room is free, so that others can be fetched meanwhile."""
        with self._lock:
            if not work.holding.gone and not work.is_ending:
                work.is_ending = True
                self._count(work.holding, work.messages, -1)
                self._tell_who_waits(work.holding)

    def finish(self, work: Work, took_s: float | None = None) -> None:
        """Give the lane back; what is not done waits again, in front."""
        with self._lock:
            self._tell(work)
            if took_s is not None:
                self._pace(work.lane, len(work.records), took_s)
            self._give_back(work.lane, work.messages[work.done :])

    def _tell_who_waits(self, holding: Holding) -> None:
        """Only if there is something to see: the partition is gone, or has room after it was full."""
        if holding.gone:
            self._has_changed.notify_all()
        elif self._awaited:
            self._awaited = [each for each in self._awaited if not self._is_half_empty(each)]
            if not self._awaited:
                self._has_changed.notify_all()

    def give_up(self, holding: Holding) -> bool:
        """Another consumer has gone on with it: nothing more of it begins, until the poller begins it anew.

        False if it was gone already.
        """
        with self._lock:
            if holding.gone:
                return False
            self._forget([holding])
        return True

    def progress(self, work: Work) -> None:
        """One record more is done, of work that goes on."""
        work.done += 1
        with self._lock:
            self._tell(work)
            self._tell_who_waits(work.holding)

    def _tell(self, work: Work) -> None:
        holding = work.holding
        new = work.messages[work.told : work.done]
        work.told = work.done
        holding.tracker.done(_offsets(new))
        holding.moved = holding.moved or bool(new)
        if holding.gone:
            return
        if not work.is_ending:
            self._count(holding, new, -1)
        elif work.done < len(work.messages):  # it came otherwise: they wait again
            self._count(holding, work.messages[work.done :], 1)
        work.is_ending = False

    @staticmethod
    def _count(holding: Holding, messages: Sequence[Message], sign: int) -> None:
        holding.queued_records += sign * len(messages)
        holding.queued_bytes += sign * sum(map(len, messages))

    def _pace(self, lane: Lane, records: int, took_s: float) -> None:
        if took_s > 2 * self._batch_s:
            lane.batch_records = max(1, lane.batch_records // 2)
        elif took_s < self._batch_s / 2 and records == lane.batch_records:
            lane.batch_records = min(self._batch_records, lane.batch_records * 4)

    def wait_while_ours(self, holding: Holding, timeout_s: float) -> bool:
        """Let time pass; False as soon as the holding is gone or all is stopped."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while not (holding.gone or self._stopped):
                rest = deadline - time.monotonic()
                if rest <= 0:
                    return True
                self._has_changed.wait(rest)
        return False

    def stop(self) -> None:
        """Nothing begins any more."""
        with self._lock:
            self._stopped = True
            self._has_work.notify_all()
            self._has_changed.notify_all()
