"""Batches that no sane client sends, each with the answer of Apache Kafka 4.3.1 and with ours.

The answers were observed, not read (`test_kafkas_answers.py` observes them again). Where ours differs, the
reason is given with the batch; it never is an answer that would make a client try again in vain.
"""

from __future__ import annotations

import struct
import time
from typing import NamedTuple

from crc32c import crc32c

from gapless.wire.compression import Compression, compress
from gapless.wire.errors import ErrorCode
from gapless.wire.records import build_batch

NONE = ErrorCode.NONE
INVALID_RECORD = ErrorCode.INVALID_RECORD
CORRUPT_MESSAGE = ErrorCode.CORRUPT_MESSAGE
UNKNOWN_SERVER_ERROR = ErrorCode.UNKNOWN_SERVER_ERROR
INVALID_TIMESTAMP = ErrorCode.INVALID_TIMESTAMP
UNSUPPORTED_COMPRESSION_TYPE = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE

NOW_MS = int(time.time() * 1000)  # Apache Kafka would refuse timestamps that are far off

BASE_OFFSET, SIZE, LEADER_EPOCH, MAGIC, CRC, ATTRIBUTES, LAST_OFFSET_DELTA = 0, 8, 12, 16, 17, 21, 23
MAX_TIMESTAMP, RECORD_COUNT, FIRST_RECORD = 35, 57, 61


class Case(NamedTuple):
    name: str
    payload: bytes
    kafka: ErrorCode
    ours: ErrorCode


def changed(batch: bytes | bytearray, position: int, layout: str, value: int) -> bytes:
    """The batch with one field changed and a right checksum (unless the change is before what it covers)."""
    altered = bytearray(batch)
    struct.pack_into(layout, altered, position, value)
    if position >= ATTRIBUTES:
        struct.pack_into(">I", altered, CRC, crc32c(bytes(altered[ATTRIBUTES:])))
    return bytes(altered)


def resized(batch: bytes | bytearray) -> bytes:
    """The batch with size and checksum made right for what it has become."""
    return changed(changed(batch, SIZE, ">i", len(batch) - 12), ATTRIBUTES, ">b", batch[ATTRIBUTES])


def three_records(compression: int = 0) -> bytes:
    return bytes(build_batch([(NOW_MS, None, b"v%d" % index) for index in range(3)], compression=compression))


def one_record(**fields: int) -> bytes:
    return bytes(build_batch([(NOW_MS, None, b"v")], **fields))  # type: ignore[arg-type]


def counted(batch: bytes, count: int) -> bytes:
    """The batch with another number of records and the offsets to match."""
    return changed(changed(batch, RECORD_COUNT, ">i", count), LAST_OFFSET_DELTA, ">i", count - 1)


GOOD = three_records()


def _framing() -> list[Case]:
    return [
        Case("a good batch", GOOD, NONE, NONE),
        Case("nothing", b"", INVALID_RECORD, INVALID_RECORD),
        Case("less than a prefix", GOOD[:10], INVALID_RECORD, INVALID_RECORD),
        Case("less than a header", GOOD[:60], INVALID_RECORD, INVALID_RECORD),
        Case("a batch that lacks its last byte", GOOD[:-1], INVALID_RECORD, INVALID_RECORD),
        Case("a size of 25 bytes", changed(GOOD, SIZE, ">i", 13), CORRUPT_MESSAGE, CORRUPT_MESSAGE),
        Case("a size of 60 bytes", changed(GOOD, SIZE, ">i", 48), CORRUPT_MESSAGE, CORRUPT_MESSAGE),
        Case("a negative size", changed(GOOD, SIZE, ">i", -5), CORRUPT_MESSAGE, CORRUPT_MESSAGE),
        Case("format 0", changed(GOOD, MAGIC, ">b", 0), INVALID_RECORD, INVALID_RECORD),
        Case("format 1", changed(GOOD, MAGIC, ">b", 1), INVALID_RECORD, INVALID_RECORD),
        Case("format 3", changed(GOOD, MAGIC, ">b", 3), CORRUPT_MESSAGE, CORRUPT_MESSAGE),
        Case("format -1", changed(GOOD, MAGIC, ">b", -1), CORRUPT_MESSAGE, CORRUPT_MESSAGE),
        Case("a wrong checksum", changed(GOOD, CRC, ">I", 1), CORRUPT_MESSAGE, CORRUPT_MESSAGE),
        Case("two batches", GOOD + GOOD, INVALID_RECORD, INVALID_RECORD),
        # Kafka drops what is too short for a batch, silently. Here nothing that was sent goes missing.
        Case("a batch and five bytes", GOOD + b"12345", NONE, INVALID_RECORD),
        # Clients send again what is called corrupt, and would do so for ever.
        Case("a batch and a hundred zeros", GOOD + bytes(100), CORRUPT_MESSAGE, INVALID_RECORD),
    ]


