"""Fetch from the fetcher's side: requests encoded, replies decoded (a replica follows its leader with these).

The inverse of `fetch`, for the same versions and the same classes. Records of a decoded reply are views of
its frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from uuid import UUID

from gapless.wire.errors import MalformedMessage
from gapless.wire.fetch import (
    FIRST_FLEXIBLE_VERSION,
    FIRST_VERSION_WITH_TOPIC_IDS,
    HEAD_WITH_REPLICA,
    HEAD_WITHOUT_REPLICA,
    NO_HIGH_WATERMARK,
    PARTITION_V4,
    PARTITION_V5,
    PARTITION_V9,
    PARTITION_V12,
    RESULT_V4,
    RESULT_V5,
    SESSION,
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchTopicResult,
)
from gapless.wire.primitives import (
    INT16,
    INT32,
    TRUNCATED,
    TWO_INT64,
    ZERO_UUID,
    compact_string,
    read_array_length,
    read_compact_array_length,
    read_compact_string,
    read_string,
    read_tagged_field,
    read_uuid,
    read_uvarint,
    skip_tagged_fields,
    string,
    uvarint,
)


@dataclass(slots=True)
class FetchedRecords:
    """Whole batches (and perhaps a cut one at the end) as they came."""

    payload: memoryview

    @property
    def size(self) -> int:
        return len(self.payload)


def encode_request(request: FetchRequest, version: int) -> bytes:
    """The body of a request."""
    flexible = version >= FIRST_FLEXIBLE_VERSION
    limits = (request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level)
    if version >= 15:
        parts = [HEAD_WITHOUT_REPLICA.pack(*limits)]
    else:
        parts = [HEAD_WITH_REPLICA.pack(request.replica_id, *limits)]
    if version >= 7:
        parts.append(SESSION.pack(request.session_id, request.session_epoch))
    parts.append(_array_length(len(request.topics), flexible))
    for topic in request.topics:
        parts.append(_topic_name(topic.name, topic.topic_id, version))
        parts.append(_array_length(len(topic.partitions), flexible))
        parts.extend(_encode_partition(partition, version) for partition in topic.partitions)
        parts.append(b"\x00" if flexible else b"")
    if version >= 7:
        parts.append(_array_length(len(request.forgotten), flexible))
        for forgotten in request.forgotten:
            parts.append(_topic_name(forgotten.name, forgotten.topic_id, version))
            parts.append(_array_length(len(forgotten.partitions), flexible))
            parts.append(Struct(f">{len(forgotten.partitions)}i").pack(*forgotten.partitions))
            parts.append(b"\x00" if flexible else b"")
    if version >= 11:
        parts.append(compact_string(request.rack_id) if flexible else string(request.rack_id))
    if flexible:
        parts.append(_request_tags(request, version))
    return b"".join(parts)


def _array_length(length: int, flexible: bool) -> bytes:
    return uvarint(length + 1) if flexible else INT32.pack(length)


def _topic_name(name: str | None, topic_id: UUID | None, version: int) -> bytes:
    if version >= FIRST_VERSION_WITH_TOPIC_IDS:
        return (topic_id or ZERO_UUID).bytes
    return compact_string(name or "") if version >= FIRST_FLEXIBLE_VERSION else string(name or "")


def _encode_partition(asked: FetchPartition, version: int) -> bytes:
    if version < 5:
        return PARTITION_V4.pack(asked.partition, asked.fetch_offset, asked.max_bytes)
    if version < 9:
        return PARTITION_V5.pack(asked.partition, asked.fetch_offset, asked.log_start_offset, asked.max_bytes)
    if version < FIRST_FLEXIBLE_VERSION:
        return PARTITION_V9.pack(
            asked.partition,
            asked.current_leader_epoch,
            asked.fetch_offset,
            asked.log_start_offset,
            asked.max_bytes,
        )
    fixed = PARTITION_V12.pack(
        asked.partition,
        asked.current_leader_epoch,
        asked.fetch_offset,
        asked.last_fetched_epoch,
        asked.log_start_offset,
        asked.max_bytes,
    )
    if version < 18 or asked.high_watermark == NO_HIGH_WATERMARK:
        return fixed + b"\x00"
    return fixed + Struct(">BBBq").pack(1, 1, 8, asked.high_watermark)


def _request_tags(request: FetchRequest, version: int) -> bytes:
    fields = []
    if request.cluster_id is not None:
        content = compact_string(request.cluster_id)
        fields.append(b"\x00" + uvarint(len(content)) + content)
    if version >= 15 and (request.replica_id, request.replica_epoch) != (-1, -1):
        fields.append(Struct(">BBiqB").pack(1, 13, request.replica_id, request.replica_epoch, 0))
    return uvarint(len(fields)) + b"".join(fields)


def decode_response(frame: memoryview, position: int, version: int) -> tuple[FetchResponse, int]:
    """The reply that begins at `position`, and where it ends."""
    try:
        return _decode_response(frame, position, version)
    except TRUNCATED:
        raise MalformedMessage("a fetch response ends too early") from None


def _decode_response(frame: memoryview, position: int, version: int) -> tuple[FetchResponse, int]:
    flexible = version >= FIRST_FLEXIBLE_VERSION
    response = FetchResponse(throttle_time_ms=INT32.unpack_from(frame, position)[0])
    position += 4
    if version >= 7:
        response.error = INT16.unpack_from(frame, position)[0]
        response.session_id = INT32.unpack_from(frame, position + 2)[0]
        position += 6
    read_length = read_compact_array_length if flexible else read_array_length
    topic_count, position = read_length(frame, position, 3)
    for _ in range(topic_count):
        topic = FetchTopicResult(None, None)
        if version >= FIRST_VERSION_WITH_TOPIC_IDS:
            topic.topic_id, position = read_uuid(frame, position)
        else:
            topic.name, position = (read_compact_string if flexible else read_string)(frame, position)
        partition_count, position = read_length(frame, position, RESULT_V4.size)
        for _ in range(partition_count):
            result, position = _decode_result(frame, position, version)
            topic.partitions.append(result)
        if flexible:
            position = skip_tagged_fields(frame, position)
        response.topics.append(topic)
    if flexible:
        position = skip_tagged_fields(frame, position)
    return response, position


def _decode_result(frame: memoryview, position: int, version: int) -> tuple[FetchPartitionResult, int]:
    flexible = version >= FIRST_FLEXIBLE_VERSION
    layout = RESULT_V5 if version >= 5 else RESULT_V4
    result = FetchPartitionResult(*layout.unpack_from(frame, position))
    result.aborted, position = _decode_aborted(frame, position + layout.size, flexible)
    if version >= 11:
        result.preferred_read_replica = INT32.unpack_from(frame, position)[0]
        position += 4
    if flexible:
        size, position = read_uvarint(frame, position)
        size -= 1
    else:
        size = INT32.unpack_from(frame, position)[0]
        position += 4
    end = position + max(size, 0)
    if size < -1 or end > len(frame):
        raise MalformedMessage(f"the records of a partition have {size} bytes, the response ends before")
    result.records = FetchedRecords(frame[position:end]) if size > 0 else None
    return result, _decode_result_tags(frame, end, result) if flexible else end


def _decode_aborted(
    frame: memoryview, position: int, flexible: bool
) -> tuple[list[tuple[int, int]] | None, int]:
    """Aborted transactions; null where the fetcher did not ask for them."""
    if flexible:
        if frame[position] == 0:
            return None, position + 1
        count, position = read_compact_array_length(frame, position, TWO_INT64.size + 1)
    else:
        if INT32.unpack_from(frame, position)[0] == -1:
            return None, position + 4
        count, position = read_array_length(frame, position, TWO_INT64.size)
    aborted = []
    for _ in range(count):
        producer_id, first_offset = TWO_INT64.unpack_from(frame, position)
        position += TWO_INT64.size
        aborted.append((producer_id, first_offset))
        if flexible:
            position = skip_tagged_fields(frame, position)
    return aborted, position


_DIVERGING = Struct(">iq")
_LEADER = Struct(">ii")


def _decode_result_tags(frame: memoryview, position: int, result: FetchPartitionResult) -> int:
    count, position = read_uvarint(frame, position)
    for _ in range(count):
        tag, start, position = read_tagged_field(frame, position)
        if tag == 0:
            result.diverging_epoch = _DIVERGING.unpack_from(frame[:position], start)
        elif tag == 1:
            result.current_leader = _LEADER.unpack_from(frame[:position], start)
    return position
