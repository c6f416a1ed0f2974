"""A consumer at work: handlers, iteration, parallel work, backpressure, ends, and errors that are told."""

from __future__ import annotations

import os
import signal
import threading
import time
import tracemalloc
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from gapless.client.consuming.consumer import Consumer
from gapless.client.records import Record, TopicPartition
from gapless.client.stores.sqlite import SqliteStore
from gapless.errors import Unreachable, UsageError
from tests.client.conftest import Kafka, new_topic
from tests.client.consuming.helpers import handled, member_ids, of_each_partition, values, write
from tests.client.processes.common import QUICK, stop_at_end


def consumer_of(kafka: Kafka, topic: str, **options: Any) -> Consumer:
    properties = {**QUICK, **options.pop("properties", {})}
    group = options.pop("group", f"group-of-{topic}")
    return Consumer(kafka.bootstrap, group=group, topics=topic, properties=properties, **options)


def written(kafka: Kafka, count: int, partitions: int = 1, keys: int = 0) -> str:
    topic = new_topic(kafka, partitions)
    write(kafka.bootstrap, topic, count, partitions=partitions, keys=keys)
    return topic


@pytest.mark.parametrize(
    "options",
    [{}, {"workers": 3}, {"workers": 3, "parallel_by": "key"}, {"semantics": "at-most-once", "workers": 2}],
    ids=["alone", "by-partition", "by-key", "at-most-once"],
)
def test_every_record_is_handled_once_in_the_order_of_its_key(kafka: Kafka, options: dict[str, Any]) -> None:
    topic = written(kafka, 3000, partitions=3, keys=12)
    order: dict[bytes | None, list[bytes | None]] = defaultdict(list)
    found = handled(
        consumer_of(kafka, topic, **options), lambda record: order[record.key].append(record.value)
    )
    assert sorted(record.value or b"" for record in found) == values(3000)
    assert all(of_key == sorted(of_key, key=lambda value: value or b"") for of_key in order.values())
    with consumer_of(kafka, topic) as after:
        assert sum(offset or 0 for offset in after.committed(of_each(topic, 3)).values()) == 3000


def of_each(topic: str, partitions: int) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for partition in range(partitions)]


def test_a_record_counts_when_the_next_is_asked_for(kafka: Kafka) -> None:
    topic = written(kafka, 10)
    seen = []
    with consumer_of(kafka, topic) as consumer:
        for record in consumer:
            seen.append(record.value)
            if len(seen) == 4:
                break
    with consumer_of(kafka, topic) as consumer:
        for record in consumer:
            seen.append(record.value)
            if record.value == values(10)[-1]:
                break
    # The fourth was never asked past, so it comes again; no other does.
    assert seen == values(10)[:4] + values(10)[3:]


def test_an_error_in_the_loop_ends_it_at_once_and_commits_what_was_done(kafka: Kafka) -> None:
    topic = written(kafka, 10)

    def read() -> None:
        with consumer_of(kafka, topic) as consumer:
            for record in consumer:
                if record.offset == 5:
                    raise ZeroDivisionError

    begun = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        read()
    assert time.monotonic() - begun < 15
    with consumer_of(kafka, topic) as consumer:
        assert list(consumer.committed(of_each(topic, 1)).values()) == [5]


def test_iterating_at_most_once_repeats_nothing_after_a_break(embedded: Kafka) -> None:
    """E1: what was handed out is committed before."""
    topic = written(embedded, 6)
    seen = []
    for _ in range(3):
        with consumer_of(embedded, topic, semantics="at-most-once") as consumer:
            for record in consumer:
                seen.append(record.value)
                if len(seen) % 2 == 0:
                    break
    assert seen == values(6)


