"""Clients that write all the time and remember what was acknowledged, and the comparison with what is there.

A value is the writer's own count, so that order and doubling show in the values alone.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple, Self

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from gapless.testing import Cluster
from gapless.testing.quiet import quiet_logger

PATIENCE_S = 30.0
STALL_S = 0.1
"""A thread that sleeps for so much longer than it wanted tells of a machine that does something else."""
# What a careful user chooses to find a new leader soon; a hung one is given up after two seconds.
IMPATIENT: dict[str, Any] = {
    "topic.metadata.refresh.interval.ms": 100,
    "topic.metadata.refresh.fast.interval.ms": 10,
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 50,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "socket.timeout.ms": 2000,
    "request.timeout.ms": 1500,
}


class Record(NamedTuple):
    """A record in its place."""

    partition: int
    offset: int | None
    """None: acknowledged as one that the broker had already, without saying where."""
    key: bytes
    value: bytes


def client(cluster: Cluster, **settings: Any) -> dict[str, Any]:
    """Settings of a client, with dots written as underscores."""
    named = {key.replace("_", "."): value for key, value in settings.items()}
    return {"bootstrap.servers": cluster.bootstrap, "logger": quiet_logger(), **named}


def place_of(message: Any) -> Record:
    offset = message.offset()
    known = offset if offset is not None and offset >= 0 else None
    return Record(message.partition(), known, message.key() or b"", message.value() or b"")


class Writer:
    """Writes to all partitions in turn, about 200 records a second, while the block runs."""

    def __init__(
        self, cluster: Cluster, topic: str, partitions: int = 1, *, pause_s: float = 0.005, **settings: Any
    ) -> None:
        self.topic = topic
        self.acknowledged: list[Record] = []
        self.refused: list[tuple[Record, str]] = []
        self.written = 0
        self._cluster = cluster
        self._partitions = partitions
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self._acknowledged_at: dict[int, list[float]] = defaultdict(list)
        self._stalls: list[tuple[float, float]] = []
        defaults = {"enable.idempotence": True, **IMPATIENT}
        self._producer = Producer({**defaults, **client(cluster, **settings)})
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait_for_more()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        left = self._producer.flush(PATIENCE_S if kind is None else 0)
        assert kind is not None or left == 0, f"{left} records were never answered\n{self._cluster.logs()}"

    def wait_for_more(self, records: int = 20, timeout_s: float = PATIENCE_S) -> None:
        """Until so many records that are written from now on have been acknowledged in each partition."""
        wanted = {index: len(self._acknowledged_at[index]) + records for index in range(self._partitions)}
        self._cluster.wait_for(
            lambda: all(len(self._acknowledged_at[index]) >= count for index, count in wanted.items()),
            f"writes to {self.topic} go on",
            timeout_s=timeout_s,
            details=lambda: f"{len(self.acknowledged)} acknowledged, {self.refused[-3:]} refused",
        )

    def longest_gaps_ms(self, since: float, until: float) -> dict[int, float]:
        """The longest time without an acknowledgement, by partition; a machine that stood still is no gap."""
        return {
            partition: max(
                1000 * (after - before - self._stalled_s(before, after))
                for before, after in pairwise(times)
                if after >= since and before <= until
            )
            for partition, times in sorted(self._acknowledged_at.items())
        }

    def _stalled_s(self, since: float, until: float) -> float:
        """How much of a time this process itself did not run."""
        return sum(max(0.0, min(until, end) - max(since, begin)) for begin, end in self._stalls)

    def _work(self) -> None:
        ran_at = time.monotonic()
        while not self._stopping.is_set():
            since, ran_at = ran_at, time.monotonic()
            if ran_at - since > self._pause_s + STALL_S:
                self._stalls.append((since + self._pause_s, ran_at))
            number, self.written = self.written, self.written + 1
            partition = number % self._partitions
            self._producer.produce(
                self.topic, b"%d" % number, b"k%d" % (number % 7), partition, on_delivery=self._delivered
            )
            self._producer.poll(self._pause_s)

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self._acknowledged_at[message.partition()].append(time.monotonic())
            self.acknowledged.append(place_of(message))
        else:
            self.refused.append((place_of(message), error.name()))


def end_of(cluster: Cluster, topic: str, partition: int) -> int:
    """Up to where a partition can be read, as soon as its leader can say."""
    found: list[int | None] = []

    def ask() -> bool:
        found.append(cluster.high_watermark(topic, partition))
        return found[-1] is not None

    cluster.wait_for(ask, f"{topic}-{partition} can be read")
    return found[-1] or 0


def read_back(cluster: Cluster, topic: str, partitions: int = 1, **settings: Any) -> list[Record]:
    """All that consumers can read, partition by partition."""
    ends = {index: end_of(cluster, topic, index) for index in range(partitions)}
    open_partitions = {index for index, end in ends.items() if end > 0}
    found: list[Record] = []
    consumer = Consumer(
        {
            "enable.partition.eof": True,
            **client(cluster, group_id="readers", enable_auto_commit=False, **settings),
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in sorted(open_partitions)])
    deadline = time.monotonic() + PATIENCE_S
    while open_partitions:
        late = f"{topic} could not be read up to {ends}, but {len(found)} records\n{cluster.logs()}"
        assert time.monotonic() < deadline, late
        for message in consumer.consume(1000, 0.1):
            error, partition = message.error(), message.partition()
            if error is None:
                found.append(place_of(message))
            elif error.code() != KafkaError._PARTITION_EOF or partition is None:
                continue
            elif (message.offset() or 0) >= ends[partition]:
                open_partitions.discard(partition)
    consumer.close()
    return sorted(found, key=lambda record: record.partition)  # a stable sort: offsets stay as they came


def compare(acknowledged: Iterable[Record], found: Iterable[Record]) -> None:
    """All that was acknowledged is there, in its place, once and in order.

    What was not acknowledged may be there or not, but it is neither doubled nor out of order either.
    """
    problems = differences(acknowledged, found)
    assert not problems, "\n".join(problems[:20])


def differences(acknowledged: Iterable[Record], found: Iterable[Record]) -> list[str]:
    """What `compare` complains of, a line each."""
    by_place: dict[tuple[int, int | None], Record] = {}
    values: dict[int, list[int]] = defaultdict(list)
    for record in found:
        by_place[record.partition, record.offset] = record
        values[record.partition].append(int(record.value))
    problems = []
    there = {(record.partition, record.key, record.value) for record in by_place.values()}
    for record in acknowledged:
        if record.offset is not None and by_place.get((record.partition, record.offset)) != record:
            instead = by_place.get((record.partition, record.offset))
            problems.append(f"lost: {record} was acknowledged, and {instead} is in its place")
        elif (record.partition, record.key, record.value) not in there:
            problems.append(f"lost: {record} was acknowledged, and is nowhere")
    for partition, numbers in sorted(values.items()):
        for before, after in pairwise(numbers):
            if after <= before:
                word = "doubled" if after in numbers[: numbers.index(before) + 1] else "out of order"
                problems.append(f"{word}: {after} comes after {before} in partition {partition}")
    return problems


def check(cluster: Cluster, writer: Writer, partitions: int = 1) -> None:
    """Compare what a writer got acknowledged with what can be read of its topic."""
    assert not writer.refused, writer.refused[:5]
    compare(writer.acknowledged, read_back(cluster, writer.topic, partitions))


def refused_write(cluster: Cluster, topic: str, patience_ms: int = 700) -> str | None:
    """Try one write with acks=all for so long; the client's reason for giving up, None if it was taken."""
    outcome: list[str | None] = []
    producer = Producer({**IMPATIENT, **client(cluster, acks="all", message_timeout_ms=patience_ms)})
    producer.produce(
        topic,
        b"999999",
        partition=0,
        on_delivery=lambda error, _: outcome.append(None if error is None else error.name()),
    )
    producer.flush(PATIENCE_S)
    return outcome[0]


def until(cluster: Cluster, condition: Callable[[], bool], what: str) -> None:
    cluster.wait_for(condition, what, timeout_s=PATIENCE_S)
