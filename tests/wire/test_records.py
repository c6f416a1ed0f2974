"""Records for every codec, against the builders and readers of other clients; hostile ones do no harm."""

from __future__ import annotations

import gzip
import itertools
from typing import Any

import cramjam
import lz4.frame  # type: ignore[import-untyped]
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import MemoryRecords
from kafka.record.memory_records import MemoryRecordsBuilder

from gapless.wire.batch import HEADER_SIZE, InvalidBatch, check_batch, parse_header
from gapless.wire.compression import Compression, NotDecompressible, OutputTooLarge, compress, decompress
from gapless.wire.errors import ErrorCode
from gapless.wire.records import CODECS, Record, build_batch, iterate_records, recompress
from tests.wire.odd_batches import changed, resized

ALL_CODECS = list(Compression)
REAL_CODECS = ALL_CODECS[1:]

SAMPLE = [
    Record(0, 1_000, None, b"first"),
    Record(1, 1_005, b"key", None),
    Record(2, 995, b"", b"", (("a", b"1"), ("ä", None), ("a", b""))),
    *(Record(3 + index, 2_000 + index, b"k%d" % index, b"value " * 200) for index in range(200)),
]


def read_by_kafka_python(batch: bytes | bytearray) -> list[Record]:
    (theirs,) = MemoryRecords(bytes(batch))
    assert theirs.validate_crc()
    return [
        Record(r.offset, r.timestamp, r.key, r.value, tuple((key, value) for key, value in r.headers))
        for r in theirs
    ]