def test_a_slow_handler_keeps_its_membership_and_memory_stays_bounded(embedded: Kafka) -> None:
    """A handler outlasts max.poll.interval.ms, and its consumer remains the same member of the group."""
    topic = new_topic(embedded)
    write(embedded.bootstrap, topic, 1000, padding=20_000)
    consumer = consumer_of(
        embedded,
        topic,
        group="slow",
        queue_records=50,
        properties={"max.poll.interval.ms": 6000, "queued.min.messages": 1000},
    )
    seen: list[bytes] = []
    members: list[list[str]] = []

    def handle(record: Record) -> None:
        if record.offset == 3:
            members.append(member_ids(embedded, "slow"))
            time.sleep(6.5)
            members.append(member_ids(embedded, "slow"))
        if record.offset == 999:
            members.append(member_ids(embedded, "slow"))
        seen.append((record.value or b"")[:6])

    stop_at_end(consumer)
    tracemalloc.start()
    try:
        consumer.run(handle)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seen == values(1000)
    assert members == [members[0]] * 3
    assert len(members[0]) == 1
    assert peak_bytes < 3_500_000  # All records are 20 MB, the queue holds 1 MB.


def test_stop_ends_a_run_from_another_thread_after_what_is_begun(kafka: Kafka) -> None:
    topic = written(kafka, 1000)
    consumer = consumer_of(kafka, topic, batch_records=1)
    seen: list[Record] = []

    def handle(record: Record) -> None:
        if record.offset == 20:
            other = threading.Thread(target=consumer.stop)
            other.start()
            other.join()
        seen.append(record)

    consumer.run(handle)
    assert [record.offset for record in seen] == list(range(21))
    with pytest.raises(UsageError, match="closed"):
        consumer.run(handle)
    rest = handled(consumer_of(kafka, topic))
    assert [record.offset for record in rest] == list(range(21, 1000))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_and_handlers_are_as_before(embedded: Kafka, number: signal.Signals) -> None:
    topic = written(embedded, 100)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    seen = []

    def handle(record: Record) -> None:
        if record.offset == 10:
            os.kill(os.getpid(), number)
        seen.append(record)
        time.sleep(0.01)

    consumer_of(embedded, topic, batch_records=1).run(handle)
    assert 11 <= len(seen) < 100
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_topic_that_is_not_there_is_told(kafka: Kafka) -> None:
    with pytest.raises(UsageError, match="'no-such-topic' is not there"):
        consumer_of(kafka, "no-such-topic").run(print)


def test_a_cluster_that_is_not_there_is_told() -> None:
    consumer = Consumer("127.0.0.1:1", group="g", topics="t", connect_timeout_s=1)
    with pytest.raises(Unreachable, match=r"no broker answers at 127\.0\.0\.1:1"):
        consumer.run(print)


def test_a_store_in_use_is_refused_to_another_group(embedded: Kafka, tmp_path: Path) -> None:
    topic, store = written(embedded, 5), SqliteStore(tmp_path / "store.db")
    with pytest.raises(UsageError, match="is a pattern"):
        consumer_of(embedded, "^ord(", store=store, group="never began").run(print)
    seen = []

    def handle(record: Record) -> None:
        seen.append(record.offset)
        with pytest.raises(UsageError, match="is open for group"):
            consumer_of(embedded, topic, store=store, group=f"other-{topic}").run(print)

    consumer = consumer_of(embedded, topic, store=store)
    handled(consumer, handle)
    assert seen == list(range(5))
    assert consumer.counters.handled == 5


def test_an_outage_is_waited_out_and_nothing_is_lost(embedded: Kafka) -> None:
    topic = written(embedded, 500)
    consumer = consumer_of(embedded, topic, commit_every_ms=20)
    healing: list[threading.Timer] = []

    def handle(record: Record) -> None:
        if record.offset == 100 and not healing:
            embedded.isolate()
            healing.append(threading.Timer(1.5, embedded.heal))
            healing[0].start()
        time.sleep(0.002)

    found = handled(consumer, handle)
    assert set(of_each_partition(found)[topic, 0]) == set(range(500))
