"""A group on librdkafka that is watched while its last member joins and leaves.

Every partition gets a record every few milliseconds. The group consumes again when each partition belongs to
one member, and that member has had a record from it since it was assigned. Members have librdkafka's
defaults (range assignor, sessions of 45 s) but for the heartbeat, by which they learn of a rebalance.
"""

from __future__ import annotations

import threading
import time
from statistics import median
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, TopicPartition

from benchmarks.clients.jobs import Rebalance
from benchmarks.clients.producing import new_producer
from benchmarks.meters import Usage

_RECORD_EVERY_S = 0.01
_PATIENCE_S = 60.0


class GroupStuck(RuntimeError):
    """The group did not come to consume all partitions again."""


class _Board:
    """Which member consumes which partition, and since when all do. Members write, the job waits."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._changed = threading.Condition()
        self._assigned: dict[_Member, set[int]] = {}
        self._consumed: dict[_Member, set[int]] = {}
        self._last_change_s = 0.0

    def assign(self, member: _Member, partitions: set[int]) -> None:
        with self._changed:
            self._assigned[member], self._consumed[member] = partitions, set()

    def remove(self, member: _Member) -> None:
        with self._changed:
            self._assigned.pop(member, None)
            self._consumed.pop(member, None)

    def saw(self, member: _Member, partition: int) -> None:
        """The time of the last first record is what is measured; later records change nothing."""
        with self._changed:
            consumed = self._consumed.get(member)
            if consumed is not None and partition in self._assigned[member] and partition not in consumed:
                consumed.add(partition)
                self._last_change_s = time.perf_counter()
                self._changed.notify_all()

    def wait_until_all_consume(self, members: int) -> float:
        """Returns when, on the performance counter."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._settled(members), _PATIENCE_S):
                raise GroupStuck(f"{members} members did not consume all within {_PATIENCE_S:.0f} s")
            return self._last_change_s

    def _settled(self, members: int) -> bool:
        owned = [partition for partitions in self._assigned.values() for partition in partitions]
        busy = [member for member, partitions in self._assigned.items() if partitions]
        return (
            len(busy) == members
            and sorted(owned) == list(range(self._partitions))
            and all(self._consumed[member] == self._assigned[member] for member in busy)
        )


class _Member:
    """A consumer with a thread that polls it."""

    def __init__(self, job: Rebalance, board: _Board) -> None:
        self._topic = job.topic
        self._board = board
        self._leaving = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": job.bootstrap,
                "group.id": job.topic,
                "heartbeat.interval.ms": job.heartbeat_ms,
                "log_level": 3,
            }
        )
        # Connections, and who coordinates the group, are known before the clock runs.
        self._consumer.committed([TopicPartition(job.topic, 0)], _PATIENCE_S)
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def join(self) -> None:
        self._consumer.subscribe([self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke)
        self._thread.start()

    def leave(self) -> float:
        """Say good-bye to the group, as a consumer does that is closed; returns when that began."""
        self._leaving.set()
        self._thread.join(_PATIENCE_S)
        self._board.remove(self)
        began_s = time.perf_counter()
        self._consumer.close()
        return began_s

    def _poll(self) -> None:
        while not self._leaving.is_set():
            message = self._consumer.poll(0.02)
            if message is not None and message.error() is None:
                self._board.saw(self, message.partition() or 0)

    def _on_assign(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._board.assign(self, {each.partition for each in partitions})

    def _on_revoke(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self._board.remove(self)


class _Stream:
    """A record to every partition every few milliseconds, in a `with` block."""

    def __init__(self, job: Rebalance) -> None:
        self._job = job
        self._producer, self._failures = new_producer(job.bootstrap, {"linger.ms": 0})
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(_PATIENCE_S)
        self._producer.flush(_PATIENCE_S)

    def _send(self) -> None:
        while not self._ended.wait(_RECORD_EVERY_S):
            for partition in range(self._job.partitions):
                self._producer.produce(self._job.topic, b"tick", partition=partition)
            self._producer.poll(0)


def run(job: Rebalance) -> dict[str, float]:
    """Members come once; then the last one comes and goes."""
    board = _Board(job.partitions)
    joined_s, left_s = [], []
    with _Stream(job):
        staying = [_Member(job, board) for _ in range(job.members - 1)]
        for member in staying:
            member.join()
        board.wait_until_all_consume(len(staying))
        usage = Usage.begin(job.broker_pids)
        for _ in range(job.cycles):
            last = _Member(job, board)
            began_s = time.perf_counter()
            last.join()
            joined_s.append(board.wait_until_all_consume(job.members) - began_s)
            began_s = last.leave()
            left_s.append(board.wait_until_all_consume(len(staying)) - began_s)
        answer = usage.end()
        for member in staying:
            member.leave()
    return {**answer, "joined_s": median(joined_s), "left_s": median(left_s)}
