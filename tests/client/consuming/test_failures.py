"""A handler that raises: retries with a growing pause, then stop, or dead letters with the reason."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import NewTopic

from gapless.client.consuming.consumer import Consumer
from gapless.client.consuming.failures import (
    ATTEMPTS_HEADER,
    REASON_HEADER,
    DeadLetters,
    DeadLettersUnwritable,
    ProcessingFailed,
    origin_of,
)
from gapless.client.consuming.starting import OffsetsAhead
from gapless.client.formats import SEQUENCE_HEADER, SOURCE_HEADER, Identity, sequence_header, source_header
from gapless.client.records import Record, TopicPartition, UnreadableRecord
from gapless.client.stores.port import StoreUnavailable
from gapless.client.stores.sqlite import SqliteStore
from gapless.wire.records import build_batch
from tests.broker.raw import RawClient
from tests.client.conftest import Kafka, new_topic, read_all, wait_for
from tests.client.consuming.helpers import handled, values, write
from tests.client.consuming.test_consumer import consumer_of, of_each, written
from tests.client.consuming.test_low_level import read
from tests.client.processes.common import stop_at_end


class Poisoned(Exception):
    pass


def poison(offset: int, times: int = 10**9) -> Any:
    calls = Counter[int]()

    def handle(record: Record, *_: Any) -> None:
        calls[record.offset] += 1
        if record.offset == offset and calls[offset] <= times:
            raise Poisoned("cannot be eaten")

    return handle


def test_a_handler_is_tried_again_with_growing_pauses(kafka: Kafka) -> None:
    topic = written(kafka, 5)
    tried: list[float] = []

    def handle(record: Record) -> None:
        if record.offset == 2:
            tried.append(time.monotonic())
            if len(tried) < 4:
                raise Poisoned

    found = handled(consumer_of(kafka, topic, backoff_ms=50), handle)
    assert [record.offset for record in found] == [0, 1, 2, 3, 4]
    pauses = [later - earlier for earlier, later in pairwise(tried)]
    assert all(pause >= least for pause, least in zip(pauses, (0.05, 0.1, 0.2), strict=True))


@pytest.mark.parametrize("with_store", [False, True], ids=["no-store", "sqlite"])
def test_stop_commits_what_is_before_the_failure_and_nothing_after(
    kafka: Kafka, tmp_path: Path, with_store: bool
) -> None:
    topic = written(kafka, 200)
    store = SqliteStore(str(tmp_path / "store.db")) if with_store else None
    consumer = consumer_of(kafka, topic, backoff_ms=1, store=store)
    with pytest.raises(ProcessingFailed, match=rf"failed 4 times for {topic}-0 offset 77: Poisoned: cannot"):
        consumer.run(poison(77))
    with consumer_of(kafka, topic) as after:
        assert list(after.committed(of_each(topic, 1)).values()) == [77]


def test_at_most_once_does_not_call_a_handler_again_and_keeps_what_was_not_begun(kafka: Kafka) -> None:
    topic = written(kafka, 200)
    with pytest.raises(ProcessingFailed, match="failed once"):
        consumer_of(kafka, topic, semantics="at-most-once").run(poison(77))
    found = handled(consumer_of(kafka, topic, semantics="at-most-once"))
    assert [record.offset for record in found] == list(range(78, 200))


@pytest.mark.parametrize("with_store", [False, True], ids=["no-store", "sqlite"])
def test_a_dead_letter_has_the_reason_and_the_identity(
    kafka: Kafka, tmp_path: Path, with_store: bool
) -> None:
    topic, dead = new_topic(kafka), new_topic(kafka)
    incarnation = b"12345678"
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number, value in enumerate(values(50)):
        headers: list[tuple[str, str | bytes | None]] = [
            ("own", b"kept"),
            (SOURCE_HEADER, source_header("orders", incarnation)),
            (SEQUENCE_HEADER, sequence_header(number)),
        ]
        producer.produce(topic, value, b"key", headers=headers)
    producer.flush()
    store = SqliteStore(str(tmp_path / "store.db")) if with_store else None
    consumer = consumer_of(kafka, topic, retries=1, backoff_ms=1, store=store, on_failure=DeadLetters(dead))
    stop_at_end(consumer)
    consumer.run(poison(7))
    assert (consumer.counters.handled, consumer.counters.dead_lettered) == (49, 1)
    [letter] = read_all(kafka, dead)
    headers_found = dict(letter.headers)
    assert (letter.key, letter.value) == (b"key", values(50)[7])
    assert headers_found[REASON_HEADER] == b"Poisoned: cannot be eaten"
    assert headers_found[ATTEMPTS_HEADER] == b"2"
    assert headers_found["own"] == b"kept"
    assert letter.identity == Identity("orders", incarnation, 7)
    assert origin_of(letter.headers) == (TopicPartition(topic, 0), 7)


def test_a_reason_that_utf8_cannot_carry_is_escaped(embedded: Kafka) -> None:
    topic, dead = written(embedded, 2), new_topic(embedded)

    def handle(record: Record) -> None:
        raise ValueError("bad: " + b"\xff".decode(errors="surrogateescape"))

    consumer = consumer_of(embedded, topic, retries=0, on_failure=DeadLetters(dead))
    stop_at_end(consumer)
    consumer.run(handle)
    reasons = [dict(letter.headers)[REASON_HEADER] for letter in read_all(embedded, dead)]
    assert reasons == [b"ValueError: bad: \\udcff"] * 2


def test_dead_letters_that_cannot_be_written_stop_and_never_skip(kafka: Kafka) -> None:
    topic = written(kafka, 20)
    letters = DeadLetters("no/such/topic")
    with pytest.raises(DeadLettersUnwritable, match=r"offset 7 cannot be handled .* cannot be written"):
        consumer_of(kafka, topic, retries=0, on_failure=letters).run(poison(7))
    with consumer_of(kafka, topic) as after:
        assert list(after.committed(of_each(topic, 1)).values()) == [7]


def test_a_store_that_is_away_is_tried_again_and_then_told(embedded: Kafka, tmp_path: Path) -> None:
    topic = written(embedded, 20)

    class Flaky(SqliteStore):
        away = 2

        def apply(self, *arguments: Any) -> Any:
            if self.away and any(record.offset == 9 for record in arguments[1]):
                self.away -= 1
                raise StoreUnavailable("the database is on holiday")
            return super().apply(*arguments)

    consumer = consumer_of(embedded, topic, store=Flaky(str(tmp_path / "a.db")), backoff_ms=1)
    stop_at_end(consumer)
    consumer.run(lambda record: None)
    assert consumer.counters.handled == 20

    Flaky.away = 10
    store = Flaky(str(tmp_path / "b.db"))
    consumer = consumer_of(embedded, topic, group=f"other-{topic}", store=store, store_timeout_s=0.5)
    with pytest.raises(StoreUnavailable, match="on holiday"):
        consumer.run(lambda record: None)


def _created(kafka: Kafka, topic: str) -> bool:
    try:
        kafka.admin.create_topics([NewTopic(topic, 1, kafka.replicas)])[topic].result(30)
    except KafkaException:  # the old one is still being deleted
        return False
    return True


def test_a_log_that_is_shorter_than_the_store_remembers_is_refused(kafka: Kafka, tmp_path: Path) -> None:
    """A topic made anew: its first records would pass for those that were done."""
    topic = written(kafka, 20)
    store_path = str(tmp_path / "store.db")
    consumer = consumer_of(kafka, topic, store=SqliteStore(store_path))
    stop_at_end(consumer)
    consumer.run(lambda record: None)
    kafka.admin.delete_topics([topic])[topic].result(30)
    wait_for(partial(_created, kafka, topic), "the topic is made anew")
    write(kafka.bootstrap, topic, 5)
    again = Consumer(kafka.bootstrap, group=f"group-of-{topic}", topics=topic, store=SqliteStore(store_path))
    with pytest.raises(OffsetsAhead, match=r"done .* up to offset 20, but the log ends at 5"):
        again.run(lambda record: None)


class Latin(str):
    """A header's name as a careless client writes it."""

    __slots__ = ()

    def encode(self, *_: Any) -> bytes:
        return super().encode("latin-1")


