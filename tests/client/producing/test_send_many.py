"""Records that are there at once are sent in one call: as one by one, but stored together or not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gapless.client import BufferFull, Producer, Receipt
from gapless.client.producing.partitions import RUN_RECORDS
from gapless.client.spool import SpoolFull
from gapless.errors import GaplessError, UsageError
from tests.client.conftest import Kafka, new_topic, read_all, wait_for

WAYS = ("direct", "always", "exactly-once")


def options_of(way: str, folder: Path) -> dict[str, Any]:
    if way == "direct":
        return {}
    mode = {"semantics": "exactly-once"} if way == "exactly-once" else {"spool_mode": "always"}
    return {"spool": folder, **mode}


@pytest.mark.parametrize("way", WAYS)
def test_they_arrive_as_if_they_had_been_sent_one_by_one(kafka: Kafka, tmp_path: Path, way: str) -> None:
    topic = new_topic(kafka, 3)
    keys = [f"customer-{number % 7}" for number in range(200)]
    with Producer(kafka.bootstrap, "many", **options_of(way, tmp_path)) as producer:
        alone = {key: producer.send(topic, b"before", key=key).partition for key in set(keys)}
        values = [f"{number}" for number in range(200)]
        receipts = producer.send_many(
            topic, values, keys=keys, headers={"trace": b"7"}, timestamp_ms=1_700_000_000_000
        )
        kept_together = producer.send_many(topic, [b"a", None, b"c"], wait=True)
        assert producer.flush(30) == 0
    assert all(receipt.done and receipt.error is None for receipt in [*receipts, *kept_together])
    assert [receipt.partition for receipt in receipts] == [alone[key] for key in keys]
    assert len({receipt.partition for receipt in kept_together}) == 1
    found = read_all(kafka, topic)
    by_identity = {(each.partition, each.identity): each for each in found}
    for receipt, key, value in zip(receipts, keys, values, strict=True):
        record = by_identity[receipt.partition, receipt.identity]
        assert (record.key, record.value) == (key.encode(), value.encode())
        assert ("trace", b"7") in record.headers
        assert record.timestamp_ms == 1_700_000_000_000
    for partition in range(3):
        sequences = [
            each.identity.sequence for each in found if each.partition == partition and each.identity
        ]
        assert sequences == list(range(len(sequences)))


@pytest.mark.parametrize("way", WAYS)
def test_each_is_told_once_in_the_order_of_its_partition(embedded: Kafka, tmp_path: Path, way: str) -> None:
    topic = new_topic(embedded, 2)
    told: list[Receipt] = []

    def tell(error: GaplessError | None, receipt: Receipt) -> None:
        assert error is None
        told.append(receipt)

    with Producer(embedded.bootstrap, "telling", **options_of(way, tmp_path)) as producer:
        receipts = [
            *producer.send_many(topic, [b"x"] * 50, partition=0, on_delivery=tell),
            producer.send(topic, b"y", partition=1, on_delivery=tell),
            *producer.send_many(topic, [b"z"] * 50, partition=1, on_delivery=tell),
        ]
        wait_for(lambda: len(told) == len(receipts), "all were told")
    for partition in range(2):
        assert [each.sequence for each in told if each.partition == partition] == list(range(50 + partition))


def test_without_keys_all_go_to_one_partition_and_the_next_ones_to_another(embedded: Kafka) -> None:
    topic = new_topic(embedded, 3)
    with Producer(embedded.bootstrap, "together") as producer:
        groups = [producer.send_many(topic, [b"x"] * 2 * RUN_RECORDS) for _ in range(3)]
        assert producer.flush(30) == 0
    assert [len({receipt.partition for receipt in group}) for group in groups] == [1, 1, 1]
    assert {group[0].partition for group in groups} == {0, 1, 2}


def test_a_buffer_that_is_full_in_the_middle_is_waited_for(embedded: Kafka) -> None:
    topic = new_topic(embedded)
    with Producer(embedded.bootstrap, "narrow", buffer_messages=100) as producer:
        receipts = producer.send_many(topic, [b"%d" % number for number in range(1_000)])
        assert producer.flush(30) == 0
    assert [receipt.sequence for receipt in receipts] == list(range(1_000))
    assert [each.value for each in read_all(embedded, topic)] == [b"%d" % number for number in range(1_000)]


def test_what_a_full_buffer_drops_has_a_receipt_that_says_so(kafka: Kafka) -> None:
    topic = new_topic(kafka)
    with Producer(kafka.bootstrap, "dropping", None, when_full="drop", buffer_messages=10) as producer:
        producer.send(topic, b"learns of the topic", wait=True)
        producer.flush(10)
        with kafka.outage():
            receipts = producer.send_many(topic, [b"%d" % number for number in range(15)])
        assert producer.flush(30) == 0
        assert producer.dropped == 5
    assert [isinstance(receipt.error, BufferFull) for receipt in receipts] == [False] * 10 + [True] * 5
    assert [each.value for each in read_all(kafka, topic)][1:] == [b"%d" % number for number in range(10)]


def test_threads_that_send_many_keep_the_order_of_sequences(embedded: Kafka) -> None:
    topic = new_topic(embedded)
    with Producer(embedded.bootstrap, "threads") as producer, ThreadPoolExecutor(4) as pool:
        sending = [pool.submit(producer.send_many, topic, [b"x"] * 1_000) for _ in range(8)]
        singly = [producer.send(topic, b"y") for _ in range(1_000)]
        receipts = [*singly, *(receipt for each in sending for receipt in each.result(30))]
        assert producer.flush(30) == 0
    assert sorted(receipt.sequence for receipt in receipts) == list(range(9_000))
    found = [each.identity.sequence for each in read_all(embedded, topic) if each.identity]
    assert found == list(range(9_000))


def test_any_receipt_tells_when_all_are_on_disk(embedded: Kafka, tmp_path: Path) -> None:
    topic = new_topic(embedded)
    with Producer(embedded.bootstrap, "storing", spool=tmp_path, spool_mode="always") as producer:
        producer.send(topic, b"learns of the topic", wait=True)
        with embedded.outage():
            receipts = producer.send_many(topic, [b"%d" % number for number in range(1000)])
            receipts[0].stored(30)
            receipts[-1].stored(0.001)
        assert producer.flush(30) == 0
    assert [each.value for each in read_all(embedded, topic)][1:] == [b"%d" % n for n in range(1000)]


@pytest.mark.parametrize("way", ["always", "exactly-once"])
def test_if_one_is_refused_none_is_taken(embedded: Kafka, tmp_path: Path, way: str) -> None:
    topic = new_topic(embedded)
    given = options_of(way, tmp_path) | {"spool_max_bytes": 100_000}
    with Producer(embedded.bootstrap, "all-or-none", **given) as producer:
        with pytest.raises(UsageError, match="is too large for"):
            producer.send_many(topic, [b"small", b"x" * 1_100_000])
        with pytest.raises(SpoolFull, match="will never fit"):
            producer.send_many(topic, [b"x" * 1000] * 200)
        assert producer.send_many(topic, [b"0", b"1"], wait=True)[0].sequence == 0
    assert Counter(each.value for each in read_all(embedded, topic)) == {b"0": 1, b"1": 1}


def test_without_a_spool_what_comes_before_the_refused_one_is_sent(embedded: Kafka) -> None:
    topic = new_topic(embedded)
    with Producer(embedded.bootstrap, "one-by-one") as producer, pytest.raises(UsageError):
        producer.send_many(topic, [b"before", b"x" * 1_100_000, b"behind"])
    assert [each.value for each in read_all(embedded, topic)] == [b"before"]


@pytest.mark.parametrize(
    ("values", "options", "complaint"),
    [
        ("text", {}, "for one record there is send"),
        (b"bytes", {}, "for one record there is send"),
        ([b"x"], {"keys": "k"}, "for one record there is send"),
        (7, {}, "takes a list of values, not int"),
        ([b"x", 7], {}, "a value is bytes or text, not int"),
        ([b"x"], {"keys": [b"a", b"b"]}, "1 values came with 2 keys"),
        ([b"x"], {"partition": 5}, "has no partition 5"),
        ([b"x"], {"headers": {"gs": b""}}, "carries a record's identity"),
        ([b"x"], {"timestamp_ms": 0}, "milliseconds since 1970"),
    ],
)
def test_what_cannot_be_understood_is_refused_with_the_reason(
    embedded: Kafka, values: Any, options: dict[str, Any], complaint: str
) -> None:
    topic = new_topic(embedded)
    with Producer(embedded.bootstrap, "wrong") as producer:
        with pytest.raises(UsageError, match=complaint):
            producer.send_many(topic, values, **options)
        assert producer.send_many(topic, []) == []
    with pytest.raises(UsageError, match="closed"):
        producer.send_many(topic, [b"x"])


def test_a_mistake_in_the_callers_generator_is_told_as_it_is(embedded: Kafka) -> None:
    def values() -> Iterator[bytes]:
        yield b"x"
        raise TypeError("of the caller's own")

    own = pytest.raises(TypeError, match="of the caller's own")
    with Producer(embedded.bootstrap, "generator") as producer, own:
        producer.send_many(new_topic(embedded), values())
