"""Producers on librdkafka: acks=all, idempotent, with the cheapest way from Python to hand over records.

`produce_batch` costs the client about two thirds of what single calls of `produce` cost. Only failures are
reported back to Python, and afterwards the broker is asked how many records it has.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from benchmarks.clients.jobs import OneAtATime, Produce
from benchmarks.meters import Usage
from benchmarks.statistics import percentile

# The whole load fits into the client's queue: a full queue would measure how we wait for room in it.
_QUEUE_RECORDS = 2_000_000
_QUEUE_KBYTES = 2_000_000
_FLUSH_TIMEOUT_S = 120.0


class LoadFailed(RuntimeError):
    """Records were refused or are missing: a figure for them would be worth nothing."""


class _Failures:
    """Counts records that were not acknowledged, and keeps the first reason."""

    def __init__(self) -> None:
        self.count = 0
        self.first: KafkaError | None = None

    def __call__(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self.count += 1
            self.first = self.first or error


def new_producer(bootstrap: str, properties: Mapping[str, str | int]) -> tuple[Producer, _Failures]:
    """A producer, and what will know the records that were refused."""
    failures = _Failures()
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "queue.buffering.max.messages": _QUEUE_RECORDS,
            "queue.buffering.max.kbytes": _QUEUE_KBYTES,
            "delivery.report.only.error": True,
            "on_delivery": failures,
            "log_level": 3,
            **properties,
        }
    )
    return producer, failures


def flush(producer: Producer, failures: _Failures, timeout_s: float = _FLUSH_TIMEOUT_S) -> None:
    """Wait until all is acknowledged."""
    left = producer.flush(timeout_s)
    if left or failures.count:
        raise LoadFailed(
            f"{left} records not acknowledged in time, {failures.count} refused: {failures.first}"
        )


def check_count(bootstrap: str, topic: str, partitions: int, expected: int) -> None:
    """Ask the broker whether it has so many records, those that end transactions counted."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    asked = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)}
    found = sum(future.result().offset for future in admin.list_offsets(asked).values())
    if found != expected:
        raise LoadFailed(f"{expected} records were acknowledged, {found} are in the topic")


def run(job: Produce) -> dict[str, float]:
    """Send it all at once. A few records go before, so that connections and producer id are there."""
    producer, failures = new_producer(job.bootstrap, job.properties)
    value = b"x" * job.record_bytes
    for partition in range(job.primed):
        producer.produce(job.topic, value, partition=partition)
    flush(producer, failures)
    one_run = [{"value": value}] * min(job.run_length, job.records)
    runs, rest = divmod(job.records, len(one_run))
    topic, partitions, produce_batch = job.topic, job.partitions, producer.produce_batch

    usage = Usage.begin(job.broker_pids)
    queued = 0
    for number in range(runs):
        queued += produce_batch(topic, one_run, partition=number % partitions)
    if rest:
        queued += produce_batch(topic, one_run[:rest], partition=runs % partitions)
    flush(producer, failures)
    answer = usage.end()

    if queued != job.records:
        raise LoadFailed(f"the client took only {queued} of {job.records} records")
    check_count(job.bootstrap, job.topic, job.partitions, job.records + job.primed)
    return answer


def run_one_at_a_time(job: OneAtATime) -> dict[str, float]:
    """What a caller waits who needs each record to be safe before the next."""
    producer, failures = new_producer(job.bootstrap, {"linger.ms": 0})
    value = b"x" * job.record_bytes
    for _ in range(job.unmeasured):
        producer.produce(job.topic, value, partition=0)
        flush(producer, failures)
    clock, took_ns = time.perf_counter_ns, []
    usage = Usage.begin(job.broker_pids)
    for _ in range(job.records):
        begin = clock()
        producer.produce(job.topic, value, partition=0)
        producer.flush()
        took_ns.append(clock() - begin)
    answer = usage.end()
    flush(producer, failures)
    check_count(job.bootstrap, job.topic, 1, job.unmeasured + job.records)
    took_ns.sort()
    return {**answer, "p50_us": percentile(took_ns, 50) / 1000, "p99_us": percentile(took_ns, 99) / 1000}
