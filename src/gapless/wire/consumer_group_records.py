"""The records of groups of the newer consumer protocol in `__consumer_offsets`, as Kafka writes them.

Each kind has a key version of its own: 3 a group, 5 a member's subscription, 6 the epoch of the target
assignment, 7 what a member is to have, 8 what it has. Values have version 0 and may have tagged fields. Keys
4 and 16 (what Kafka has found out about topics) are not needed here: they decode to None.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from gapless.wire.errors import MalformedMessage
from gapless.wire.primitives import (
    INT16,
    INT32,
    INT64,
    TRUNCATED,
    compact_string,
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

GROUP, MEMBER, TARGET_EPOCH, TARGET, CURRENT = 3, 5, 6, 7, 8
"""The kinds of records by the versions of their keys."""
_KEYS_WITH_MEMBER = (MEMBER, TARGET, CURRENT)
_KEYS_WITHOUT_MEMBER = (GROUP, TARGET_EPOCH)
_METADATA_HASH_TAG = 0
_EPOCHS_AND_STATE = Struct(">iib")
_NO_TAGS = b"\x00"

Assigned = dict[UUID, list[int]]
"""Partitions by topic."""
Encoded = tuple[bytes, bytes | None]


class ConsumerGroupKey(NamedTuple):
    """What a record is about; the member is empty for those about the whole group."""

    kind: int
    group: str
    member: str = ""


class GroupEpoch(NamedTuple):
    """A group's epoch, and a digest of the topics that it was made for."""

    epoch: int
    metadata_hash: int