def _claims() -> list[Case]:
    unknown_codec = changed(GOOD, ATTRIBUTES, ">h", 5)
    return [
        Case("a base offset of 7", changed(GOOD, BASE_OFFSET, ">q", 7), INVALID_RECORD, INVALID_RECORD),
        Case("a leader epoch of 5", changed(GOOD, LEADER_EPOCH, ">i", 5), NONE, NONE),
        Case("a count of 0", changed(GOOD, RECORD_COUNT, ">i", 0), INVALID_RECORD, INVALID_RECORD),
        Case("a count of -1", changed(GOOD, RECORD_COUNT, ">i", -1), INVALID_RECORD, INVALID_RECORD),
        Case(
            "a count of 4 at 3 offsets", changed(GOOD, RECORD_COUNT, ">i", 4), INVALID_RECORD, INVALID_RECORD
        ),
        Case(
            "a last offset delta of 5",
            changed(GOOD, LAST_OFFSET_DELTA, ">i", 5),
            INVALID_RECORD,
            INVALID_RECORD,
        ),
        Case(
            "a last offset delta of -1",
            changed(GOOD, LAST_OFFSET_DELTA, ">i", -1),
            INVALID_RECORD,
            INVALID_RECORD,
        ),
        Case("2 claimed of 3 records", counted(GOOD, 2), INVALID_RECORD, INVALID_RECORD),
        Case("4 claimed of 3 records", counted(GOOD, 4), INVALID_RECORD, INVALID_RECORD),
        Case("a control batch", changed(GOOD, ATTRIBUTES, ">h", 0x20), INVALID_RECORD, INVALID_RECORD),
        # Kafka takes the bit away again, but refuses it where the topic itself has LogAppendTime.
        Case("LogAppendTime set by a client", changed(GOOD, ATTRIBUTES, ">h", 0x08), NONE, INVALID_TIMESTAMP),
        # For Kafka an exception that nobody expected.
        Case("compression 5", unknown_codec, UNKNOWN_SERVER_ERROR, UNSUPPORTED_COMPRESSION_TYPE),
        Case("attributes without a meaning", changed(GOOD, ATTRIBUTES, ">h", 0x4040), NONE, NONE),
        Case(
            "a producer without sequence",
            one_record(producer_id=5, producer_epoch=0),
            INVALID_RECORD,
            INVALID_RECORD,
        ),
        # An epoch that no coordinator ever gives.
        Case("a producer without epoch", one_record(producer_id=6, base_sequence=0), NONE, INVALID_RECORD),
        Case(
            "a producer id of -2", one_record(producer_id=-2, producer_epoch=0, base_sequence=0), NONE, NONE
        ),
        Case("a sequence without producer", one_record(producer_epoch=3, base_sequence=4), NONE, NONE),
        Case("a wrong maximum timestamp", changed(GOOD, MAX_TIMESTAMP, ">q", NOW_MS + 5), NONE, NONE),
        Case("no timestamps", bytes(build_batch([(-1, None, b"v")])), NONE, NONE),
    ]


def _inside() -> list[Case]:
    longer = GOOD[FIRST_RECORD] + 2
    return [
        Case(
            "a record that is longer than it is",
            changed(GOOD, FIRST_RECORD, ">B", longer),
            INVALID_RECORD,
            INVALID_RECORD,
        ),
        Case("a record of -1 bytes", changed(GOOD, FIRST_RECORD, ">B", 1), INVALID_RECORD, INVALID_RECORD),
        Case("a record of no bytes", changed(GOOD, FIRST_RECORD, ">B", 0), INVALID_RECORD, INVALID_RECORD),
        Case("attributes of a record", changed(GOOD, FIRST_RECORD + 1, ">B", 1), NONE, NONE),
        Case("a record with another's offset", changed(GOOD, FIRST_RECORD + 3, ">B", 8), NONE, NONE),
    ]


def _compressed() -> list[Case]:
    cases = []
    for codec in (Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD):
        batch = three_records(codec)
        name = codec.name.lower()
        cases += [
            Case(f"{name}", batch, NONE, NONE),
            Case(f"{name}, 2 claimed of 3 records", counted(batch, 2), INVALID_RECORD, INVALID_RECORD),
            Case(f"{name}, 4 claimed of 3 records", counted(batch, 4), INVALID_RECORD, INVALID_RECORD),
            # For Kafka exceptions that nobody expected.
            Case(f"{name}, cut", resized(batch[:-6]), UNKNOWN_SERVER_ERROR, INVALID_RECORD),
            Case(
                f"{name} only by name",
                changed(GOOD, ATTRIBUTES, ">h", codec),
                UNKNOWN_SERVER_ERROR,
                INVALID_RECORD,
            ),
        ]
    return cases


def _taken_at_their_word() -> list[Case]:
    """What Kafka refuses and is accepted here: to see it, each record would have to be read."""
    last_byte = FIRST_RECORD + GOOD[FIRST_RECORD] // 2
    inside = bytearray(GOOD[FIRST_RECORD:])
    inside[3] = 8
    body = compress(Compression.ZSTD, inside)
    wrong_offset = resized(three_records(Compression.ZSTD)[:FIRST_RECORD] + body)
    return [
        Case(
            "five record headers that are not there", changed(GOOD, last_byte, ">B", 10), INVALID_RECORD, NONE
        ),
        Case("zstd, a record with another's offset", wrong_offset, UNKNOWN_SERVER_ERROR, NONE),
    ]


CASES = [*_framing(), *_claims(), *_inside(), *_compressed(), *_taken_at_their_word()]
