"""Produce, versions 3 to 13: requests decoded without copying records, replies encoded.

The payload of a partition is a writable view of the request's frame; nothing in it has been checked
(see `batch.check_batch`). From version 13 on a topic is named by its id and its name is None; before,
it is the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from uuid import UUID

from gapless.wire.errors import MalformedMessage
from gapless.wire.primitives import (
    INT32,
    MAX_ITEMS,
    TRUNCATED,
    ZERO_UUID,
    compact_string,
    read_array_length,
    read_compact_array_length,
    read_compact_string,
    read_string,
    read_uuid,
    read_uvarint,
    skip_tagged_fields,
    string,
    take_items,
    uvarint,
)

MIN_VERSION = 3
MAX_VERSION = 13
FIRST_FLEXIBLE_VERSION = 9
FIRST_VERSION_WITH_TOPIC_IDS = 13


@dataclass(slots=True)
class ProducePartition:
    partition: int
    payload: memoryview | None


@dataclass(slots=True)
class ProduceTopic:
    name: str | None
    topic_id: UUID | None
    partitions: list[ProducePartition] = field(default_factory=list)


@dataclass(slots=True)
class ProduceRequest:
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic] = field(default_factory=list)


@dataclass(slots=True)
class ProducePartitionResult:
    partition: int
    error: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    current_leader: tuple[int, int] | None = None
    """Leader id and epoch, for a client that asked the wrong broker (from version 10 on)."""


@dataclass(slots=True)
class ProduceTopicResult:
    name: str | None
    topic_id: UUID | None
    partitions: list[ProducePartitionResult] = field(default_factory=list)


@dataclass(slots=True)
class ProduceResponse:
    topics: list[ProduceTopicResult] = field(default_factory=list)
    throttle_time_ms: int = 0


def decode_request(frame: memoryview, position: int, version: int) -> tuple[ProduceRequest, int]:
    """The request that begins at `position`, and where it ends."""
    try:
        if version >= FIRST_FLEXIBLE_VERSION:
            return _decode_flexible(frame, position, version)
        return _decode_classic(frame, position)
    except TRUNCATED:
        raise MalformedMessage("a produce request ends too early") from None


_ACKS_AND_TIMEOUT = Struct(">hi")
_PARTITION_AND_SIZE = Struct(">ii")


def _decode_classic(frame: memoryview, position: int) -> tuple[ProduceRequest, int]:
    transactional_id, position = read_string(frame, position)
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(frame, position)
    topic_count, position = read_array_length(frame, position + 6, 6)
    items_left = take_items(MAX_ITEMS, topic_count)
    topics = []
    for _ in range(topic_count):
        name, position = read_string(frame, position)
        if name is None:
            raise MalformedMessage("a produce request has a topic without a name")
        partition_count, position = read_array_length(frame, position, 8)
        items_left = take_items(items_left, partition_count)
        partitions = []
        for _ in range(partition_count):
            partition, size = _PARTITION_AND_SIZE.unpack_from(frame, position)
            payload, position = _payload(frame, position + 8, size)
            partitions.append(ProducePartition(partition, payload))
        topics.append(ProduceTopic(name, None, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics), position


def _decode_flexible(frame: memoryview, position: int, version: int) -> tuple[ProduceRequest, int]:
    transactional_id, position = read_compact_string(frame, position)
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(frame, position)
    topic_count, position = read_compact_array_length(frame, position + 6, 3)
    items_left = take_items(MAX_ITEMS, topic_count)
    by_id = version >= FIRST_VERSION_WITH_TOPIC_IDS
    topics = []
    for _ in range(topic_count):
        name = topic_id = None
        if by_id:
            topic_id, position = read_uuid(frame, position)
        else:
            name, position = read_compact_string(frame, position)
            if name is None:
                raise MalformedMessage("a produce request has a topic without a name")
        partition_count, position = read_compact_array_length(frame, position, 6)
        items_left = take_items(items_left, partition_count)
        partitions = []
        for _ in range(partition_count):
            partition: int = INT32.unpack_from(frame, position)[0]
            size, position = read_uvarint(frame, position + 4)
            payload, position = _payload(frame, position, size - 1)
            position = position + 1 if frame[position] == 0 else skip_tagged_fields(frame, position)
            partitions.append(ProducePartition(partition, payload))
        position = position + 1 if frame[position] == 0 else skip_tagged_fields(frame, position)
        topics.append(ProduceTopic(name, topic_id, partitions))
    position = position + 1 if frame[position] == 0 else skip_tagged_fields(frame, position)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics), position


def _payload(frame: memoryview, start: int, size: int) -> tuple[memoryview | None, int]:
    if size < 0:
        if size == -1:
            return None, start
        raise MalformedMessage(f"the records of a partition have a size of {size} bytes")
    end = start + size
    if end > len(frame):
        raise MalformedMessage(f"the records of a partition have {size} bytes, the request ends before")
    return frame[start:end], end


_RESULT_V3 = Struct(">ihqq")
_RESULT_V5 = Struct(">ihqqq")
_NO_RECORD_ERRORS = b"\x01"  # an empty array: single records are never blamed
_NOTHING_TO_ADD = _NO_RECORD_ERRORS + b"\x00\x00"  # no message, no tagged fields
_LEADER_FIELD = Struct(">BBBiiB")  # one tagged field: tag, size, leader id, leader epoch, no tags inside


def encode_response(response: ProduceResponse, version: int) -> bytes:
    """The body of a reply."""
    flexible = version >= FIRST_FLEXIBLE_VERSION
    parts = [uvarint(len(response.topics) + 1) if flexible else INT32.pack(len(response.topics))]
    for topic in response.topics:
        if version >= FIRST_VERSION_WITH_TOPIC_IDS:
            parts.append((topic.topic_id or ZERO_UUID).bytes)
        else:
            parts.append(compact_string(topic.name or "") if flexible else string(topic.name or ""))
        parts.append(uvarint(len(topic.partitions) + 1) if flexible else INT32.pack(len(topic.partitions)))
        for result in topic.partitions:
            if flexible:
                _encode_flexible_result(parts, result, version)
            else:
                _encode_classic_result(parts, result, version)
        if flexible:
            parts.append(b"\x00")
    parts.append(INT32.pack(response.throttle_time_ms))
    if flexible:
        parts.append(b"\x00")
    return b"".join(parts)


def _encode_flexible_result(parts: list[bytes], result: ProducePartitionResult, version: int) -> None:
    parts.append(
        _RESULT_V5.pack(
            result.partition,
            result.error,
            result.base_offset,
            result.log_append_time_ms,
            result.log_start_offset,
        )
    )
    leader = result.current_leader
    if result.error_message is None and leader is None:
        parts.append(_NOTHING_TO_ADD)
        return
    parts.append(_NO_RECORD_ERRORS + compact_string(result.error_message))
    if leader is None or version < 10:
        parts.append(b"\x00")
    else:
        parts.append(_LEADER_FIELD.pack(1, 0, 9, leader[0], leader[1], 0))


def _encode_classic_result(parts: list[bytes], result: ProducePartitionResult, version: int) -> None:
    fields = (result.partition, result.error, result.base_offset, result.log_append_time_ms)
    if version < 5:
        parts.append(_RESULT_V3.pack(*fields))
        return
    parts.append(_RESULT_V5.pack(*fields, result.log_start_offset))
    if version >= 8:
        parts.append(b"\x00\x00\x00\x00")
        parts.append(string(result.error_message))
