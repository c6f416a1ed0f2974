"""Committing offsets, alone or as part of a transaction: who may, and what is written.

A consumer that is a member of the group commits for its generation, so that one which lost its partitions
cannot overwrite what their new owner commits. Without members anybody may commit (generation -1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from gapless.core.groups.group import CONSUMER_PROTOCOL, Group, GroupState
from gapless.core.groups.rebalance import is_alive
from gapless.core.shard import CoordinatorError
from gapless.wire.errors import ErrorCode
from gapless.wire.group_records import (
    OffsetKey,
    OffsetValue,
    encode_offset,
    encode_offset_key,
    offset_tombstone,
)

if TYPE_CHECKING:
    from gapless.core.groups.state import GroupsState


BATCH_HEADER_BYTES = 61
RECORD_OVERHEAD_BYTES = 20
"""What a record takes in a batch beyond its key and value, at most."""


class Committer(NamedTuple):
    """Who commits; the defaults stand for somebody who is no member."""

    member_id: str = ""
    instance_id: str | None = None
    generation: int = -1


class NewOffset(NamedTuple):
    """An offset to commit. The partition must be known to exist."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = None


def commit(
    groups: GroupsState,
    group_id: str,
    committer: Committer,
    offsets: Sequence[NewOffset],
    *,
    expire_timestamp_ms: int = -1,
    group_missing: ErrorCode = ErrorCode.ILLEGAL_GENERATION,
) -> list[ErrorCode]:
    """Commit at once; one result per offset. Raises `CoordinatorError` if the committer may not."""
    _check_newer(groups, group_id, committer)
    group = _find(groups, group_id, committer, group_missing)
    if group is not None:
        _check(group, committer)
        if group.state is GroupState.COMPLETING:  # it has not been told yet what is its own now
            raise CoordinatorError(ErrorCode.REBALANCE_IN_PROGRESS)
        member = group.members.get(committer.member_id)
        if member is not None:
            is_alive(groups, group, member)
    return _write(groups, group_id, offsets, expire_timestamp_ms, None)


def commit_in_transaction(
    groups: GroupsState,
    group_id: str,
    committer: Committer,
    producer: tuple[int, int],
    offsets: Sequence[NewOffset],
) -> list[ErrorCode]:
    """Write offsets as part of the transaction of a producer (id and epoch); they show when it commits.

    One result per offset; raises `CoordinatorError` if the committer may not. Who names no member is not
    checked against the group: its producer's epoch fences it.
    """
    if committer != Committer():
        try:
            _check_newer(groups, group_id, committer)
        except CoordinatorError as error:  # a producer knows of generations only
            is_stale = error.code is ErrorCode.STALE_MEMBER_EPOCH
            raise CoordinatorError(ErrorCode.ILLEGAL_GENERATION) if is_stale else error from None
    group = _find(groups, group_id, committer, ErrorCode.ILLEGAL_GENERATION)
    if group is not None and committer != Committer():
        _check(group, committer)
    return _write(groups, group_id, offsets, -1, producer)


def _find(groups: GroupsState, group_id: str, committer: Committer, group_missing: ErrorCode) -> Group | None:
    group = groups.groups.get(group_id)
    if group is None and committer.generation >= 0 and groups.consumer_groups.get(group_id) is None:
        raise CoordinatorError(group_missing)
    return group


def _check_newer(groups: GroupsState, group_id: str, committer: Committer) -> None:
    """In a group of the newer protocol members commit for their epoch; without members anybody may."""
    group = groups.consumer_groups.get(group_id)
    if group is not None and (group.members or committer.generation >= 0):
        group.check_epoch(committer.member_id, committer.generation)


def _check(group: Group, committer: Committer) -> None:
    if committer.generation < 0 and group.state is GroupState.EMPTY:
        return  # the application keeps track of its partitions itself, or an administrator moves the group
    group.find(committer.member_id, committer.instance_id)
    if committer.generation != group.generation:
        raise CoordinatorError(ErrorCode.ILLEGAL_GENERATION)


def _write(
    groups: GroupsState,
    group_id: str,
    offsets: Sequence[NewOffset],
    expire_timestamp_ms: int,
    producer: tuple[int, int] | None,
) -> list[ErrorCode]:
    longest = groups.node.settings.get("offset.metadata.max.bytes")
    now_ms = groups.node.now_ms
    room_bytes = groups.shard.partition.config.max_message_bytes - BATCH_HEADER_BYTES
    is_growing = group_id not in groups.groups and groups.consumer_groups.get(group_id) is None
    results, records = [], []
    for new in offsets:
        metadata = new.metadata or ""
        if len(metadata) > longest:
            results.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
            continue
        key = OffsetKey(group_id, new.topic, new.partition)
        value = OffsetValue(new.offset, new.leader_epoch, metadata, now_ms, expire_timestamp_ms)
        record = (encode_offset_key(key), encode_offset(value))
        room_bytes -= len(record[0]) + len(record[1]) + RECORD_OVERHEAD_BYTES
        if room_bytes < 0:
            raise CoordinatorError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
        records.append(record)
        results.append(ErrorCode.NONE)
        earlier = groups.offsets.get(key)
        is_growing |= producer is not None or earlier is None or len(earlier.value.metadata) < len(metadata)
    if records:
        if is_growing:
            groups.check_room()
        groups.shard.write(records, producer)
    return results


def delete_offsets(groups: GroupsState, group_id: str, asked: Sequence[OffsetKey]) -> list[ErrorCode]:
    """Delete committed offsets of topics that the group does not consume; one result each."""
    group = groups.groups.get(group_id)
    newer = groups.consumer_groups.get(group_id)
    if newer is not None:
        subscribed = [groups.consumer_groups.subscribes_to(newer, key.topic) for key in asked]
    elif group is None:
        raise CoordinatorError(ErrorCode.GROUP_ID_NOT_FOUND)
    elif group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER_PROTOCOL:
        raise CoordinatorError(ErrorCode.NON_EMPTY_GROUP)
    else:
        subscribed = [group.subscribes_to(key.topic) for key in asked]
    deleted = {
        key: None
        for key, in_use in zip(asked, subscribed, strict=True)
        if not in_use and (groups.offsets.get(key) is not None or groups.offsets.is_pending(key))
    }
    groups.write_in_batches([offset_tombstone(key) for key in deleted])
    return [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if in_use else ErrorCode.NONE for in_use in subscribed]
