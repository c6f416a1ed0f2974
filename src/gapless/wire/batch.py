"""Record batches (format v2) as a broker handles them: by their 61-byte header, never record by record.

`parse_header` reads a header wherever a batch begins and checks nothing but that 61 bytes are there.
`check_batch` is what a broker demands of a batch that a client sent, with Kafka's error for each fault.
`stamp` and `stamp_append_time` write the few fields that belong to the broker, in place.

Positions are always relative to the buffer that was given, so one request frame, one file block or one
batch can be worked on without a copy.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from gapless.wire.compression import Compression, NotDecompressible, OutputTooLarge, decompress
from gapless.wire.errors import ErrorCode
from gapless.wire.walk import fault_in_records

Buffer = bytes | bytearray | memoryview

HEADER_SIZE = 61
"""Bytes of a batch before its first record."""

PREFIX_SIZE = 12
"""Base offset and length: the part that the length field itself does not count."""

MAGIC = 2
"""The one format of batches in use since Kafka 0.11."""

MAX_OPENED_BYTES = 16 * 1024 * 1024
"""To how many bytes compressed records are opened when a client's batch is checked."""

MAX_OPENED_PER_REQUEST_BYTES = 64 * 1024 * 1024
"""The same for all batches of one request: some hundred bytes can be made to decompress to 16 MB."""

NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
MAX_SEQUENCE = 2**31 - 1

_MAGIC_POSITION = 16
_CRC_POSITION = 17
_CRC_START = 21  # the checksum covers everything from the attributes on
_ATTRIBUTES_POSITION = 21
_MAX_TIMESTAMP_POSITION = 35

_COMPRESSION_MASK = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20

_HEADER = Struct(">qiixIhiqqqhii")  # all fields but the magic, in the order of `BatchHeader`
_PREFIX_AND_EPOCH = Struct(">qii")
_CRC = Struct(">I")
_ATTRIBUTES = Struct(">h")
_TIMESTAMP = Struct(">q")


class InvalidBatch(Exception):
    """Batches that a broker must refuse; `code` is the error that Kafka gives for the fault."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Opening:
    """How many bytes may still be decompressed for one request."""

    __slots__ = ("left_bytes",)

    def __init__(self, left_bytes: int = MAX_OPENED_PER_REQUEST_BYTES) -> None:
        self.left_bytes = left_bytes


class BatchHeader(NamedTuple):
    """What a batch says of itself, and where it begins in the buffer it was parsed from."""

    base_offset: int
    size_bytes: int
    leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    position: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; after 2^31-1 Kafka goes on with 0."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE

    @property
    def compression(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd; 5 to 7 mean nothing."""
        return self.attributes & _COMPRESSION_MASK

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def uses_log_append_time(self) -> bool:
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID


def parse_header(buffer: Buffer, position: int) -> BatchHeader:
    """Read the header that begins at `position`; whatever it claims is not judged here."""
    if position < 0 or position + HEADER_SIZE > len(buffer):
        raise InvalidBatch(
            ErrorCode.CORRUPT_MESSAGE,
            f"a batch header needs {HEADER_SIZE} bytes, {max(0, len(buffer) - position)} are there",
        )
    base_offset, length, *others = _HEADER.unpack_from(buffer, position)
    # A third of the time of the constructor.
    return tuple.__new__(BatchHeader, (base_offset, length + PREFIX_SIZE, *others, position))


def is_intact(buffer: Buffer, batch: BatchHeader) -> bool:
    """Whether the batch lies whole in the buffer, has the one known magic, and its checksum is right."""
    start, end = batch.position, batch.position + batch.size_bytes
    if batch.size_bytes < HEADER_SIZE or end > len(buffer) or buffer[start + _MAGIC_POSITION] != MAGIC:
        return False
    return crc32c(memoryview(buffer)[start + _CRC_START : end]) == batch.crc


def stamp(
    payload: memoryview | bytearray, batch: BatchHeader, base_offset: int, leader_epoch: int
) -> BatchHeader:
    """Give a batch its place in the log, in place: both fields lie outside its checksum."""
    _PREFIX_AND_EPOCH.pack_into(
        payload, batch.position, base_offset, batch.size_bytes - PREFIX_SIZE, leader_epoch
    )
    return tuple.__new__(BatchHeader, (base_offset, batch.size_bytes, leader_epoch, *batch[3:]))


