"""Batch headers, the fields that a broker writes, and what it refuses, with the errors of Apache Kafka."""

from __future__ import annotations

import struct
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from gapless.wire import batch as batch_module
from gapless.wire.batch import (
    HEADER_SIZE,
    BatchHeader,
    InvalidBatch,
    check_batch,
    is_intact,
    parse_header,
    stamp,
    stamp_append_time,
)
from gapless.wire.compression import Compression
from gapless.wire.errors import ErrorCode
from gapless.wire.records import NewRecord, build_batch, iterate_records
from gapless.wire.walk import _careful_walk, fault_in_records
from tests.wire.odd_batches import CASES, GOOD, Case, changed, counted, three_records


def values(sizes: list[int]) -> list[NewRecord]:
    return [(1000 + index, None, b"x" * size) for index, size in enumerate(sizes)]


def test_a_header_says_what_kafka_python_reads() -> None:
    data = build_batch(
        values([5, 6, 7]),
        base_offset=2**40,
        compression=Compression.ZSTD,
        producer_id=77,
        producer_epoch=3,
        base_sequence=40,
        transactional=True,
        control=True,
        leader_epoch=9,
    )
    ours = parse_header(b"before" + data, 6)
    theirs = DefaultRecordBatch(bytes(data))
    assert ours == BatchHeader(
        theirs.base_offset,
        len(data),
        theirs.leader_epoch,
        theirs.crc,
        theirs.attributes,
        theirs.last_offset_delta,
        theirs.first_timestamp,
        theirs.max_timestamp,
        theirs.producer_id,
        theirs.producer_epoch,
        theirs.base_sequence,
        theirs.records_count,
        6,
    )
    assert theirs.validate_crc()
    assert (ours.last_offset, ours.next_offset) == (theirs.last_offset, theirs.next_offset)
    assert ours.last_sequence == theirs.last_sequence
    assert ours.compression == theirs.compression_type
    assert ours.is_transactional
    assert ours.is_control
    assert ours.has_producer_id
    assert not ours.uses_log_append_time


def test_a_plain_header_has_no_flags() -> None:
    header = parse_header(GOOD, 0)
    assert not header.is_transactional
    assert not header.is_control
    assert not header.has_producer_id
    assert header.compression == 0
    assert header.last_sequence == -1


def test_sequences_go_on_with_zero_after_the_largest() -> None:
    header = parse_header(GOOD, 0)._replace(base_sequence=2**31 - 2, last_offset_delta=1)
    assert header.last_sequence == 2**31 - 1
    assert header._replace(last_offset_delta=2).last_sequence == 0
    assert header._replace(last_offset_delta=4).last_sequence == 2


@pytest.mark.parametrize("position", [-1, 1, len(GOOD)])
def test_a_header_that_is_not_there_is_corrupt(position: int) -> None:
    with pytest.raises(InvalidBatch) as raised:
        parse_header(GOOD[:HEADER_SIZE], position)
    assert raised.value.code == ErrorCode.CORRUPT_MESSAGE


def test_stamping_changes_offset_and_epoch_and_nothing_else() -> None:
    data = bytearray(b"12345" + GOOD + b"after")
    header = stamp(memoryview(data), parse_header(data, 5), base_offset=2**50, leader_epoch=6)
    assert header == parse_header(data, 5)
    assert (header.base_offset, header.leader_epoch) == (2**50, 6)
    assert header.last_offset == 2**50 + 2
    assert is_intact(data, header)
    assert data[:5] == b"12345"
    assert data[5 + 16 :] == GOOD[16:] + b"after"


def test_append_time_replaces_the_clients_time_under_a_new_checksum() -> None:
    data = bytearray(b"12345" + GOOD + b"after")
    header = stamp_append_time(memoryview(data), parse_header(data, 5), timestamp_ms=123_456)
    assert header == parse_header(data, 5)
    assert header.uses_log_append_time
    assert header.max_timestamp == 123_456
    assert is_intact(data, header)
    assert [record.timestamp_ms for record in iterate_records(data, header)] == [123_456] * 3
    theirs = DefaultRecordBatch(bytes(data[5:-5]))
    assert theirs.validate_crc()
    assert theirs.timestamp_type == 1


def test_an_intact_batch_is_told_from_a_damaged_one() -> None:
    assert is_intact(GOOD, parse_header(GOOD, 0))
    for damaged in (GOOD[:-1], GOOD[:-1] + b"?", changed(GOOD, 16, ">b", 1), changed(GOOD, 8, ">i", 5)):
        assert not is_intact(damaged, parse_header(damaged, 0))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_batch_gets_the_error_that_kafka_gives_or_a_better_one(case: Case) -> None:
    if case.ours == ErrorCode.NONE:
        assert check_batch(memoryview(case.payload))
        return
    with pytest.raises(InvalidBatch) as raised:
        check_batch(memoryview(case.payload))
    assert raised.value.code == case.ours
    assert str(raised.value)


