"""Offset commits on librdkafka, by the only member of a group."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, TopicPartition

from benchmarks.clients.jobs import Commits
from benchmarks.meters import Usage
from benchmarks.statistics import percentile

_PATIENCE_S = 60.0


class CommitFailed(RuntimeError):
    """A commit was refused or is missing."""


class _Member:
    """A consumer that has joined; counts what became of its commits."""

    def __init__(self, job: Commits) -> None:
        self.topic = job.topic
        self.done = 0
        self.error: KafkaError | None = None
        self.consumer = Consumer(
            {
                "bootstrap.servers": job.bootstrap,
                "group.id": f"committers-{job.topic}",
                "enable.auto.commit": False,
                "on_commit": self._on_commit,
                "log_level": 3,
            }
        )

    def _on_commit(self, error: KafkaError | None, _offsets: list[TopicPartition]) -> None:
        self.done += 1
        self.error = self.error or error

    def join(self) -> None:
        self.consumer.subscribe([self.topic])
        deadline_s = time.monotonic() + _PATIENCE_S
        while not self.consumer.assignment():
            self.consumer.poll(0.05)
            if time.monotonic() > deadline_s:
                raise CommitFailed(f"no partition was assigned within {_PATIENCE_S:.0f} s")

    def commit(self, offset: int, *, wait: bool) -> None:
        """Without waiting, the answer is served by `wait_for`."""
        offsets = [TopicPartition(self.topic, 0, offset)]
        if wait:
            self.consumer.commit(offsets=offsets, asynchronous=False)
        else:
            self.consumer.commit(offsets=offsets, asynchronous=True)

    def wait_for(self, count: int) -> None:
        deadline_s = time.monotonic() + _PATIENCE_S
        while self.done < count and self.error is None:
            # It serves answers at once but returns only after its time: a long one would be measured.
            self.consumer.poll(0.001)
            if time.monotonic() > deadline_s:
                break
        if self.done < count or self.error is not None:
            raise CommitFailed(f"{self.done} of {count} commits were answered, first error: {self.error}")

    def committed(self) -> int:
        found: int = self.consumer.committed([TopicPartition(self.topic, 0)], _PATIENCE_S)[0].offset
        return found


def run(job: Commits) -> dict[str, float]:
    """Offsets ascend, so that the last one tells whether all were taken, in their order."""
    member = _Member(job)
    try:
        member.join()
        measure = _pipelined if job.pipelined else _one_by_one
        answer = measure(member, job)
        last = member.committed()
    finally:
        member.consumer.close()
    if last != job.unmeasured + job.commits:
        raise CommitFailed(f"the committed offset is {last}, not {job.unmeasured + job.commits}")
    return answer


def _one_by_one(member: _Member, job: Commits) -> dict[str, float]:
    for number in range(job.unmeasured):
        member.commit(number + 1, wait=True)
    clock, took_ns = time.perf_counter_ns, []
    usage = Usage.begin(job.broker_pids)
    for number in range(job.commits):
        begin = clock()
        member.commit(job.unmeasured + number + 1, wait=True)
        took_ns.append(clock() - begin)
    answer = usage.end()
    took_ns.sort()
    return {**answer, "p50_us": percentile(took_ns, 50) / 1000}


def _pipelined(member: _Member, job: Commits) -> dict[str, float]:
    for number in range(job.unmeasured):
        member.commit(number + 1, wait=False)
    member.wait_for(job.unmeasured)
    usage = Usage.begin(job.broker_pids)
    for number in range(job.commits):
        member.commit(job.unmeasured + number + 1, wait=False)
    member.wait_for(job.unmeasured + job.commits)
    return usage.end()
