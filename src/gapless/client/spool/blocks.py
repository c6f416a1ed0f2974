"""The bytes of a spool's segments.

    segment   "gapspool", version (u32), 4 zero bytes, incarnation (8), then blocks, then perhaps zeros
    block     "GSB\\x01", CRC-32C (u32), length of the body (u32), records (u32),
              position of the first (u64), body
    body      declared streams (u32), each: id (u32), incarnation (8), partition (u32), next sequence (u64),
              length of the topic (u16), topic;
              then one column after the other, with one entry per record: stream (u32), sequence (u64),
              timestamp in ms (i64), length of key (i32), of value (i32), of headers (u32);
              then all keys, all values, all headers

All numbers are little-endian. A length of -1 is None, and so is the least timestamp. The checksum covers all
that follows it in the block, and begins with the incarnation's, so that a block of another spool, say inside
a record, is never taken for one of this. A block is what one write and one sync made durable. The first block
of a segment has no records; it declares the streams that are carried over, so that no older segment is needed
to go on. Columns, because they are packed and unpacked at the speed of C.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from struct import Struct, pack
from typing import Any, NamedTuple

from crc32c import crc32c

from gapless.client.records import Headers
from gapless.client.spool.records import Spooled
from gapless.errors import UsageError

VERSION = 1
FILE_MAGIC = b"gapspool"
BLOCK_MAGIC = b"GSB\x01"
FILE_HEADER = Struct("<8sI4x8s")
BLOCK_HEADER = Struct("<4sIIIQ")
_CHECKED = Struct("<IIQ")
_COUNT = Struct("<I")
_DECLARED = Struct("<I8sIQH")
_HEADER_NAME = Struct("<H")
_HEADER_VALUE = Struct("<i")
_COLUMNS = ("I", "Q", "q", "i", "i", "I")
_NONE = pack("<i", -1)
_NO_HEADERS = pack("<I", 0)
RECORD_OVERHEAD_BYTES = sum(array(code).itemsize for code in _COLUMNS)
BLOCK_OVERHEAD_BYTES = BLOCK_HEADER.size + _COUNT.size
NO_TIMESTAMP = -(1 << 63)
MAX_RECORD_BYTES = 1 << 30
_MUST_SWAP = sys.byteorder != "little"


class Stream:
    """What sequences count in: one partition of a topic, for one incarnation."""

    __slots__ = ("declared_in", "id", "incarnation", "next_sequence", "partition", "stored_sequence", "topic")

    def __init__(
        self, id_: int, incarnation: bytes, topic: str, partition: int, next_sequence: int = 0
    ) -> None:
        self.id = id_
        self.incarnation = incarnation
        self.topic = topic
        self.partition = partition
        self.next_sequence = next_sequence
        self.stored_sequence = next_sequence
        """The next sequence, of what is durable."""
        self.declared_in = -1
        """The segment that knows it, by its first position."""

    @property
    def declared_bytes(self) -> int:
        return _DECLARED.size + len(self.topic.encode())


Row = tuple[int, int, int, bytes | None, bytes | None, bytes]
"""A record that waits: the stream's id, sequence, timestamp, key, value, encoded headers.

Nothing in it can refer to anything else, so that Python's garbage collector soon leaves it alone.
"""


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """What comes before a block's body."""

    crc: int
    length: int
    count: int
    first: int

    @property
    def end(self) -> int:
        return self.first + self.count


class Columns(NamedTuple):
    """A block's body, taken apart but for its keys, values and headers."""

    declared: list[Stream]
    content_at: int
    streams: array[int]
    sequences: array[int]
    timestamps: array[int]
    key_lengths: array[int]
    value_lengths: array[int]
    header_lengths: array[int]


def seed_of(incarnation: bytes) -> int:
    """Where the checksums of an incarnation's blocks begin."""
    return int(crc32c(incarnation))


def encode_headers(headers: Headers) -> bytes:
    parts = []
    for name, value in headers:
        if value is not None and not isinstance(value, bytes):
            raise UsageError(
                f"the value of header {name!r} must be bytes or None, not {type(value).__name__}"
            )
        encoded = name.encode()
        if len(encoded) >= 1 << 16:
            raise UsageError(f"the name of header {name[:50]!r}... is too long")
        parts += [
            _HEADER_NAME.pack(len(encoded)),
            encoded,
            _HEADER_VALUE.pack(-1 if value is None else len(value)),
        ]
        if value:
            parts.append(value)
    return b"".join(parts)


def decode_headers(encoded: bytes) -> Headers:
    headers: list[tuple[str, bytes | None]] = []
    at = 0
    while at < len(encoded):
        (length,) = _HEADER_NAME.unpack_from(encoded, at)
        at += _HEADER_NAME.size
        name = encoded[at : at + length].decode()
        at += length
        (length,) = _HEADER_VALUE.unpack_from(encoded, at)
        at += _HEADER_VALUE.size
        headers.append((name, None if length < 0 else encoded[at : at + length]))
        at += max(length, 0)
    return tuple(headers)


def _packed(code: str, numbers: Sequence[int]) -> bytes:
    if numbers[0] == numbers[-1] and numbers.count(numbers[0]) == len(numbers):
        return pack("<" + code, numbers[0]) * len(numbers)
    return pack(f"<{len(numbers)}{code}", *numbers)


def _lengths(values: Sequence[bytes | None]) -> tuple[bytes, Iterable[bytes]]:
    """The lengths, and what there is of the values."""
    if values[0] is None and values.count(None) == len(values):
        return _NONE * len(values), ()
    try:
        return _packed("i", list(map(len, values))), values  # type: ignore[arg-type, return-value]
    except TypeError:  # some are None; to look for that first would cost more than all the rest
        lengths = [-1 if value is None else len(value) for value in values]
        return _packed("i", lengths), filter(None, values)


