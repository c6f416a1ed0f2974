"""The records of `__consumer_offsets`, byte for byte as Kafka writes them: its own tools decode them.

A key begins with a version that tells what it is about: 0 and 1 an offset, 2 a group. Other versions belong
to kinds of groups that are not known here and decode to None. Values are written in the newest version whose
fields have no tags (3; offsets with an expiry of their own in 1), and read in all versions up to it.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from gapless.wire.errors import MalformedMessage
from gapless.wire.primitives import INT16, INT32, INT64, TRUNCATED, read_string, string

_OFFSET_KEY_VERSIONS = (0, 1)
_GROUP_KEY_VERSION = 2
_OFFSET_VALUE_VERSION = 3
_EXPIRING_OFFSET_VALUE_VERSION = 1
_GROUP_VALUE_VERSION = 3
_CONTROL_KEY = Struct(">hh")
_OFFSET_AND_EPOCH = Struct(">hqi")
_VERSION_AND_OFFSET = Struct(">hq")

MAX_STRING_BYTES = 2**15 - 1
"""The longest string that a record can hold."""


class OffsetKey(NamedTuple):
    """Whose progress, and where."""

    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """Which group."""

    group: str


class OffsetValue(NamedTuple):
    """How far a group has come in a partition: the offset of the record that it wants next."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1
    """Only from clients that say how long each offset is to be kept; -1: as long as the broker keeps all."""


class MemberValue(NamedTuple):
    """A member of a generation."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupValue(NamedTuple):
    """A group's last generation that is complete; without members it is empty."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[MemberValue, ...]


Key = OffsetKey | GroupKey


# ---------------------------------------------------------------------------------------------- writing


def encode_offset_key(key: OffsetKey) -> bytes:
    return INT16.pack(1) + string(key.group) + string(key.topic) + INT32.pack(key.partition)


def encode_offset(value: OffsetValue) -> bytes:
    if value.expire_timestamp_ms == -1:
        start = _OFFSET_AND_EPOCH.pack(_OFFSET_VALUE_VERSION, value.offset, value.leader_epoch)
        return start + string(value.metadata) + INT64.pack(value.commit_timestamp_ms)
    start = _VERSION_AND_OFFSET.pack(_EXPIRING_OFFSET_VALUE_VERSION, value.offset) + string(value.metadata)
    return start + INT64.pack(value.commit_timestamp_ms) + INT64.pack(value.expire_timestamp_ms)


def encode_group_key(group: str) -> bytes:
    return INT16.pack(_GROUP_KEY_VERSION) + string(group)


def encode_group(value: GroupValue) -> bytes:
    parts = [
        INT16.pack(_GROUP_VALUE_VERSION),
        string(value.protocol_type),
        INT32.pack(value.generation),
        string(value.protocol),
        string(value.leader),
        INT64.pack(value.state_timestamp_ms),
        INT32.pack(len(value.members)),
    ]
    for member in value.members:
        parts += (
            string(member.member_id),
            string(member.instance_id),
            string(member.client_id),
            string(member.client_host),
            INT32.pack(member.rebalance_timeout_ms),
            INT32.pack(member.session_timeout_ms),
            INT32.pack(len(member.subscription)),
            member.subscription,
            INT32.pack(len(member.assignment)),
            member.assignment,
        )
    return b"".join(parts)


def offset_tombstone(key: OffsetKey) -> tuple[bytes, None]:
    """The record that deletes a committed offset."""
    return encode_offset_key(key), None


def group_tombstone(group: str) -> tuple[bytes, None]:
    """The record that deletes a group."""
    return encode_group_key(group), None


# ---------------------------------------------------------------------------------------------- reading


def decode_key(data: bytes) -> Key | None:
    """What a record is about; None if it is of a kind that is not known here."""
    try:
        version = INT16.unpack_from(data)[0]
        if version in _OFFSET_KEY_VERSIONS:
            group, position = _text(data, 2)
            topic, position = _text(data, position)
            return OffsetKey(group, topic, INT32.unpack_from(data, position)[0])
        if version == _GROUP_KEY_VERSION:
            return GroupKey(_text(data, 2)[0])
    except TRUNCATED:
        raise MalformedMessage("a group record's key ends too early") from None
    return None