class Subscription(NamedTuple):
    """What a member says of itself."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    regex: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None


class CurrentAssignment(NamedTuple):
    """How far a member has come on the way to its target."""

    epoch: int
    previous_epoch: int
    state: int
    assigned: Assigned
    revoking: Assigned


# ---------------------------------------------------------------------------------------------- writing


def encode_key(key: ConsumerGroupKey) -> bytes:
    member = string(key.member) if key.kind in _KEYS_WITH_MEMBER else b""
    return INT16.pack(key.kind) + string(key.group) + member


def tombstone(kind: int, group: str, member: str = "") -> Encoded:
    """The record that takes back the last of its kind."""
    return encode_key(ConsumerGroupKey(kind, group, member)), None


def group_epoch(group: str, value: GroupEpoch) -> Encoded:
    tags = _NO_TAGS
    if value.metadata_hash:
        tags = uvarint(1) + uvarint(_METADATA_HASH_TAG) + uvarint(8) + INT64.pack(value.metadata_hash)
    return encode_key(ConsumerGroupKey(GROUP, group)), INT16.pack(0) + INT32.pack(value.epoch) + tags


def member_subscription(group: str, member: str, value: Subscription) -> Encoded:
    parts = [
        INT16.pack(0),
        compact_string(value.instance_id),
        compact_string(value.rack_id),
        compact_string(value.client_id),
        compact_string(value.client_host),
        uvarint(len(value.topics) + 1),
        *map(compact_string, value.topics),
        compact_string(value.regex),
        INT32.pack(value.rebalance_timeout_ms),
        compact_string(value.assignor),
        _NO_TAGS,
    ]
    return encode_key(ConsumerGroupKey(MEMBER, group, member)), b"".join(parts)


def target_epoch(group: str, epoch: int) -> Encoded:
    return encode_key(ConsumerGroupKey(TARGET_EPOCH, group)), INT16.pack(0) + INT32.pack(epoch) + _NO_TAGS


def target(group: str, member: str, assigned: Assigned) -> Encoded:
    value = INT16.pack(0) + _partitions(assigned) + _NO_TAGS
    return encode_key(ConsumerGroupKey(TARGET, group, member)), value


def current(group: str, member: str, value: CurrentAssignment) -> Encoded:
    start = INT16.pack(0) + _EPOCHS_AND_STATE.pack(value.epoch, value.previous_epoch, value.state)
    body = start + _partitions(value.assigned) + _partitions(value.revoking) + _NO_TAGS
    return encode_key(ConsumerGroupKey(CURRENT, group, member)), body


def _partitions(assigned: Assigned) -> bytes:
    parts = [uvarint(len(assigned) + 1)]
    for topic_id, partitions in assigned.items():
        parts += (topic_id.bytes, uvarint(len(partitions) + 1), _int32s(partitions), _NO_TAGS)
    return b"".join(parts)


def _int32s(values: Iterable[int]) -> bytes:
    return b"".join(map(INT32.pack, values))


# ---------------------------------------------------------------------------------------------- reading


def decode_key(data: bytes) -> ConsumerGroupKey | None:
    """What a record is about; None if it is none of these."""
    try:
        kind = INT16.unpack_from(data)[0]
        if kind not in _KEYS_WITH_MEMBER and kind not in _KEYS_WITHOUT_MEMBER:
            return None
        group, position = read_string(data, 2)
        member = read_string(data, position)[0] if kind in _KEYS_WITH_MEMBER else ""
    except TRUNCATED:
        raise MalformedMessage("a consumer group record's key ends too early") from None
    if group is None or member is None:
        raise MalformedMessage("a consumer group record's key has a null string")
    return ConsumerGroupKey(kind, group, member)


def decode_group_epoch(data: bytes) -> GroupEpoch:
    try:
        position = _check_version(data)
        epoch = INT32.unpack_from(data, position)[0]
        count, position = read_uvarint(data, position + 4)
        metadata_hash = 0
        for _ in range(count):
            tag, start, position = read_tagged_field(data, position)
            if tag == _METADATA_HASH_TAG:
                metadata_hash = INT64.unpack_from(data, start)[0]
    except TRUNCATED:
        raise MalformedMessage("a consumer group's record ends too early") from None
    return GroupEpoch(epoch, metadata_hash)


def decode_subscription(data: bytes) -> Subscription:
    try:
        position = _check_version(data)
        instance_id, position = read_compact_string(data, position)
        rack_id, position = read_compact_string(data, position)
        client_id, position = _text(data, position)
        client_host, position = _text(data, position)
        count, position = read_compact_array_length(data, position, 1)
        topics = []
        for _ in range(count):
            topic, position = _text(data, position)
            topics.append(topic)
        regex, position = read_compact_string(data, position)
        timeout_ms = INT32.unpack_from(data, position)[0]
        assignor, position = read_compact_string(data, position + 4)
        skip_tagged_fields(data, position)
    except TRUNCATED:
        raise MalformedMessage("a member's subscription ends too early") from None
    return Subscription(
        instance_id, rack_id, client_id, client_host, tuple(topics), regex, timeout_ms, assignor
    )


def decode_target_epoch(data: bytes) -> int:
    try:
        epoch: int = INT32.unpack_from(data, _check_version(data))[0]
    except TRUNCATED:
        raise MalformedMessage("the epoch of a target assignment ends too early") from None
    return epoch


def decode_target(data: bytes) -> Assigned:
    try:
        return _read_partitions(data, _check_version(data))[0]
    except TRUNCATED:
        raise MalformedMessage("a member's target ends too early") from None


def decode_current(data: bytes) -> CurrentAssignment:
    try:
        position = _check_version(data)
        epoch, previous_epoch, state = _EPOCHS_AND_STATE.unpack_from(data, position)
        assigned, position = _read_partitions(data, position + _EPOCHS_AND_STATE.size)
        revoking, _ = _read_partitions(data, position)
    except TRUNCATED:
        raise MalformedMessage("a member's assignment ends too early") from None
    return CurrentAssignment(epoch, previous_epoch, state, assigned, revoking)


def _check_version(data: bytes) -> int:
    version = INT16.unpack_from(data)[0]
    if version != 0:
        raise MalformedMessage(f"a consumer group record's value has the version {version}")
    return 2


def _text(data: bytes, position: int) -> tuple[str, int]:
    text, position = read_compact_string(data, position)
    if text is None:
        raise MalformedMessage("a consumer group record has a null string where none may be")
    return text, position


def _read_partitions(data: bytes, position: int) -> tuple[Assigned, int]:
    assigned: Assigned = {}
    topics, position = read_compact_array_length(data, position, 18)
    for _ in range(topics):
        topic_id, position = read_uuid(data, position)
        count, position = read_compact_array_length(data, position, 4)
        partitions = [INT32.unpack_from(data, position + 4 * index)[0] for index in range(count)]
        position = skip_tagged_fields(data, position + 4 * count)
        assigned[topic_id] = partitions
    return assigned, position