def unreadable(kafka: Kafka) -> str:
    """A topic whose third record has a header that nobody can name."""
    topic = new_topic(kafka)
    write(kafka.bootstrap, topic, 2)
    batch = build_batch([(1_700_000_000_000, None, b"2", ((Latin("caf\u00e9"), b"x"),))])
    errors = []
    for address in kafka.bootstrap.split(","):
        with RawClient(address) as raw:
            errors.append(raw.produce(topic, batch).error_code)
    assert errors.count(0) == 1  # only its leader takes it
    write(kafka.bootstrap, topic, 100)
    return topic


@pytest.mark.parametrize("workers", [1, 3])
def test_a_record_that_cannot_be_read_stops_the_consumer_in_front_of_it(
    embedded: Kafka, tmp_path: Path, workers: int
) -> None:
    topic, found = unreadable(embedded), list[int]()
    store = SqliteStore(str(tmp_path / "store.db"))
    for _ in range(2):
        consumer = consumer_of(embedded, topic, workers=workers, store=store)
        with pytest.raises(UnreadableRecord, match=rf"{topic}-0 at offset 2 .* is not UTF-8"):
            consumer.run(lambda record, _transaction: found.append(record.offset))
    assert found == sorted(set(found))
    assert max(found, default=0) < 2


def test_who_pulls_is_told_of_a_record_that_cannot_be_read_each_time(embedded: Kafka) -> None:
    with consumer_of(embedded, unreadable(embedded)) as consumer:
        for _ in range(2):
            with pytest.raises(UnreadableRecord):
                read(consumer, 100)


def test_who_pulls_can_go_on_after_an_interrupt(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, found, make = written(kafka, 50), list[int](), Record.of_all
    interrupts = iter([False, True, False, True])

    def interrupted(*given: Any) -> list[Record]:
        made = make(*given)
        if next(interrupts, False):
            raise KeyboardInterrupt
        return made

    monkeypatch.setattr(Record, "of_all", interrupted)
    with consumer_of(kafka, topic) as consumer:
        deadline = time.monotonic() + 30
        while len(found) < 50 and time.monotonic() < deadline:
            with suppress(KeyboardInterrupt):
                found += [record.offset for record in consumer.poll(0.5)]
    assert found == list(range(50))