def decode_offset(data: bytes) -> OffsetValue:
    try:
        version, offset = _VERSION_AND_OFFSET.unpack_from(data)
        _check_version(version, _OFFSET_VALUE_VERSION)
        position = _VERSION_AND_OFFSET.size
        leader_epoch = expires_ms = -1
        if version >= 3:
            leader_epoch, position = _int32(data, position)
        metadata, position = _text(data, position)
        committed_ms = INT64.unpack_from(data, position)[0]
        if version == 1:
            expires_ms = INT64.unpack_from(data, position + 8)[0]
    except TRUNCATED:
        raise MalformedMessage("a committed offset ends too early") from None
    return OffsetValue(offset, leader_epoch, metadata, committed_ms, expires_ms)


def decode_group(data: bytes) -> GroupValue:
    try:
        version = INT16.unpack_from(data)[0]
        _check_version(version, _GROUP_VALUE_VERSION)
        protocol_type, position = _text(data, 2)
        generation, position = _int32(data, position)
        protocol, position = read_string(data, position)
        leader, position = read_string(data, position)
        state_timestamp_ms = -1
        if version >= 2:
            state_timestamp_ms = INT64.unpack_from(data, position)[0]
            position += 8
        count, position = _int32(data, position)
        members = []
        for _ in range(count):
            member, position = _member(data, position, version)
            members.append(member)
    except TRUNCATED:
        raise MalformedMessage("a group's record ends too early") from None
    return GroupValue(protocol_type, generation, protocol, leader, state_timestamp_ms, tuple(members))


def _member(data: bytes, position: int, version: int) -> tuple[MemberValue, int]:
    member_id, position = _text(data, position)
    instance_id = None
    if version >= 3:
        instance_id, position = read_string(data, position)
    client_id, position = _text(data, position)
    client_host, position = _text(data, position)
    rebalance_timeout_ms = -1
    if version >= 1:
        rebalance_timeout_ms, position = _int32(data, position)
    session_timeout_ms, position = _int32(data, position)
    subscription, position = _bytes(data, position)
    assignment, position = _bytes(data, position)
    if rebalance_timeout_ms == -1:
        rebalance_timeout_ms = session_timeout_ms
    member = MemberValue(
        member_id,
        instance_id,
        client_id,
        client_host,
        rebalance_timeout_ms,
        session_timeout_ms,
        subscription,
        assignment,
    )
    return member, position


def _check_version(version: int, newest: int) -> None:
    if not 0 <= version <= newest:
        raise MalformedMessage(f"a group record's value has the version {version}")


def _text(data: bytes, position: int) -> tuple[str, int]:
    text, position = read_string(data, position)
    if text is None:
        raise MalformedMessage("a group record has a null string where none may be")
    return text, position


def _int32(data: bytes, position: int) -> tuple[int, int]:
    value: int = INT32.unpack_from(data, position)[0]
    return value, position + 4


def _bytes(data: bytes, position: int) -> tuple[bytes, int]:
    length, position = _int32(data, position)
    if not 0 <= length <= len(data) - position:
        raise MalformedMessage(f"a group record has a field of {length} bytes")
    return data[position : position + length], position + length


# ------------------------------------------------------------------------- what clients put into them


def subscribed_topics(subscription: bytes) -> list[str] | None:
    """The topics that a member of a consumer group subscribes to; None if it does not say so legibly."""
    try:
        count, position = _int32(subscription, 2)  # behind the version; newer ones only add fields at the end
        topics = []
        for _ in range(count):
            topic, position = _text(subscription, position)
            topics.append(topic)
    except (*TRUNCATED, MalformedMessage):
        return None
    return topics


def committed_by_marker(key: bytes) -> bool | None:
    """Whether a control record commits its transaction, or aborts it; None if it is about something else."""
    try:
        kind: int = _CONTROL_KEY.unpack_from(key)[1]
    except TRUNCATED:
        raise MalformedMessage("a control record's key ends too early") from None
    return {0: False, 1: True}.get(kind)