def test_zstd_is_refused_before_version_7_as_by_kafka() -> None:
    payload = memoryview(three_records(Compression.ZSTD))
    with pytest.raises(InvalidBatch) as raised:
        check_batch(payload, produce_version=6)
    assert raised.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert check_batch(payload, produce_version=7)


def test_checking_returns_the_header() -> None:
    assert check_batch(memoryview(GOOD)) == parse_header(GOOD, 0)


def test_a_decompression_bomb_is_neither_opened_nor_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = build_batch(values([3_000_000]), compression=Compression.ZSTD)
    lying = memoryview(counted(bytes(bomb), 7))
    with pytest.raises(InvalidBatch, match="batch ends before record 1"):
        check_batch(lying)
    monkeypatch.setattr(batch_module, "MAX_OPENED_BYTES", 1_000_000)
    assert check_batch(lying).record_count == 7


@given(st.binary(max_size=200))
@example(bytes(61))
@example(b"\xff" * 61)
def test_arbitrary_bytes_are_checked_without_harm(payload: bytes) -> None:
    with pytest.raises(InvalidBatch):
        check_batch(memoryview(payload))


@given(codec=st.integers(0, 4), seed=st.integers(0, 30), data=st.data())
def test_mutated_batches_are_checked_without_harm(codec: int, seed: int, data: st.DataObject) -> None:
    random = Random(seed)
    payload = bytearray(build_batch(values([random.randrange(200) for _ in range(10)]), compression=codec))
    position = data.draw(st.integers(0, len(payload) - 1))
    payload[position : position + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=6))
    if (
        data.draw(st.booleans()) and len(payload) > HEADER_SIZE
    ):  # half of them reach the checks after the checksum
        struct.pack_into(">i", payload, 8, len(payload) - 12)
        payload[16] = 2
        payload = bytearray(changed(payload, 21, ">h", codec))
    try:
        header = check_batch(memoryview(payload))
    except InvalidBatch:
        return
    assert header.size_bytes == len(payload)


# Sizes on both sides of where a length takes one more byte, in runs and mixed, as real batches have them.
sizes = st.lists(
    st.one_of(
        st.sampled_from([0, 1, 50, 56, 57, 58, 100, 8183, 8184, 9000]).map(lambda size: [size]),
        st.tuples(st.sampled_from([0, 40, 100, 8000]), st.sampled_from([5, 20, 70, 300])).map(
            lambda run: [run[0]] * run[1]
        ),
    ),
    min_size=1,
    max_size=8,
).map(lambda runs: [size for run in runs for size in run])


@given(sizes, st.integers(-1, 1))
def test_records_are_counted_whatever_their_sizes(record_sizes: list[int], off_by: int) -> None:
    records = bytes(build_batch(values(record_sizes)))[HEADER_SIZE:]
    for view in (records, memoryview(records)):
        fault = fault_in_records(view, len(record_sizes) + off_by)
        assert (fault is None) == (off_by == 0)


@given(sizes, st.data())
def test_the_quick_walk_agrees_with_the_careful_one(record_sizes: list[int], data: st.DataObject) -> None:
    records = bytearray(build_batch(values(record_sizes)))[HEADER_SIZE:]
    for _ in range(data.draw(st.integers(0, 2))):
        records[data.draw(st.integers(0, len(records) - 1))] = data.draw(st.integers(0, 255))
    count = len(record_sizes)
    assert fault_in_records(records, count) == _careful_walk(records, count)


@pytest.mark.parametrize(
    ("records", "fault"),
    [
        (b"", "1 records cannot lie in 0 bytes"),
        (b"\x80", "ends before record 0"),
        (b"\xff\xff\xff\xff\xff\x01", "too many bytes"),
        (b"\x0d" + bytes(6), "length of -7 bytes"),
        (b"\x0a" + bytes(5), "length of 5 bytes"),
        (b"\x8a\x00" + bytes(5), "length of 5 bytes"),
        (b"\xfe\xff\xff\xff\x0f" + bytes(20), "beyond its batch"),
        (b"\x0c" + bytes(7), "1 bytes follow"),
    ],
)
def test_a_fault_in_records_is_named(records: bytes, fault: str) -> None:
    assert fault in (fault_in_records(records, 1) or "")


def test_over_long_lengths_are_accepted_as_by_kafka() -> None:
    assert fault_in_records(b"\x8c\x80\x00" + bytes(6), 1) is None


def test_lengths_chosen_against_the_walk_cost_no_more_than_a_step_each() -> None:
    """Runs that end just before each look-ahead would: the walk must not look at bytes over and over."""
    record_sizes = ([100] * 63 + [101]) * 200 + [100, 101] * 2000
    records = bytes(build_batch(values(record_sizes)))[HEADER_SIZE:]
    assert fault_in_records(records, len(record_sizes)) is None