def stamp_append_time(payload: memoryview | bytearray, batch: BatchHeader, timestamp_ms: int) -> BatchHeader:
    """Put the broker's time over the client's: sets the attribute, the maximum, and a new checksum."""
    start, end = batch.position, batch.position + batch.size_bytes
    attributes = batch.attributes | _LOG_APPEND_TIME
    _ATTRIBUTES.pack_into(payload, start + _ATTRIBUTES_POSITION, attributes)
    _TIMESTAMP.pack_into(payload, start + _MAX_TIMESTAMP_POSITION, timestamp_ms)
    crc = crc32c(memoryview(payload)[start + _CRC_START : end])
    _CRC.pack_into(payload, start + _CRC_POSITION, crc)
    return batch._replace(crc=crc, attributes=attributes, max_timestamp=timestamp_ms)


def check_batch(
    payload: memoryview, produce_version: int = 13, opening: Opening | None = None
) -> BatchHeader:
    """The header of what a client sent for one partition, or `InvalidBatch` for the first fault in it.

    Like Kafka, this accepts exactly one batch. Compressed records are opened to be counted, up to
    `MAX_OPENED_BYTES` and to what is left for the request; a batch that would become larger is taken at its
    word.
    """
    if len(payload) < HEADER_SIZE:
        raise _invalid_record(f"{len(payload)} bytes are not a batch")
    batch = parse_header(payload, 0)
    _check_frame(payload, batch)
    _check_claims(batch, produce_version)
    _check_records(payload, batch, opening)
    return batch


def _check_frame(payload: memoryview, batch: BatchHeader) -> None:
    """The payload is one whole batch of format 2, unharmed."""
    size_bytes = batch.size_bytes
    if size_bytes < HEADER_SIZE:
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"a batch claims a size of {size_bytes} bytes")
    if size_bytes > len(payload):
        raise _invalid_record(f"a batch claims {size_bytes} bytes, {len(payload)} were sent")
    magic = payload[_MAGIC_POSITION]
    if magic != MAGIC:
        # Formats 0 and 1 are known, but from before Kafka 0.11; produce requests may not carry them any more.
        code = ErrorCode.INVALID_RECORD if magic < MAGIC else ErrorCode.CORRUPT_MESSAGE
        raise InvalidBatch(code, f"a batch has format {magic}, only format {MAGIC} is accepted")
    if size_bytes < len(payload):
        raise _invalid_record(f"{len(payload) - size_bytes} bytes follow the one batch that is allowed")
    if crc32c(payload[_CRC_START:]) != batch.crc:
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, "a batch does not match its checksum")


def _check_claims(batch: BatchHeader, produce_version: int) -> None:
    """What the header says makes sense, and is for a client to say."""
    if batch.base_offset != 0:
        raise _invalid_record(f"a client sent the base offset {batch.base_offset}, only 0 is allowed")
    if batch.record_count <= 0 or batch.last_offset_delta != batch.record_count - 1:
        raise _invalid_record(
            f"a batch of {batch.record_count} records claims a last offset delta of {batch.last_offset_delta}"
        )
    attributes = batch.attributes
    if attributes & _CONTROL:
        raise _invalid_record("a client sent a control batch")
    if batch.producer_id > NO_PRODUCER_ID and (batch.base_sequence < 0 or batch.producer_epoch < 0):
        raise _invalid_record(
            f"producer {batch.producer_id} sent the epoch {batch.producer_epoch} "
            f"and the sequence {batch.base_sequence}"
        )
    if attributes & _LOG_APPEND_TIME:
        raise InvalidBatch(ErrorCode.INVALID_TIMESTAMP, "a client set the timestamp type to LogAppendTime")
    compression = attributes & _COMPRESSION_MASK
    if compression > Compression.ZSTD or (compression == Compression.ZSTD and produce_version < 7):
        raise InvalidBatch(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"compression {compression} is not allowed in version {produce_version} of a produce request",
        )


def _check_records(payload: memoryview, batch: BatchHeader, opening: Opening | None) -> None:
    """There are as many records as the header says, and nothing else."""
    records: Buffer = payload[HEADER_SIZE:]
    compression = batch.attributes & _COMPRESSION_MASK
    if compression:
        opening = opening or Opening()
        limit_bytes = min(MAX_OPENED_BYTES, opening.left_bytes)
        opening.left_bytes -= limit_bytes
        try:
            records = decompress(compression, records, limit_bytes)
            opening.left_bytes += limit_bytes - len(records)
        except OutputTooLarge:
            return
        except NotDecompressible as error:
            raise _invalid_record(f"the records cannot be decompressed: {error}") from None
    fault = fault_in_records(records, batch.record_count)
    if fault is not None:
        raise _invalid_record(fault)


def _invalid_record(message: str) -> InvalidBatch:
    return InvalidBatch(ErrorCode.INVALID_RECORD, message)
