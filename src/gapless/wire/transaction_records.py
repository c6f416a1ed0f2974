"""The records of `__transaction_state`, and the markers that end a transaction, as Kafka has them.

A key is a version (0) and a transactional id. A value is written in version 1, the first with tagged fields,
and read in versions 0 and 1. A marker is a control record: its key tells abort (0) or commit (1), its value
carries the epoch of the coordinator that wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from gapless.wire.errors import MalformedMessage
from gapless.wire.primitives import (
    INT16,
    INT32,
    INT64,
    TRUNCATED,
    compact_string,
    read_array_length,
    read_compact_array_length,
    read_compact_string,
    read_string,
    read_tagged_field,
    read_uvarint,
    string,
    uvarint,
)
from gapless.wire.records import Record, build_batch

MAX_ID_BYTES = 2**15 - 1
"""The longest transactional id that a key can hold."""

_KEY_VERSION = 0
_VALUE_VERSION = 1
_START = Struct(">hqhib")  # version, producer id and epoch, timeout, state
_TIMES = Struct(">qq")
_PREVIOUS_ID_TAG, _NEXT_ID_TAG, _CLIENT_VERSION_TAG = 0, 1, 2
_EMPTY = 0  # the one state whose partitions are null
_NULL = b"\x00"
_MARKER_KEY = Struct(">hh")
_MARKER_VALUE = Struct(">hi")

Place = tuple[str, int]
"""Topic and partition."""


class TransactionValue(NamedTuple):
    """All that is kept of a transactional id."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: int
    partitions: tuple[Place, ...]
    """In no particular order; a topic's partitions are written together."""
    last_update_ms: int
    start_ms: int
    previous_producer_id: int = -1
    next_producer_id: int = -1
    client_version: int = 0


class EndMarker(NamedTuple):
    """What a marker says."""

    committed: bool
    coordinator_epoch: int


# ---------------------------------------------------------------------------------------------- writing


def encode_key(transactional_id: str) -> bytes:
    return INT16.pack(_KEY_VERSION) + string(transactional_id)


def encode_value(value: TransactionValue) -> bytes:
    parts = [
        _START.pack(_VALUE_VERSION, value.producer_id, value.producer_epoch, value.timeout_ms, value.state)
    ]
    parts += _encode_partitions(value)
    parts += (_TIMES.pack(value.last_update_ms, value.start_ms), _encode_tags(value))
    return b"".join(parts)


def _encode_partitions(value: TransactionValue) -> list[bytes]:
    if value.state == _EMPTY:
        return [_NULL]
    by_topic: dict[str, list[int]] = {}
    for topic, partition in value.partitions:
        by_topic.setdefault(topic, []).append(partition)
    parts = [uvarint(len(by_topic) + 1)]
    for topic, partitions in by_topic.items():
        parts += (compact_string(topic), uvarint(len(partitions) + 1))
        parts += map(INT32.pack, partitions)
        parts.append(b"\x00")
    return parts


def _encode_tags(value: TransactionValue) -> bytes:
    fields = []
    if value.previous_producer_id != -1:
        fields.append((_PREVIOUS_ID_TAG, INT64.pack(value.previous_producer_id)))
    if value.next_producer_id != -1:
        fields.append((_NEXT_ID_TAG, INT64.pack(value.next_producer_id)))
    if value.client_version != 0:
        fields.append((_CLIENT_VERSION_TAG, INT16.pack(value.client_version)))
    return uvarint(len(fields)) + b"".join(uvarint(tag) + uvarint(len(data)) + data for tag, data in fields)


def build_marker(producer: tuple[int, int], marker: EndMarker, timestamp_ms: int) -> bytearray:
    """The control batch that ends a producer's transaction in a partition."""
    key = _MARKER_KEY.pack(0, marker.committed)
    value = _MARKER_VALUE.pack(0, marker.coordinator_epoch)
    return build_batch(
        [(timestamp_ms, key, value)],
        producer_id=producer[0],
        producer_epoch=producer[1],
        transactional=True,
        control=True,
    )


# ---------------------------------------------------------------------------------------------- reading


def decode_key(data: bytes) -> str | None:
    """The transactional id; None if it is a record of a kind that is not known here."""
    try:
        (version,) = INT16.unpack_from(data)
        if version != _KEY_VERSION:
            return None
        transactional_id, _ = read_string(data, 2)
    except TRUNCATED:
        raise MalformedMessage("the key of a transaction ends too early") from None
    if transactional_id is None:
        raise MalformedMessage("the key of a transaction has no transactional id")
    return transactional_id


def decode_value(data: bytes) -> TransactionValue:
    """The state of a transactional id, or `MalformedMessage`."""
    try:
        version, producer_id, producer_epoch, timeout_ms, state = _START.unpack_from(data)
        if version not in (0, 1):
            raise MalformedMessage(f"a transaction is recorded in version {version}, which is not known")
        partitions, position = _decode_partitions(data, _START.size, flexible=version == 1)
        last_update_ms, start_ms = _TIMES.unpack_from(data, position)
        tags = _decode_tags(data, position + _TIMES.size) if version == 1 else {}
    except TRUNCATED:
        raise MalformedMessage("the record of a transaction ends too early") from None
    return TransactionValue(
        producer_id,
        producer_epoch,
        timeout_ms,
        state,
        tuple(partitions),
        last_update_ms,
        start_ms,
        tags.get(_PREVIOUS_ID_TAG, -1),
        tags.get(_NEXT_ID_TAG, -1),
        tags.get(_CLIENT_VERSION_TAG, 0),
    )


def _decode_partitions(data: bytes, position: int, *, flexible: bool) -> tuple[list[Place], int]:
    read_length = read_compact_array_length if flexible else read_array_length
    read_name = read_compact_string if flexible else read_string
    places: list[Place] = []
    null = _NULL if flexible else b"\xff\xff\xff\xff"
    if data[position : position + len(null)] == null:
        return places, position + len(null)
    topics, position = read_length(data, position, 3)
    for _ in range(topics):
        topic, position = read_name(data, position)
        if topic is None:
            raise MalformedMessage("the record of a transaction has a topic without a name")
        count, position = read_length(data, position, INT32.size)
        for _ in range(count):
            places.append((topic, INT32.unpack_from(data, position)[0]))
            position += INT32.size
        if flexible:
            position = _skip_tags(data, position)
    return places, position


def _skip_tags(data: bytes, position: int) -> int:
    count, position = read_uvarint(data, position)
    for _ in range(count):
        _, _, position = read_tagged_field(data, position)
    return position


def _decode_tags(data: bytes, position: int) -> dict[int, int]:
    layouts = {_PREVIOUS_ID_TAG: INT64, _NEXT_ID_TAG: INT64, _CLIENT_VERSION_TAG: INT16}
    values: dict[int, int] = {}
    count, position = read_uvarint(data, position)
    for _ in range(count):
        tag, start, position = read_tagged_field(data, position)
        if tag in layouts:
            (values[tag],) = layouts[tag].unpack_from(data, start)
    return values


def decode_marker(records: Iterable[Record]) -> EndMarker | None:
    """What a control batch says of a transaction.

    None for a control batch of another kind, or one that compaction has emptied.
    """
    record = next(iter(records), None)
    if record is None:
        return None
    try:
        _, kind = _MARKER_KEY.unpack_from(record.key or b"")
        if kind not in (0, 1):
            return None
        _, coordinator_epoch = _MARKER_VALUE.unpack_from(record.value or b"")
    except TRUNCATED:
        raise MalformedMessage("a transaction's marker ends too early") from None
    return EndMarker(kind == 1, coordinator_epoch)