def encode_declared(streams: Sequence[Stream]) -> bytes:
    parts = [_COUNT.pack(len(streams))]
    for stream in streams:
        topic = stream.topic.encode()
        parts.append(
            _DECLARED.pack(
                stream.id, stream.incarnation, stream.partition, stream.stored_sequence, len(topic)
            )
        )
        parts.append(topic)
    return b"".join(parts)


class Rows(NamedTuple):
    """Records by column: much smaller than one by one, and quicker to encode."""

    streams: Sequence[int] = ()
    sequences: Sequence[int] = ()
    timestamps: Sequence[int] = ()
    keys: Sequence[bytes | None] = ()
    values: Sequence[bytes | None] = ()
    headers: Sequence[bytes] = ()

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Rows:
        return cls(*zip(*rows, strict=True))

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """All in one, in their order."""
        if len(parts) == 1:
            return parts[0]
        return cls(*(tuple(chain.from_iterable(columns)) for columns in zip(*parts, strict=True)))

    def slice(self, first: int, end: int) -> Rows:
        columns: Any = [column[first:end] for column in self]
        return Rows(*columns)

    def last_sequences(self) -> dict[int, int]:
        """Of each stream that they belong to, by its id."""
        if self.streams.count(self.streams[0]) == len(self.streams):
            return {self.streams[0]: self.sequences[-1]}
        return dict(zip(self.streams, self.sequences, strict=True))


def encode_body(declared: Sequence[Stream], rows: Rows) -> bytes:
    key_lengths, keys = _lengths(rows.keys)
    value_lengths, values = _lengths(rows.values)
    parts = [
        encode_declared(declared),
        _packed("I", rows.streams),
        _packed("Q", rows.sequences),
        _packed("q", rows.timestamps),
        key_lengths,
        value_lengths,
    ]
    if any(rows.headers):
        parts += [_packed("I", list(map(len, rows.headers))), *keys, *values, *rows.headers]
    else:
        parts += [_NO_HEADERS * len(rows.values), *keys, *values]
    return b"".join(parts)


def encode_header(seed: int, first: int, count: int, body: bytes) -> bytes:
    crc = crc32c(body, crc32c(_CHECKED.pack(len(body), count, first), seed))
    return BLOCK_HEADER.pack(BLOCK_MAGIC, crc, len(body), count, first)


def decode_header(encoded: bytes, at: int = 0) -> BlockHeader | None:
    """None if these bytes do not begin a block."""
    if len(encoded) - at < BLOCK_HEADER.size:
        return None
    magic, crc, length, count, first = BLOCK_HEADER.unpack_from(encoded, at)
    return BlockHeader(crc, length, count, first) if magic == BLOCK_MAGIC else None


def is_intact(seed: int, header: BlockHeader, body: bytes | memoryview) -> bool:
    if len(body) != header.length:
        return False
    head = _CHECKED.pack(header.length, header.count, header.first)
    return bool(crc32c(body, crc32c(head, seed)) == header.crc)


def decode_declared(body: bytes) -> tuple[list[Stream], int]:
    """The streams, and where the columns begin. Raises ValueError if it is none of ours."""
    try:
        (count,) = _COUNT.unpack_from(body)
        at = _COUNT.size
        streams = []
        for _ in range(count):
            id_, incarnation, partition, next_sequence, length = _DECLARED.unpack_from(body, at)
            at += _DECLARED.size
            topic = body[at : at + length].decode()
            at += length
            streams.append(Stream(id_, incarnation, topic, partition, next_sequence))
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error
    return streams, at


def decode_columns(header: BlockHeader, body: bytes) -> Columns:
    """Raises ValueError if the body is none of ours."""
    declared, at = decode_declared(body)
    columns = []
    for code in _COLUMNS:
        column = array(code)
        size = column.itemsize * header.count
        column.frombytes(body[at : at + size])
        if len(column) != header.count:
            raise ValueError("the block is shorter than its columns")
        if _MUST_SWAP:
            column.byteswap()
        columns.append(column)
        at += size
    return Columns(declared, at, *columns)


def decode_records(
    header: BlockHeader, body: bytes, columns: Columns, streams: dict[int, Stream]
) -> list[Spooled]:
    """Raises ValueError or KeyError if the body is none of ours."""
    key_at = columns.content_at
    value_at = key_at + sum(length for length in columns.key_lengths if length > 0)
    headers_at = value_at + sum(length for length in columns.value_lengths if length > 0)
    if headers_at + sum(columns.header_lengths) != len(body):
        raise ValueError("the block's lengths do not add up")
    records = []
    position = header.first
    for id_, sequence, timestamp, key_length, value_length, headers_length in zip(*columns[2:], strict=True):
        stream = streams[id_]
        key = value = None
        if key_length >= 0:
            key = body[key_at : key_at + key_length]
            key_at += key_length
        if value_length >= 0:
            value = body[value_at : value_at + value_length]
            value_at += value_length
        headers: Headers = ()
        if headers_length:
            headers = decode_headers(body[headers_at : headers_at + headers_length])
            headers_at += headers_length
        records.append(
            Spooled(
                position,
                stream.incarnation,
                stream.topic,
                stream.partition,
                sequence,
                None if timestamp == NO_TIMESTAMP else timestamp,
                key,
                value,
                headers,
            )
        )
        position += 1
    return records
