"""The records of transactions are Kafka's, byte for byte, and what is not one is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.wire.batch import parse_header
from gapless.wire.errors import MalformedMessage
from gapless.wire.records import Record, iterate_records
from gapless.wire.transaction_records import (
    EndMarker,
    TransactionValue,
    build_marker,
    decode_key,
    decode_marker,
    decode_value,
    encode_key,
    encode_value,
)

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT16 = st.integers(-(2**15), 2**15 - 1)
PLACES = st.dictionaries(
    st.text(max_size=20), st.lists(INT32, max_size=5, unique=True).filter(bool), max_size=4
)


@given(
    st.builds(
        TransactionValue,
        INT64,
        INT16,
        INT32,
        st.integers(1, 7),
        PLACES.map(lambda topics: tuple((topic, n) for topic, numbers in topics.items() for n in numbers)),
        INT64,
        INT64,
        INT64,
        INT64,
        INT16,
    )
)
def test_a_value_is_read_back_as_it_was_written(value: TransactionValue) -> None:
    assert decode_value(encode_value(value)) == value


def test_an_ongoing_transaction_has_kafkas_bytes() -> None:
    value = TransactionValue(7, 3, 60_000, 1, (("t", 0), ("t", 2)), 1000, 900, 7, -1, 2)
    expected = bytes.fromhex(
        "0001"  # version
        "0000000000000007 0003 0000ea60 01"  # producer id and epoch, timeout, state
        "02 02 74 03 00000000 00000002 00"  # one topic, "t", two partitions, no tags
        "00000000000003e8 0000000000000384"  # last update, start
        "02 00 08 0000000000000007 02 02 0002"  # two tags: previous producer id, client's protocol
    )
    assert encode_value(value) == expected
    assert decode_value(expected) == value


def test_an_empty_transaction_has_no_partitions_at_all() -> None:
    value = TransactionValue(7, 0, 60_000, 0, (), 1000, -1)
    encoded = encode_value(value)
    assert encoded[17:18] == b"\x00"
    assert decode_value(encoded) == value


@pytest.mark.parametrize("partitions", ["ffffffff", "00000001 0001 74 00000001 00000005"])
def test_version_0_is_read_too(partitions: str) -> None:
    data = bytes.fromhex(
        "0000 0000000000000007 0003 0000ea60 01" + partitions + "00000000000003e8 0000000000000384"
    )
    expected = () if partitions == "ffffffff" else (("t", 5),)
    assert decode_value(data) == TransactionValue(7, 3, 60_000, 1, expected, 1000, 900)


def test_a_key_is_a_version_and_an_id() -> None:
    assert encode_key("ab") == b"\x00\x00\x00\x02ab"
    assert decode_key(encode_key("ü" * 100)) == "ü" * 100
    assert decode_key(b"\x00\x01anything") is None


@given(st.binary(max_size=60))
def test_what_is_no_record_is_said_to_be_so(data: bytes) -> None:
    for decode in (decode_key, decode_value):
        try:
            decode(data)
        except MalformedMessage:
            continue


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_record_that_is_cut_is_refused(cut: int) -> None:
    data = encode_value(TransactionValue(7, 3, 60_000, 1, (("t", 0),), 1000, 900, 7, 8, 2))
    with pytest.raises(MalformedMessage):
        decode_value(data[:-cut])


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_is_a_control_batch_of_one_record(committed: bool) -> None:
    data = build_marker((7, 3), EndMarker(committed, 5), 1000)
    batch = parse_header(data, 0)
    assert batch.is_control
    assert batch.is_transactional
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 3, -1)
    (record,) = iterate_records(data, batch)
    assert (record.key, record.value) == (bytes([0, 0, 0, committed]), bytes.fromhex("0000 00000005"))
    assert decode_marker([record]) == EndMarker(committed, 5)


def test_other_control_records_are_no_markers() -> None:
    assert decode_marker([Record(0, 0, b"\x00\x00\x00\x02", b"leader change")]) is None
    assert decode_marker([]) is None
    with pytest.raises(MalformedMessage):
        decode_marker([Record(0, 0, b"\x00", None)])
