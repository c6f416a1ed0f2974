"""Fetch, versions 4 to 18: requests decoded, replies encoded as parts around records that are never copied.

What a partition returns is a `RecordsRef`: anything that knows its size. The encoder puts it between the
bytes that describe it and leaves it to the shell to turn it into bytes when it writes. From version 13 on a
topic is named by its id and its name is None; before, it is the other way round.

A fetcher's side, the same messages in the other direction, is in `fetch_peer`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import Protocol
from uuid import UUID

from gapless.wire.errors import MalformedMessage
from gapless.wire.primitives import (
    INT32,
    INT64,
    MAX_ITEMS,
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
    take_items,
    uvarint,
)

MIN_VERSION = 4
MAX_VERSION = 18
FIRST_FLEXIBLE_VERSION = 12
FIRST_VERSION_WITH_TOPIC_IDS = 13

NO_HIGH_WATERMARK = 2**63 - 1
"""What a fetcher that does not tell its high watermark is taken to have sent."""


class RecordsRef(Protocol):
    """Whole batches that lie elsewhere."""

    @property
    def size(self) -> int: ...


@dataclass(slots=True)
class FetchPartition:
    partition: int
    current_leader_epoch: int = -1
    fetch_offset: int = 0
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    max_bytes: int = 0
    high_watermark: int = NO_HIGH_WATERMARK


@dataclass(slots=True)
class FetchTopic:
    name: str | None
    topic_id: UUID | None
    partitions: list[FetchPartition] = field(default_factory=list)


@dataclass(slots=True)
class ForgottenTopic:
    name: str | None
    topic_id: UUID | None
    partitions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class FetchRequest:
    replica_id: int = -1
    replica_epoch: int = -1
    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = 0x7FFFFFFF
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = -1
    topics: list[FetchTopic] = field(default_factory=list)
    forgotten: list[ForgottenTopic] = field(default_factory=list)
    rack_id: str = ""
    cluster_id: str | None = None


@dataclass(slots=True)
class FetchPartitionResult:
    partition: int
    error: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: list[tuple[int, int]] | None = None
    """Producer id and first offset of each aborted transaction; None if the fetcher did not ask."""
    preferred_read_replica: int = -1
    records: RecordsRef | None = None
    diverging_epoch: tuple[int, int] | None = None
    """The largest epoch that the fetcher shares, and its end offset."""
    current_leader: tuple[int, int] | None = None
    """Leader id and epoch, for a fetcher that asked the wrong broker."""


@dataclass(slots=True)
class FetchTopicResult:
    name: str | None
    topic_id: UUID | None
    partitions: list[FetchPartitionResult] = field(default_factory=list)


@dataclass(slots=True)
class FetchResponse:
    error: int = 0
    session_id: int = 0
    topics: list[FetchTopicResult] = field(default_factory=list)
    throttle_time_ms: int = 0


def decode_request(frame: memoryview, position: int, version: int) -> tuple[FetchRequest, int]:
    """The request that begins at `position`, and where it ends."""
    try:
        if version >= FIRST_FLEXIBLE_VERSION:
            return _decode_flexible(frame, position, version)
        return _decode_classic(frame, position, version)
    except TRUNCATED:
        raise MalformedMessage("a fetch request ends too early") from None


HEAD_WITH_REPLICA = Struct(">iiiib")  # replica id, max wait, min bytes, max bytes, isolation level
HEAD_WITHOUT_REPLICA = Struct(">iiib")
SESSION = Struct(">ii")
PARTITION_V4 = Struct(">iqi")  # partition, offset, max bytes
PARTITION_V5 = Struct(">iqqi")  # partition, offset, log start, max bytes
PARTITION_V9 = Struct(">iiqqi")  # partition, leader epoch, offset, log start, max bytes
PARTITION_V12 = Struct(">iiqiqi")  # partition, leader epoch, offset, last fetched epoch, log start, max bytes


def _decode_classic(frame: memoryview, position: int, version: int) -> tuple[FetchRequest, int]:
    head = HEAD_WITH_REPLICA.unpack_from(frame, position)
    request = FetchRequest(head[0], -1, *head[1:])
    position += HEAD_WITH_REPLICA.size
    if version >= 7:
        request.session_id, request.session_epoch = SESSION.unpack_from(frame, position)
        position += SESSION.size
    topic_count, position = read_array_length(frame, position, 6)
    items_left = take_items(MAX_ITEMS, topic_count)
    for _ in range(topic_count):
        name, position = read_string(frame, position)
        if name is None:
            raise MalformedMessage("a fetch request has a topic without a name")
        partition_count, position = read_array_length(frame, position, PARTITION_V4.size)
        items_left = take_items(items_left, partition_count)
        partitions = []
        for _ in range(partition_count):
            partition, position = _classic_partition(frame, position, version)
            partitions.append(partition)
        request.topics.append(FetchTopic(name, None, partitions))
    if version >= 7:
        forgotten_count, position = read_array_length(frame, position, 6)
        items_left = take_items(items_left, forgotten_count)
        for _ in range(forgotten_count):
            name, position = read_string(frame, position)
            count, position = read_array_length(frame, position, 4)
            items_left = take_items(items_left, count)
            forgotten = list(Struct(f">{count}i").unpack_from(frame, position))
            position += 4 * count
            request.forgotten.append(ForgottenTopic(name, None, forgotten))
    if version >= 11:
        rack_id, position = read_string(frame, position)
        request.rack_id = rack_id or ""
    return request, position


def _classic_partition(frame: memoryview, position: int, version: int) -> tuple[FetchPartition, int]:
    if version >= 9:
        partition, epoch, offset, start, max_bytes = PARTITION_V9.unpack_from(frame, position)
        return FetchPartition(partition, epoch, offset, -1, start, max_bytes), position + PARTITION_V9.size
    if version >= 5:
        partition, offset, start, max_bytes = PARTITION_V5.unpack_from(frame, position)
        return FetchPartition(partition, -1, offset, -1, start, max_bytes), position + PARTITION_V5.size
    partition, offset, max_bytes = PARTITION_V4.unpack_from(frame, position)
    return FetchPartition(partition, -1, offset, -1, -1, max_bytes), position + PARTITION_V4.size


def _decode_flexible(frame: memoryview, position: int, version: int) -> tuple[FetchRequest, int]:
    if version >= 15:
        request = FetchRequest(-1, -1, *HEAD_WITHOUT_REPLICA.unpack_from(frame, position))
        position += HEAD_WITHOUT_REPLICA.size
    else:
        head = HEAD_WITH_REPLICA.unpack_from(frame, position)
        request = FetchRequest(head[0], -1, *head[1:])
        position += HEAD_WITH_REPLICA.size
    request.session_id, request.session_epoch = SESSION.unpack_from(frame, position)
    topic_count, position = read_compact_array_length(frame, position + SESSION.size, 3)
    items_left = take_items(MAX_ITEMS, topic_count)
    for _ in range(topic_count):
        topic, position = _flexible_topic(frame, position, version, items_left)
        items_left -= len(topic.partitions)
        request.topics.append(topic)
    forgotten_count, position = read_compact_array_length(frame, position, 3)
    items_left = take_items(items_left, forgotten_count)
    for _ in range(forgotten_count):
        name, topic_id, position = _topic_name(frame, position, version)
        count, position = read_compact_array_length(frame, position, 4)
        items_left = take_items(items_left, count)
        forgotten = list(Struct(f">{count}i").unpack_from(frame, position))
        position = skip_tagged_fields(frame, position + 4 * count)
        request.forgotten.append(ForgottenTopic(name, topic_id, forgotten))
    rack_id, position = read_compact_string(frame, position)
    request.rack_id = rack_id or ""
    return request, _request_tags(frame, position, version, request)


def _topic_name(frame: memoryview, position: int, version: int) -> tuple[str | None, UUID | None, int]:
    if version >= FIRST_VERSION_WITH_TOPIC_IDS:
        topic_id, position = read_uuid(frame, position)
        return None, topic_id, position
    name, position = read_compact_string(frame, position)
    if name is None:
        raise MalformedMessage("a fetch request has a topic without a name")
    return name, None, position


def _flexible_topic(
    frame: memoryview, position: int, version: int, items_left: int
) -> tuple[FetchTopic, int]:
    name, topic_id, position = _topic_name(frame, position, version)
    partition_count, position = read_compact_array_length(frame, position, PARTITION_V12.size + 1)
    take_items(items_left, partition_count)
    partitions = []
    for _ in range(partition_count):
        partition = FetchPartition(*PARTITION_V12.unpack_from(frame, position))
        position += PARTITION_V12.size
        if frame[position] == 0:
            position += 1
        else:
            position = _partition_tags(frame, position, version, partition)
        partitions.append(partition)
    position = position + 1 if frame[position] == 0 else skip_tagged_fields(frame, position)
    return FetchTopic(name, topic_id, partitions), position


def _partition_tags(frame: memoryview, position: int, version: int, partition: FetchPartition) -> int:
    """Tag 0 is the follower's directory, which means nothing here; tag 1 is its high watermark."""
    count, position = read_uvarint(frame, position)
    for _ in range(count):
        tag, start, position = read_tagged_field(frame, position)
        if tag == 1 and version >= 18:
            partition.high_watermark = INT64.unpack(frame[start:position])[0]
    return position


