"""The rules of sequence numbers, request by request: what is taken, what is a repetition, what is refused."""

from __future__ import annotations

import pytest

from gapless.wire.errors import ErrorCode

from .conftest import NewTopic
from .raw import RawClient, batch, records_in

LAST_SEQUENCE = 2**31 - 1


@pytest.fixture
def producer_id(raw: RawClient) -> int:
    return raw.new_producer_id()


@pytest.fixture
def topic(new_topic: NewTopic) -> str:
    return new_topic(2)


class Producer:
    """Sends batches of values to partition 0 as one producer id, and tells (error, base offset)."""

    def __init__(self, raw: RawClient, topic: str, producer_id: int) -> None:
        self._raw = raw
        self._topic = topic
        self._producer_id = producer_id

    def send(
        self, sequence: int, *values: bytes, epoch: int = 0, partition: int = 0
    ) -> tuple[ErrorCode, int]:
        made = batch(values, producer_id=self._producer_id, epoch=epoch, sequence=sequence)
        outcome = self._raw.produce(self._topic, made, partition=partition)
        return ErrorCode(outcome.error_code), outcome.base_offset

    def stored(self) -> list[bytes | None]:
        return [record.value for record in records_in(self._raw.fetch(self._topic).records)]


@pytest.fixture
def producer(raw: RawClient, topic: str, producer_id: int) -> Producer:
    return Producer(raw, topic, producer_id)


def test_every_producer_gets_an_id_of_its_own(raw: RawClient) -> None:
    """Claims C4, C6."""
    ids = [raw.new_producer_id() for _ in range(5)]
    assert len(set(ids)) == 5


def test_the_next_number_is_taken(producer: Producer) -> None:
    """Claim C4: exactly one more is accepted."""
    assert producer.send(0, b"a", b"b") == (ErrorCode.NONE, 0)
    assert producer.send(2, b"c") == (ErrorCode.NONE, 2)
    assert producer.stored() == [b"a", b"b", b"c"]


def test_a_repeated_batch_is_answered_with_its_offset_and_not_stored(producer: Producer) -> None:
    """Claim C4: each of the last five batches is known again."""
    for number in range(5):
        assert producer.send(number, b"%d" % number) == (ErrorCode.NONE, number)
    for number in range(5):
        assert producer.send(number, b"%d" % number) == (ErrorCode.NONE, number)
    assert producer.stored() == [b"0", b"1", b"2", b"3", b"4"]


def test_a_batch_older_than_the_last_five_is_refused_and_not_stored(producer: Producer) -> None:
    """Claim C4: Kafka does not call it a duplicate, since it no longer knows; its number is out of order."""
    for number in range(7):
        producer.send(number, b"%d" % number)
    assert producer.send(1, b"1") == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert producer.send(2, b"2") == (ErrorCode.NONE, 2), "the fifth from the end is known"
    assert len(producer.stored()) == 7


def test_a_gap_is_refused(producer: Producer) -> None:
    """Claims C4, C5: higher is out of order. Nothing is stored, and the right number is still welcome."""
    producer.send(0, b"a")
    assert producer.send(2, b"c") == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert producer.send(1, b"b") == (ErrorCode.NONE, 1)
    assert producer.stored() == [b"a", b"b"]


def test_a_batch_that_only_partly_repeats_another_is_refused(producer: Producer) -> None:
    producer.send(0, b"a", b"b")
    error, _ = producer.send(1, b"b", b"c")
    assert error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.stored() == [b"a", b"b"]


def test_each_partition_counts_for_itself(producer: Producer) -> None:
    """Claim C4: one sequence for each producer and partition."""
    assert producer.send(0, b"a") == (ErrorCode.NONE, 0)
    assert producer.send(0, b"b", partition=1) == (ErrorCode.NONE, 0)
    assert producer.send(1, b"c") == (ErrorCode.NONE, 1)


def test_an_unknown_producer_may_begin_anywhere(producer: Producer) -> None:
    """Its state may have been removed with old data."""
    assert producer.send(17, b"a") == (ErrorCode.NONE, 0)
    assert producer.send(18, b"b") == (ErrorCode.NONE, 1)
    assert producer.send(0, b"c")[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_numbers_begin_again_after_the_last(producer: Producer) -> None:
    assert producer.send(LAST_SEQUENCE - 1, b"a") == (ErrorCode.NONE, 0)
    assert producer.send(LAST_SEQUENCE, b"b", b"c") == (ErrorCode.NONE, 1)
    assert producer.send(1, b"d") == (ErrorCode.NONE, 3)
    assert producer.send(LAST_SEQUENCE, b"b", b"c") == (ErrorCode.NONE, 1), "a repetition"
    assert producer.stored() == [b"a", b"b", b"c", b"d"]


def test_a_new_epoch_begins_at_zero_and_shuts_out_the_old(producer: Producer) -> None:
    """Claim C4."""
    producer.send(0, b"a")
    assert producer.send(1, b"x", epoch=1)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.send(0, b"b", epoch=1) == (ErrorCode.NONE, 1)
    assert producer.send(1, b"x", epoch=0)[0] == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.stored() == [b"a", b"b"]
