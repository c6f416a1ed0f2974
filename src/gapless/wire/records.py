"""The records inside a batch: read one by one, or built into a batch.

For tools, tests, coordinators and look-ups by time; a broker's hot path handles whole batches only. Whatever
is wrong inside a batch is an `InvalidBatch`, and opening one never makes more than the given number of bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from gapless.wire.batch import (
    HEADER_SIZE,
    MAGIC,
    MAX_OPENED_BYTES,
    PREFIX_SIZE,
    BatchHeader,
    InvalidBatch,
    Opening,
)
from gapless.wire.compression import Compression, NotDecompressible, OutputTooLarge, compress, decompress
from gapless.wire.errors import ErrorCode

Buffer = bytes | bytearray | memoryview
Headers = Sequence[tuple[str, bytes | None]]
NewRecord = tuple[int, bytes | None, bytes | None] | tuple[int, bytes | None, bytes | None, Headers]
"""Timestamp in ms, key, value and, if there are any, headers."""

CODECS: dict[str, Compression] = {
    "uncompressed": Compression.NONE,
    "none": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}
"""The names of codecs in configurations: `compression.type` of a topic, and of a producer."""

_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_DELETE_HORIZON = 0x40
_CODEC_MASK = 0x07

_HEADER = Struct(">qiibIhiqqqhii")
_CRC = Struct(">I")
_CRC_POSITION = 17
_CRC_START = 21
_MAX_VARINT_BYTES = 10


class Record(NamedTuple):
    """One record with its place in the log."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def iterate_records(
    payload: Buffer, batch: BatchHeader, *, max_opened_bytes: int = MAX_OPENED_BYTES
) -> Iterator[Record]:
    """The records of a batch that lies whole in `payload`, at the position that its header names."""
    data = bytes(_opened(payload, batch, max_opened_bytes))
    append_time = batch.max_timestamp if batch.uses_log_append_time else None
    headers: tuple[tuple[str, bytes | None], ...]
    position = 0
    try:
        for _ in range(batch.record_count):
            length, position = _read_varint(data, position)
            end = position + length
            if length < 0 or end > len(data):
                raise _corrupt("a record exceeds its batch")
            timestamp_delta, position = _read_varint(data, position + 1)  # attributes mean nothing yet
            offset_delta, position = _read_varint(data, position)
            key, position = _read_bytes(data, position)
            value, position = _read_bytes(data, position)
            if data[position]:
                headers, position = _read_headers(data, position)
            else:
                headers, position = (), position + 1
            if position != end:
                raise _corrupt("a record has another length than it says")
            timestamp_ms = batch.base_timestamp + timestamp_delta if append_time is None else append_time
            yield Record(batch.base_offset + offset_delta, timestamp_ms, key, value, headers)
    except IndexError:
        raise _corrupt("a batch ends within a record") from None
    if position != len(data):
        raise _corrupt("bytes follow the last record of a batch")


def build_batch(
    records: Iterable[NewRecord | Record],
    *,
    base_offset: int = 0,
    compression: int = Compression.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = -1,
) -> bytearray:
    """One batch of the records in their order, at consecutive offsets."""
    base_timestamp = max_timestamp = -1
    body = bytearray()
    count = 0
    for record in records:
        timestamp_ms, key, value, headers = _fields(record)
        if count == 0:
            base_timestamp = max_timestamp = timestamp_ms
        max_timestamp = max(max_timestamp, timestamp_ms)
        _append_record(body, count, timestamp_ms - base_timestamp, key, value, headers)
        count += 1
    attributes = compression | transactional * _TRANSACTIONAL | control * _CONTROL
    header = BatchHeader(
        base_offset,
        0,
        leader_epoch,
        0,
        attributes,
        count - 1,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
        0,
    )
    return _assemble(header, compress(compression, body))


def recompress(payload: Buffer, batch: BatchHeader, codec: int) -> bytearray:
    """The same batch under another codec."""
    records = _opened(payload, batch, MAX_OPENED_BYTES)
    attributes = batch.attributes & ~_CODEC_MASK | codec
    return _assemble(batch._replace(attributes=attributes), compress(codec, records))


def record_without_key(payload: Buffer, batch: BatchHeader, opening: Opening) -> int | None:
    """Which record of a batch is the first without a key; None if all have one.

    Nothing else of the records is looked at: this is asked of every batch for a compacted topic.
    """
    limit_bytes = min(MAX_OPENED_BYTES, opening.left_bytes)
    data = bytes(_opened(payload, batch, limit_bytes))
    if batch.compression:
        opening.left_bytes -= len(data)
    position = 0
    try:
        for index in range(batch.record_count):
            length, position = _read_varint(data, position)
            end = position + length
            position += 1  # attributes
            while data[position] & 0x80:  # timestamp delta
                position += 1
            position += 1
            while data[position] & 0x80:  # offset delta
                position += 1
            if data[position + 1] & 1:  # a negative length
                return index
            if length < 0:
                raise _corrupt("a record has a negative length")
            position = end
    except IndexError:
        raise _corrupt("a batch ends within a record") from None
    return None


def delete_horizon_ms(batch: BatchHeader) -> int | None:
    """From when on compaction may drop the tombstones or the marker of a batch; None if it is not set yet.

    It takes the place of the base timestamp, to which those of the records are relative.
    """
    return batch.base_timestamp if batch.attributes & _DELETE_HORIZON else None