_REPLICA_STATE = Struct(">iq")


def _request_tags(frame: memoryview, position: int, version: int, request: FetchRequest) -> int:
    """Tag 0 is the cluster's id, tag 1 the follower with its epoch."""
    count, position = read_uvarint(frame, position)
    for _ in range(count):
        tag, start, position = read_tagged_field(frame, position)
        if tag == 0:
            request.cluster_id, end = read_compact_string(frame[:position], start)
        elif tag == 1 and version >= 15:
            request.replica_id, request.replica_epoch = _REPLICA_STATE.unpack_from(frame, start)
            end = skip_tagged_fields(frame[:position], start + _REPLICA_STATE.size)
        else:
            continue
        if end != position:
            raise MalformedMessage(f"tagged field {tag} of a fetch request has another size than it says")
    return position


Part = bytes | RecordsRef

RESULT_V4 = Struct(">ihqq")  # partition, error, high watermark, last stable offset
RESULT_V5 = Struct(">ihqqq")  # the same and log start
_DIVERGING_FIELD = Struct(">BBiqB")  # tag, size, epoch, end offset, no tags inside
_LEADER_FIELD = Struct(">BBiiB")  # tag, size, leader id, leader epoch, no tags inside
_THROTTLE_ERROR_SESSION = Struct(">ihi")


