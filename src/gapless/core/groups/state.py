"""What one partition of `__consumer_offsets` holds: its groups and their offsets.

Records change the state, in `replay`, whether they were just written or are read back. Between two records of
a group there is also what only its members know (who is joining, whose session ends when): `join`, `sync`,
`membership` and `rebalance` have those rules, `commits` and `expiry` those of offsets.

Offsets in transactions, for the coordinator of transactions (which owns TxnOffsetCommit and the markers):

    groups = groups_of(find_shard(node, CONSUMER_OFFSETS, group_id))
    errors = commit_in_transaction(groups, group_id, committer, (producer_id, epoch), offsets)
    groups.shard.answer(request, ..., failed=...)

`commit_in_transaction` (in `commits`) checks group, member and generation, and writes the offsets as part of
the producer's transaction in this partition; the result has one code per offset. They stay pending until
`replay` is given the control record of that producer in this partition: whoever appends a marker to a
partition that has a shard must let the shard replay it.
"""

from __future__ import annotations

from collections.abc import Sequence

from gapless.core.consumer_groups.state import ConsumerGroups
from gapless.core.groups.expiry import Expiry
from gapless.core.groups.group import Group
from gapless.core.groups.held import GROUP_BYTES, Held
from gapless.core.groups.offsets import Commit, Offsets
from gapless.core.groups.rebalance import begin_sessions, dissolve
from gapless.core.shard import CoordinatorError, OwnRecord, Shard
from gapless.wire import consumer_group_records
from gapless.wire.batch import BatchHeader
from gapless.wire.errors import ErrorCode, MalformedMessage
from gapless.wire.group_records import (
    GroupKey,
    GroupValue,
    OffsetKey,
    committed_by_marker,
    decode_group,
    decode_key,
    decode_offset,
    encode_group,
    encode_group_key,
)
from gapless.wire.records import Record

RECORD_OVERHEAD_BYTES = 128
"""What a batch of one record takes beyond the record's key and value, at most."""
WRITE_BYTES = 512 * 1024
"""How much is written in one batch, where it need not be one."""


class GroupsState:
    """The groups of one shard."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.node = shard.node
        self.held = Held()
        self.groups: dict[str, Group] = {}
        self.consumer_groups = ConsumerGroups(self)
        self.offsets = Offsets(self.held)
        self.unreadable_records = 0
        self._expiry = Expiry(self)

    # ------------------------------------------------------------------------------------------ replaying

    def replay(self, record: Record, batch: BatchHeader) -> None:
        """Apply a record. One that cannot be read is counted and passed over, as Kafka does."""
        try:
            if batch.is_control:
                self._replay_marker(record, batch)
            else:
                self._replay(record, batch)
        except MalformedMessage:
            self.unreadable_records += 1

    def _replay_marker(self, record: Record, batch: BatchHeader) -> None:
        committed = committed_by_marker(record.key or b"")
        if committed is not None:
            self.offsets.end_transaction(batch.producer_id, committed)

    def _replay(self, record: Record, batch: BatchHeader) -> None:
        key = decode_key(record.key or b"")
        if isinstance(key, GroupKey):
            self._replay_group(key.group, record.value)
        elif isinstance(key, OffsetKey) and record.value is None:
            self.offsets.remove(key)
        elif isinstance(key, OffsetKey) and record.value is not None:
            commit = Commit(decode_offset(record.value), record.offset)
            if key.group not in self.consumer_groups.groups:
                self._group(key.group, commit.value.commit_timestamp_ms)
            if batch.is_transactional:
                self.offsets.put_pending(batch.producer_id, key, commit)
            else:
                self.offsets.put(key, commit)
        elif key is None:
            consumer_key = consumer_group_records.decode_key(record.key or b"")
            if consumer_key is not None:
                self.consumer_groups.replay(consumer_key, record.value)

    def _replay_group(self, group_id: str, data: bytes | None) -> None:
        if data is not None:
            value = decode_group(data)
            self._group(group_id, value.state_timestamp_ms).adopt(value)
        else:
            self.forget_classic(group_id)

    def forget_classic(self, group_id: str) -> None:
        """There is no group of the classic protocol of this name any more; what it committed stays."""
        if group_id in self.groups:
            dissolve(self, self.groups.pop(group_id), ErrorCode.UNKNOWN_MEMBER_ID)
            self.held.grow(-GROUP_BYTES - len(group_id))

    def _group(self, group_id: str, now_ms: int) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id, self.held, now_ms)
            self.held.grow(GROUP_BYTES + len(group_id))
        return group

    # ------------------------------------------------------------------------------------- begin and end

    def loaded(self) -> None:
        """Members have a whole session's time to show up; their generation goes on if they do."""
        begin_sessions(self)
        self.consumer_groups.loaded()
        self._expiry.begin()

    def unloaded(self) -> None:
        """Another broker coordinates these groups now."""
        self._expiry.end()
        self.consumer_groups.unloaded()
        for group in self.groups.values():
            dissolve(self, group, ErrorCode.NOT_COORDINATOR)

    def topic_deleted(self, topic: str) -> None:
        """What was committed for a topic must not be taken for a later one of the same name."""
        self._expiry.forget_topics({topic: None})

    # -------------------------------------------------------------------------------------------- writing

    def write_group(self, group_id: str, value: GroupValue) -> None:
        """Make a group's generation durable; raises `CoordinatorError`."""
        record = (encode_group_key(group_id), encode_group(value))
        size_bytes = len(record[0]) + len(record[1]) + RECORD_OVERHEAD_BYTES
        if size_bytes > self.shard.partition.config.max_message_bytes:
            raise CoordinatorError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{size_bytes} bytes for one group")
        self.shard.write([record])

    def write_in_batches(self, records: Sequence[OwnRecord]) -> None:
        """Write records that need not become durable together; raises `CoordinatorError`."""
        batch: list[OwnRecord] = []
        size_bytes = 0
        for record in records:
            batch.append(record)
            size_bytes += len(record[0]) + len(record[1] or b"")
            if size_bytes > WRITE_BYTES:
                self.shard.write(batch)
                batch, size_bytes = [], 0
        self.shard.write(batch)

    def write_unless_failing(self, records: Sequence[OwnRecord]) -> bool:
        """Write what no request asked for; False while the disk fails (nothing is served then anyway)."""
        try:
            self.shard.check_ready()
            self.write_in_batches(records)
        except CoordinatorError:
            return False
        return True

    def create_group(self, group_id: str) -> Group:
        """A group's first record: it exists, and is empty."""
        self.check_room()
        empty = self.consumer_groups.get(group_id)
        if empty is not None:  # of the newer protocol; whoever creates has seen that nobody uses it
            self.write_in_batches(self.consumer_groups.deletion(empty))
        self.write_group(group_id, GroupValue("", 0, None, None, self.node.now_ms, ()))
        return self.groups[group_id]

    def check_room(self) -> None:
        """Refuse to take more once groups hold as much memory as they may, in all shards together."""
        held = sum(
            shard.state.held.size_bytes
            for shard in self.node.shards.values()
            if isinstance(shard.state, GroupsState)
        )
        if held > self.node.settings.get("group.coordinator.state.max.bytes"):
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "too much is kept for groups already")


def groups_of(shard: Shard) -> GroupsState:
    """The groups in a shard of `__consumer_offsets`."""
    if not isinstance(shard.state, GroupsState):
        raise TypeError(f"{shard.partition.name} holds no groups")
    return shard.state
