"""The lower of two interfaces (E5): the application assigns, seeks, and keeps its own offsets (E7)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer as BareProducer

from gapless.client.consuming.consumer import Consumer
from gapless.client.records import Record, TopicPartition
from gapless.client.stores.sqlite import SqliteStore
from gapless.errors import UsageError
from gapless.testing.cluster import Cluster
from gapless.testing.quiet import quiet_logger
from tests.client.conftest import Kafka, wait_for
from tests.client.consuming.helpers import handled, values
from tests.client.consuming.test_consumer import consumer_of, written
from tests.client.consuming.test_rebalances import Member


def read(consumer: Consumer, count: int) -> list[Record]:
    """So many records, by polling."""
    found: list[Record] = []
    deadline = time.monotonic() + 30
    while len(found) < count:
        found += consumer.poll(0.5)
        assert time.monotonic() < deadline, f"only {len(found)} of {count}"
    return found


def test_offsets_of_ones_own_need_no_group(kafka: Kafka) -> None:
    topic = written(kafka, 40, partitions=2)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with Consumer(kafka.bootstrap) as consumer:
        consumer.assign({zero: 5, one: None})
        found = read(consumer, 35)
        assert sorted(record[1:3] for record in found) == [(0, n) for n in range(5, 20)] + [
            (1, n) for n in range(20)
        ]
        assert consumer.assignment() == [zero, one]
        consumer.poll(0)  # what was read counts as done when more is asked for
        assert (consumer.position(zero), consumer.position(one)) == (20, 20)
        with pytest.raises(UsageError, match="give group="):
            consumer.commit()


def test_places_that_cannot_be_are_refused_and_harm_nothing(embedded: Kafka) -> None:
    topic = written(embedded, 3)
    with Consumer(embedded.bootstrap, group=f"{topic}-places") as consumer:
        with pytest.raises(UsageError, match="has no partition 5: it has 0 to 0"):
            consumer.assign([TopicPartition(topic, 5)])
        with pytest.raises(UsageError, match="is no partition"):
            consumer.assign([topic])  # type: ignore[list-item]
        consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(UsageError, match="'1' is no offset"):
            consumer.seek(TopicPartition(topic, 0), "1")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="-5 is no offset"):
            consumer.commit({TopicPartition(topic, 0): -5})
        with pytest.raises(UsageError, match="give one of them"):
            consumer.rewind(records=1, to_ms=1)
        assert [record.value for record in consumer.poll(30)] == values(1)


@pytest.mark.slow_variants("apache")
def test_seek_and_rewind_go_anywhere(kafka: Kafka) -> None:
    topic = written(kafka, 40)
    zero = TopicPartition(topic, 0)
    with Consumer(kafka.bootstrap) as consumer:
        consumer.assign([zero])
        assert [record.value for record in read(consumer, 40)] == values(40)
        consumer.seek(zero, 30)
        assert [record.offset for record in read(consumer, 10)] == list(range(30, 40))
        consumer.rewind(zero, records=3)
        assert [record.offset for record in read(consumer, 3)] == [37, 38, 39]
        consumer.rewind()
        again = read(consumer, 40)
        assert [record.value for record in again] == values(40)
        to_ms = again[25].timestamp_ms
        assert to_ms is not None
        consumer.rewind(zero, to_ms=to_ms)
        first = read(consumer, 1)[0]
        assert first.timestamp_ms == to_ms
        with pytest.raises(UsageError, match="not assigned"):
            consumer.seek(TopicPartition(topic, 7), 0)


def test_moving_what_is_not_assigned_is_refused_at_once(embedded: Kafka) -> None:
    topic = written(embedded, 10)
    zero = TopicPartition(topic, 0)
    moves: list[Callable[[Consumer], None]] = [
        lambda consumer: consumer.seek(zero, 5),
        lambda consumer: consumer.rewind(),
        lambda consumer: consumer.rewind(zero),
        lambda consumer: consumer.rewind(zero, to_ms=5),
    ]
    begun = time.monotonic()
    with Consumer(embedded.bootstrap, group=f"moves-{topic}") as consumer:
        for move in moves:
            with pytest.raises(UsageError, match=r"no partition is assigned .* assign\(\) some, or poll"):
                move(consumer)
        consumer.commit()
        with pytest.raises(UsageError, match=r"no partition is assigned"):
            consumer.rewind()
        consumer.assign([zero])
        for move in moves:
            move(consumer)
        consumer.seek(zero, 5)
        assert [record.offset for record in read(consumer, 5)] == list(range(5, 10))
    for move in moves:
        with pytest.raises(UsageError, match="is closed"):
            move(consumer)
    with pytest.raises(UsageError, match="is closed"):
        consumer.commit()
    assert time.monotonic() - begun < 30


class LookupSent(logging.Handler):
    """Sets an event when librdkafka requests the first or the last offset of a partition."""

    def __init__(self) -> None:
        super().__init__()
        self.event = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "querying for logical offset" in record.getMessage():
            self.event.set()


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_seek_is_not_undone_by_a_lookup_sent_before(reset: str) -> None:
    zero = TopicPartition("t", 0)
    lookup = LookupSent()
    logger = logging.Logger("librdkafka")  # noqa: LOG001 - one that only this test has
    logger.addHandler(lookup)
    properties = {"auto.offset.reset": reset, "debug": "topic", "logger": logger}
    # One broker: among several, one that is so slow loses its session and with it the partition.
    with Cluster(brokers=1) as cluster:
        cluster.create_topic("t", 1)
        producer = BareProducer({"bootstrap.servers": cluster.bootstrap, "logger": quiet_logger()})

        def produce(count: int) -> None:
            for _ in range(count):
                producer.produce("t", b"value", partition=0)
            assert producer.flush(30) == 0

        produce(10)
        with Consumer(cluster.bootstrap, group="g", properties=properties) as consumer:
            consumer.assign([zero])
            cluster.slow(1, 300)
            assert lookup.event.wait(30)
            consumer.seek(zero, 5)
            assert [record.offset for record in read(consumer, 5)] == [5, 6, 7, 8, 9]
            cluster.heal()
            # librdkafka repeats a lookup 0.5 s after its response. These records are written before that:
            # if "latest" is looked up again, they are never delivered.
            produce(5)
            assert [record.offset for record in read(consumer, 5)] == [10, 11, 12, 13, 14]


@pytest.mark.parametrize("has_topics", [False, True])
def test_offsets_can_be_committed_before_anything_is_read(kafka: Kafka, has_topics: bool) -> None:
    topic = written(kafka, 10)
    zero, group = TopicPartition(topic, 0), f"early-{topic}"
    with Consumer(kafka.bootstrap, group=group, topics=topic if has_topics else ()) as consumer:
        consumer.commit()
        consumer.commit({zero: 7})
    with consumer_of(kafka, topic, group=group) as consumer:
        assert [record.offset for record in read(consumer, 3)] == [7, 8, 9]


def test_commits_of_ones_own_are_where_the_next_begins(kafka: Kafka) -> None:
    topic = written(kafka, 40)
    zero = TopicPartition(topic, 0)
    with Consumer(kafka.bootstrap, group=f"own-{topic}") as consumer:
        consumer.assign([zero])
        assert consumer.committed() == {zero: None}
        consumer.commit({zero: 12})
        assert consumer.committed() == {zero: 12}
    with Consumer(kafka.bootstrap, group=f"own-{topic}") as consumer:
        consumer.assign([zero])
        assert [record.offset for record in read(consumer, 28)] == list(range(12, 40))
        consumer.commit()
        assert consumer.committed() == {zero: 40}
        assert consumer.lag() == {zero: 0}


def test_what_was_polled_counts_as_done_when_a_handler_takes_over(embedded: Kafka) -> None:
    topic = written(embedded, 40)
    consumer = consumer_of(embedded, topic, commit_every_ms=20)
    polled = consumer.poll(30)
    begun = time.monotonic()
    found = handled(consumer)
    assert time.monotonic() - begun < 20
    assert [record.value for record in [*polled, *found]] == values(40)
    assert consumer.counters.handled == 40


@pytest.mark.parametrize("is_kept", [False, True], ids=["ended", "suspended"])
def test_a_handler_may_follow_an_iteration(embedded: Kafka, is_kept: bool) -> None:
    """An iteration that has ended did not ask for more: its last record comes again."""
    topic = written(embedded, 40)
    consumer = consumer_of(embedded, topic)
    iteration = iter(consumer)
    pulled = [next(iteration) for _ in range(9)]
    if not is_kept:
        del iteration
        pulled.pop()
    begun = time.monotonic()
    found = handled(consumer)
    assert time.monotonic() - begun < 20
    assert [record.value for record in [*pulled, *found]] == values(40)
    assert consumer.counters.handled == 40


@pytest.mark.slow_variants("apache")
def test_committing_in_an_iteration_takes_none_of_what_comes(kafka: Kafka) -> None:
    """What was handed out is committed, and nothing behind it."""
    topic = written(kafka, 40)
    zero, seen = TopicPartition(topic, 0), list[bytes | None]()
    with consumer_of(kafka, topic) as consumer:
        for record in consumer:
            seen.append(record.value)
            consumer.commit()
            assert consumer.committed() == {zero: len(seen)}
            if len(seen) == 40:
                break
    assert seen == values(40)
    assert consumer.counters.handled == 40


@pytest.mark.parametrize("with_store", [False, True], ids=["no-store", "sqlite"])
def test_rewinding_delivers_again_unless_a_store_remembers(
    kafka: Kafka, tmp_path: Path, with_store: bool
) -> None:
    """E7."""
    topic = written(kafka, 100)
    store = SqliteStore(str(tmp_path / "store.db")) if with_store else None
    consumer = consumer_of(kafka, topic, store=store)
    seen: list[int] = []
    member = Member(consumer, lambda record: seen.append(record.offset))
    wait_for(lambda: len(seen) == 100, "all is handled")
    consumer.rewind()
    if with_store:
        wait_for(lambda: consumer.counters.repeated == 100, "all came again")
        member.stop()
        assert seen == list(range(100))
    else:
        wait_for(lambda: len(seen) == 200, "all is handled again")
        member.stop()
        assert seen == [*range(100), *range(100)]


def test_a_handler_may_rewind_its_own_partition(embedded: Kafka) -> None:
    topic = written(embedded, 50)
    consumer = consumer_of(embedded, topic)
    seen: list[int] = []

    def handle(record: Record) -> None:
        seen.append(record.offset)
        if record.offset == 49 and len(seen) < 60:
            consumer.seek(TopicPartition(topic, 0), 40)

    member = Member(consumer, handle)
    wait_for(lambda: len(seen) == 60, "what was rewound is handled")
    member.stop()
    assert seen == [*range(50), *range(40, 50)]