def read(batch: bytes | bytearray) -> list[Record]:
    return list(iterate_records(batch, parse_header(batch, 0)))


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_our_batches_are_read_by_ourselves_and_by_kafka_python(codec: Compression) -> None:
    batch = build_batch(SAMPLE, compression=codec)
    check_batch(memoryview(batch))
    assert read(batch) == SAMPLE
    assert read_by_kafka_python(batch) == SAMPLE


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_batches_of_kafka_python_are_accepted_and_read(codec: Compression) -> None:
    builder = MemoryRecordsBuilder(magic=2, compression_type=int(codec), batch_size=1 << 20)
    for record in SAMPLE:
        builder.append(record.timestamp_ms, record.key, record.value, list(record.headers))
    builder.close()
    payload = bytes(builder.buffer())
    assert check_batch(memoryview(payload)).record_count == len(SAMPLE)
    assert read(payload) == SAMPLE


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_batches_of_aiokafka_are_accepted_and_read(codec: Compression) -> None:
    builder = AioBuilder(2, int(codec), 0, -1, -1, -1, 1 << 20)
    for record in SAMPLE:
        builder.append(record.offset, record.timestamp_ms, record.key, record.value, list(record.headers))
    payload = bytes(builder.build())
    assert check_batch(memoryview(payload)).record_count == len(SAMPLE)
    assert read(payload) == SAMPLE


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_uncompressed_batches_are_the_bytes_that_kafka_python_makes(codec: Compression) -> None:
    """Compressors may differ; what they compress may not."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=int(codec), batch_size=1 << 20)
    for record in SAMPLE:
        builder.append(record.timestamp_ms, record.key, record.value, list(record.headers))
    builder.close()
    theirs = parse_header(builder.buffer(), 0)
    ours = parse_header(build_batch(SAMPLE, compression=codec), 0)
    same = {
        "base_offset",
        "attributes",
        "last_offset_delta",
        "base_timestamp",
        "max_timestamp",
        "record_count",
    }
    assert {name: getattr(ours, name) for name in same} == {name: getattr(theirs, name) for name in same}
    if codec == Compression.NONE:
        assert build_batch(SAMPLE, leader_epoch=theirs.leader_epoch) == bytes(builder.buffer())


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**45),
            st.none() | st.binary(max_size=100),
            st.none() | st.binary(max_size=100),
            st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=10)), max_size=3),
        ),
        min_size=1,
        max_size=20,
    ),
    st.sampled_from(ALL_CODECS),
)
def test_what_goes_in_comes_out(records: list[Any], codec: Compression) -> None:
    batch = build_batch(records, compression=codec, base_offset=0)
    assert read(batch) == [
        Record(offset, timestamp, key, value, tuple(headers))
        for offset, (timestamp, key, value, headers) in enumerate(records)
    ]
    assert check_batch(memoryview(batch)).max_timestamp == max(record[0] for record in records)
    assert read_by_kafka_python(batch) == read(batch)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(ALL_CODECS, ALL_CODECS)))
def test_recompressing_keeps_all_but_the_codec(before: Compression, after: Compression) -> None:
    batch = build_batch(
        SAMPLE, compression=before, producer_id=4, producer_epoch=1, base_sequence=9, transactional=True
    )
    padded = b"before" + bytes(batch)
    converted = recompress(padded, parse_header(padded, 6), after)
    header = check_batch(memoryview(converted))
    assert header.compression == after
    assert read(converted) == SAMPLE
    kept = {
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "base_timestamp",
        "max_timestamp",
        "record_count",
    }
    original = parse_header(batch, 0)
    assert {name: getattr(header, name) for name in kept} == {name: getattr(original, name) for name in kept}
    assert header.is_transactional


def test_codecs_have_the_names_that_configurations_use() -> None:
    assert {name: int(codec) for name, codec in CODECS.items()} == {
        "none": 0,
        "uncompressed": 0,
        "gzip": 1,
        "snappy": 2,
        "lz4": 3,
        "zstd": 4,
    }


def test_a_control_batch_can_be_built_but_not_sent() -> None:
    marker = build_batch([(5, b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x00")], control=True, producer_id=3)
    assert parse_header(marker, 0).is_control
    with pytest.raises(InvalidBatch, match="control"):
        check_batch(memoryview(marker))


def test_reading_needs_the_whole_batch() -> None:
    batch = build_batch(SAMPLE)
    with pytest.raises(InvalidBatch, match="whole"):
        list(iterate_records(batch[:-1], parse_header(batch, 0)))


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"\x0c" + bytes(5), "exceeds its batch"),
        (b"\x0c\x00\x00\x00\x01\x04\x00", "exceeds its batch"),
        (b"\x0e\x00\x00\x00\x01\x01\x00\x00", "another length"),
        (b"\x0c\x00\x00\x00\x01\x01\x02", "claims 1 headers"),
        (b"\x10\x00\x00\x00\x01\x01\x02\x01\x00", "no key"),
        (b"\x12\x00\x00\x00\x01\x01\x02\x02\xff\x01", "UTF-8"),
        (b"\x0c\x00\x00\x00\x01\x01\x00\x00", "follow the last"),
        (b"\xff" * 12, "too many bytes"),
        (b"\xff\xff", "ends within"),
        (b"\x01" + bytes(6), "exceeds its batch"),
    ],
)
def test_broken_records_are_corrupt(body: bytes, fault: str) -> None:
    batch = resized(bytes(build_batch([(0, None, b"")])[:HEADER_SIZE]) + body)
    with pytest.raises(InvalidBatch, match=fault) as raised:
        read(batch)
    assert raised.value.code == ErrorCode.CORRUPT_MESSAGE


@given(st.sampled_from(ALL_CODECS), st.binary(max_size=100), st.integers(0, 40))
def test_arbitrary_records_are_read_without_harm(codec: Compression, body: bytes, count: int) -> None:
    head = bytes(build_batch([(0, None, b"")] * max(1, count))[:HEADER_SIZE])
    batch = changed(resized(head + body), 21, ">h", codec)
    try:
        records = read(batch)
    except InvalidBatch:
        return
    assert len(records) == max(1, count)


BOMB = bytes(20_000_000)


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_a_decompression_bomb_stops_at_the_bound(codec: Compression) -> None:
    bomb = compress(codec, BOMB)
    with pytest.raises(OutputTooLarge):
        decompress(codec, bomb, 1_000_000)
    batch = changed(resized(bytes(build_batch([(0, None, b"")])[:HEADER_SIZE]) + bomb), 21, ">h", codec)
    with pytest.raises(InvalidBatch) as raised:
        list(iterate_records(batch, parse_header(batch, 0), max_opened_bytes=1_000_000))
    assert raised.value.code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", REAL_CODECS)
@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 1_000_000])
def test_exactly_the_bound_is_allowed(codec: Compression, size: int) -> None:
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    packed = compress(codec, content)
    assert bytes(decompress(codec, packed, size)) == content
    if size:
        with pytest.raises(OutputTooLarge):
            decompress(codec, packed, size - 1)


def test_the_snappy_of_librdkafka_is_one_bare_block() -> None:
    assert bytes(decompress(2, bytes(cramjam.snappy.compress_raw(b"x" * 1000)), 1000)) == b"x" * 1000


def test_lz4_blocks_do_not_refer_to_each_other() -> None:
    """Java reads no others; a frame's header says so in one bit."""
    packed = compress(Compression.LZ4, b"abc" * 100_000)
    info = lz4.frame.get_frame_info(packed)
    assert not info["block_linked"]
    assert lz4.frame.decompress(packed) == b"abc" * 100_000


def test_linked_lz4_blocks_and_gzip_members_are_read() -> None:
    content = b"abc" * 100_000
    assert bytes(decompress(3, lz4.frame.compress(content, block_linked=True), len(content))) == content
    assert bytes(decompress(1, gzip.compress(content), len(content))) == content


SNAPPY_HEADER = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"


@pytest.mark.parametrize(
    "block",
    [
        b"\x00",
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"\x00\x00\x00\x03ab",
        b"\x00\x00\x00\x02ab",
    ],
)
def test_absurd_snappy_blocks_are_refused(block: bytes) -> None:
    with pytest.raises(NotDecompressible):
        decompress(2, SNAPPY_HEADER + block, 1000)


def test_a_snappy_block_that_claims_gigabytes_costs_nothing() -> None:
    with pytest.raises(OutputTooLarge):
        decompress(2, SNAPPY_HEADER + b"\x00\x00\x00\x06\xff\xff\xff\xff\x0f\x00", 1000)


@given(st.integers(1, 7), st.binary(max_size=100))
def test_arbitrary_bytes_decompress_or_do_not(codec: int, data: bytes) -> None:
    try:
        opened = decompress(codec, data, 1000)
    except (NotDecompressible, OutputTooLarge):
        return
    assert len(opened) <= 1000


def test_there_are_no_other_codecs() -> None:
    with pytest.raises(ValueError, match="5"):
        compress(5, b"")
