"""Transactions on librdkafka: records alone, and records with the consumed offsets that they came from."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.clients.jobs import Transactions, Transform
from benchmarks.clients.producing import LoadFailed, check_count, new_producer
from benchmarks.meters import Usage
from benchmarks.statistics import percentile

_TIMEOUT_S = 60.0
GROUP = "transformers"


def run(job: Transactions | Transform) -> dict[str, float]:
    """One producer, one transaction at a time; the first one is not measured."""
    return _run_transactions(job) if isinstance(job, Transactions) else _run_transform(job)


def _transactional(bootstrap: str, name: str) -> Producer:
    producer, _ = new_producer(bootstrap, {"transactional.id": name})
    producer.init_transactions(_TIMEOUT_S)
    return producer


def _run_transactions(job: Transactions) -> dict[str, float]:
    """A commit fails if one of its records did, so that nothing but the count is to be checked."""
    producer = _transactional(job.bootstrap, job.topic)
    batch = [{"value": b"x" * job.record_bytes}] * job.records_each

    def one_transaction() -> None:
        producer.begin_transaction()
        if producer.produce_batch(job.topic, batch, partition=0) != len(batch):
            raise LoadFailed("the client's queue is full")
        producer.commit_transaction(_TIMEOUT_S)

    one_transaction()
    clock, took_ns = time.perf_counter_ns, []
    usage = Usage.begin(job.broker_pids)
    for _ in range(job.transactions):
        begin = clock()
        one_transaction()
        took_ns.append(clock() - begin)
    answer = usage.end()
    # Each transaction ends with one record of the broker's, the marker.
    check_count(job.bootstrap, job.topic, 1, (job.transactions + 1) * (job.records_each + 1))
    took_ns.sort()
    return {**answer, "p50_us": percentile(took_ns, 50) / 1000}


def _run_transform(job: Transform) -> dict[str, float]:
    """The group's only member reads the source; what it makes of it is in the target exactly once."""
    producer = _transactional(job.bootstrap, job.target)
    consumer = Consumer(
        {
            "bootstrap.servers": job.bootstrap,
            "group.id": GROUP,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 5,
            "log_level": 3,
        }
    )
    try:
        consumer.subscribe([job.source])
        _transform(consumer, producer, job.target, 1)
        transactions = -(-job.records // job.records_each)
        usage = Usage.begin(job.broker_pids)
        for number in range(transactions):
            left = job.records - number * job.records_each
            _transform(consumer, producer, job.target, min(job.records_each, left))
        answer = usage.end()
        committed = consumer.committed([TopicPartition(job.source, 0)], _TIMEOUT_S)[0].offset
    finally:
        consumer.close()
    if committed != job.records + 1:
        raise LoadFailed(f"the group's offset is {committed}, not {job.records + 1}")
    check_count(job.bootstrap, job.target, 1, job.records + 1 + transactions + 1)
    return answer


def _transform(consumer: Consumer, producer: Producer, target: str, count: int) -> None:
    """One transaction. What `consume` returns in an error's place has no value, and ends the run."""
    messages = consumer.consume(count, _TIMEOUT_S)
    if len(messages) != count:
        raise LoadFailed(f"{len(messages)} records came within {_TIMEOUT_S:.0f} s, not {count}")
    made = [{"value": value[::-1]} for message in messages if (value := message.value()) is not None]
    producer.begin_transaction()
    if producer.produce_batch(target, made, partition=0) != count:
        raise LoadFailed("the client's queue is full, or a record had no value")
    position = consumer.position(consumer.assignment())
    producer.send_offsets_to_transaction(position, consumer.consumer_group_metadata(), _TIMEOUT_S)
    producer.commit_transaction(_TIMEOUT_S)