def encode_response(response: FetchResponse, version: int) -> list[Part]:
    """The body of a reply; the first part is bytes, and every non-empty `RecordsRef` is a part of its own."""
    flexible = version >= FIRST_FLEXIBLE_VERSION
    parts: list[Part] = []
    if version >= 7:
        head = bytearray(
            _THROTTLE_ERROR_SESSION.pack(response.throttle_time_ms, response.error, response.session_id)
        )
    else:
        head = bytearray(INT32.pack(response.throttle_time_ms))
    head += uvarint(len(response.topics) + 1) if flexible else INT32.pack(len(response.topics))
    for topic in response.topics:
        if version >= FIRST_VERSION_WITH_TOPIC_IDS:
            head += (topic.topic_id or ZERO_UUID).bytes
        else:
            head += compact_string(topic.name or "") if flexible else string(topic.name or "")
        head += uvarint(len(topic.partitions) + 1) if flexible else INT32.pack(len(topic.partitions))
        for result in topic.partitions:
            if flexible:
                _encode_flexible_head(head, result)
            else:
                _encode_classic_head(head, result, version)
            records = result.records
            if records is not None and records.size > 0:
                parts.append(bytes(head))
                parts.append(records)
                head = bytearray()
            if flexible:
                head += _result_tags(result)
        if flexible:
            head.append(0)
    if flexible:
        head.append(0)
    if head:
        parts.append(bytes(head))
    return parts


def _encode_flexible_head(head: bytearray, result: FetchPartitionResult) -> None:
    head += RESULT_V5.pack(
        result.partition,
        result.error,
        result.high_watermark,
        result.last_stable_offset,
        result.log_start_offset,
    )
    if result.aborted is None:
        head.append(0)
    else:
        head += uvarint(len(result.aborted) + 1)
        for producer_id, first_offset in result.aborted:
            head += TWO_INT64.pack(producer_id, first_offset)
            head.append(0)
    head += INT32.pack(result.preferred_read_replica)
    # No records are sent as empty records, not as null: some clients know only the former.
    head += uvarint((result.records.size if result.records is not None else 0) + 1)


def _encode_classic_head(head: bytearray, result: FetchPartitionResult, version: int) -> None:
    fields = (result.partition, result.error, result.high_watermark, result.last_stable_offset)
    head += RESULT_V5.pack(*fields, result.log_start_offset) if version >= 5 else RESULT_V4.pack(*fields)
    if result.aborted is None:
        head += b"\xff\xff\xff\xff"
    else:
        head += INT32.pack(len(result.aborted))
        for producer_id, first_offset in result.aborted:
            head += TWO_INT64.pack(producer_id, first_offset)
    if version >= 11:
        head += INT32.pack(result.preferred_read_replica)
    head += INT32.pack(result.records.size if result.records is not None else 0)


def _result_tags(result: FetchPartitionResult) -> bytes:
    if result.diverging_epoch is None and result.current_leader is None:
        return b"\x00"
    fields = []
    if result.diverging_epoch is not None:
        fields.append(_DIVERGING_FIELD.pack(0, 13, *result.diverging_epoch, 0))
    if result.current_leader is not None:
        fields.append(_LEADER_FIELD.pack(1, 9, *result.current_leader, 0))
    return uvarint(len(fields)) + b"".join(fields)