class Outline(NamedTuple):
    """A record by what compaction asks of it, and where it lies among the opened records of its batch."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    has_value: bool
    start: int
    rest: int
    """Where that begins which depends on no other record: all after the timestamp."""
    end: int


def opened_records(payload: Buffer, batch: BatchHeader) -> bytes:
    """The records of a batch, not compressed any more."""
    return bytes(_opened(payload, batch, MAX_OPENED_BYTES))


def outline(data: bytes, batch: BatchHeader) -> Iterator[Outline]:
    """What `opened_records` gave, record by record, at less cost than `iterate_records`."""
    append_time = batch.max_timestamp if batch.uses_log_append_time else None
    position = 0
    try:
        for _ in range(batch.record_count):
            start = position
            length, position = _read_varint(data, position)
            end = position + length
            if length < 0 or end > len(data):
                raise _corrupt("a record exceeds its batch")
            timestamp_delta, rest = _read_varint(data, position + 1)
            offset_delta, position = _read_varint(data, rest)
            key, position = _read_bytes(data, position)
            timestamp_ms = batch.base_timestamp + timestamp_delta if append_time is None else append_time
            has_value = not data[position] & 1
            yield Outline(batch.base_offset + offset_delta, timestamp_ms, key, has_value, start, rest, end)
            position = end
    except IndexError:
        raise _corrupt("a batch ends within a record") from None


def thinned(
    batch: BatchHeader, data: bytes, records: Sequence[Outline], horizon_ms: int | None = None
) -> bytearray:
    """A batch with only some of its opened records: these, and the batch, keep their offsets and sequences.

    With `horizon_ms` it gets a delete horizon; one that it has stays in any case.
    """
    if not records:
        attributes = batch.attributes & (_LOG_APPEND_TIME | _TRANSACTIONAL | _CONTROL)
        return _assemble(batch._replace(attributes=attributes, base_timestamp=-1, record_count=0), b"")
    header = batch._replace(
        max_timestamp=max(record.timestamp_ms for record in records), record_count=len(records)
    )
    if horizon_ms is None:
        body = bytearray(b"".join([data[record.start : record.end] for record in records]))
    else:
        header = header._replace(attributes=batch.attributes | _DELETE_HORIZON, base_timestamp=horizon_ms)
        body = bytearray()
        for record in records:
            head = bytearray(b"\x00")
            _append_varint(head, record.timestamp_ms - horizon_ms)
            _append_varint(body, len(head) + record.end - record.rest)
            body += head
            body += data[record.rest : record.end]
    return _assemble(header, compress(batch.compression, body))


def _opened(payload: Buffer, batch: BatchHeader, max_bytes: int) -> Buffer:
    start, end = batch.position + HEADER_SIZE, batch.position + batch.size_bytes
    if not start <= end <= len(payload):
        raise _corrupt("a batch is not there as a whole")
    try:
        return decompress(batch.compression, memoryview(payload)[start:end], max_bytes)
    except OutputTooLarge as error:
        raise InvalidBatch(ErrorCode.MESSAGE_TOO_LARGE, f"a batch decompresses to {error}") from None
    except NotDecompressible as error:
        raise _corrupt(f"the records cannot be decompressed: {error}") from None


def _corrupt(message: str) -> InvalidBatch:
    return InvalidBatch(ErrorCode.CORRUPT_MESSAGE, message)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """A signed integer in zigzag form of one to ten bytes."""
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value = byte & 0x7F
    shift = 7
    for index in range(position + 1, position + _MAX_VARINT_BYTES):
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), index + 1
        shift += 7
    raise _corrupt("a variable-length integer has too many bytes")


def _read_bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    """Bytes with their length in front; every negative length is null, as for Kafka."""
    first = data[position]
    if first < 0x80 and not first & 1:  # most are short: no call for these
        length, position = first >> 1, position + 1
    else:
        length, position = _read_varint(data, position)
    if length < 0:
        return None, position
    end = position + length
    if end > len(data):
        raise _corrupt("a field exceeds its batch")
    return data[position:end], end


def _read_headers(data: bytes, position: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, position = _read_varint(data, position)
    if count == 0:
        return (), position
    if not 0 < count <= len(data) - position:
        raise _corrupt(f"a record claims {count} headers")
    headers = []
    for _ in range(count):
        key, position = _read_bytes(data, position)
        if key is None:
            raise _corrupt("a record header has no key")
        value, position = _read_bytes(data, position)
        try:
            headers.append((key.decode(), value))
        except UnicodeDecodeError:
            raise _corrupt("the key of a record header is not UTF-8") from None
    return tuple(headers), position


def _fields(record: NewRecord | Record) -> tuple[int, bytes | None, bytes | None, Headers]:
    if isinstance(record, Record):
        return record.timestamp_ms, record.key, record.value, record.headers
    if len(record) == 3:
        return (*record, ())
    return record


def _append_record(
    body: bytearray,
    offset_delta: int,
    timestamp_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
) -> None:
    record = bytearray(b"\x00")
    _append_varint(record, timestamp_delta)
    _append_varint(record, offset_delta)
    _append_bytes(record, key)
    _append_bytes(record, value)
    _append_varint(record, len(headers))
    for header_key, header_value in headers:
        _append_bytes(record, header_key.encode())
        _append_bytes(record, header_value)
    _append_varint(body, len(record))
    body += record


def _append_varint(out: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _append_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        _append_varint(out, -1)
    else:
        _append_varint(out, len(value))
        out += value


def _assemble(header: BatchHeader, records: bytes) -> bytearray:
    """A batch of a header and records as they are to be stored; size and checksum are filled in."""
    batch = bytearray(HEADER_SIZE + len(records))
    batch[HEADER_SIZE:] = records
    _HEADER.pack_into(
        batch,
        0,
        header.base_offset,
        len(batch) - PREFIX_SIZE,
        header.leader_epoch,
        MAGIC,
        0,
        header.attributes,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.record_count,
    )
    _CRC.pack_into(batch, _CRC_POSITION, crc32c(memoryview(batch)[_CRC_START:]))
    return batch
