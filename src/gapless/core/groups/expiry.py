"""What is forgotten in time: offsets of groups that nobody uses, and of topics that are gone.

An offset expires offsets.retention.minutes after its group became empty; of a group that manages its
partitions itself, or of a topic that a live group no longer subscribes to, after its commit. A group without
members and offsets goes, too. The look-out goes through the groups in bounded slices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.core.consumer_groups.group import ConsumerGroup
from gapless.core.groups.group import CONSUMER_PROTOCOL, Group, GroupState
from gapless.core.groups.offsets import Commit
from gapless.core.groups.rebalance import stop
from gapless.core.shard import OwnRecord
from gapless.core.timers import Timer
from gapless.wire.group_records import OffsetKey, group_tombstone, offset_tombstone

if TYPE_CHECKING:
    from gapless.core.groups.state import GroupsState

GROUPS_PER_SLICE = 500


class Expiry:
    """The look-out of one shard."""

    def __init__(self, groups: GroupsState) -> None:
        self._groups = groups
        self._timer: Timer | None = None
        settings = groups.node.settings
        self._interval_ms: int = settings.get("offsets.retention.check.interval.ms")
        self._retention_ms: int = settings.get("offsets.retention.minutes") * 60_000

    def begin(self) -> None:
        """Forget at once what a crash kept us from forgetting; look out from now on."""
        topics = self._groups.node.image.topics
        gone = {topic: None for topic in self._groups.offsets.topics() if topic not in topics}
        if gone:
            self.forget_topics(gone)
        self._look_later(self._interval_ms, [])

    def end(self) -> None:
        stop(self._timer)

    def _look_later(self, delay_ms: int, left: list[str]) -> None:
        due_ms = self._groups.node.now_ms + delay_ms
        self._timer = self._groups.node.timers.at(due_ms, lambda: self._look(left))

    def _look(self, left: list[str]) -> None:
        """Look at some groups; `left` are those that this round has yet to see, none at its beginning."""
        left = left or [*self._groups.groups, *self._groups.consumer_groups.groups]
        records: list[OwnRecord] = []
        for group_id in left[:GROUPS_PER_SLICE]:
            group = self._groups.groups.get(group_id)
            newer = self._groups.consumer_groups.get(group_id)
            if group is not None:
                records += self._expired(group)
            elif newer is not None:
                records += self._expired_of_newer(newer)
        self._groups.write_unless_failing(records)
        left = left[GROUPS_PER_SLICE:]
        self._look_later(0 if left else self._interval_ms, left)

    def _expired(self, group: Group) -> list[OwnRecord]:
        offsets = self._groups.offsets
        records: list[OwnRecord] = []
        kept = False
        for topic, partitions in offsets.of_group(group.group_id).items():
            for partition, commit in partitions.items():
                key = OffsetKey(group.group_id, topic, partition)
                if self._is_expired(group, topic, commit) and not offsets.is_pending(key):
                    records.append(offset_tombstone(key))
                else:
                    kept = True
        in_use = group.state is not GroupState.EMPTY or group.pending_joins
        if not kept and not in_use and not offsets.in_transaction(group.group_id):
            records.append(group_tombstone(group.group_id))
        return records

    def _expired_of_newer(self, group: ConsumerGroup) -> list[OwnRecord]:
        """Of a group of the newer protocol an offset that nobody subscribes to expires after its commit."""
        offsets = self._groups.offsets
        oldest_ms = self._groups.node.now_ms - self._retention_ms
        records: list[OwnRecord] = []
        kept = False
        for topic, partitions in offsets.of_group(group.group_id).items():
            in_use = self._groups.consumer_groups.subscribes_to(group, topic)
            for partition, commit in partitions.items():
                key = OffsetKey(group.group_id, topic, partition)
                if in_use or commit.value.commit_timestamp_ms > oldest_ms or offsets.is_pending(key):
                    kept = True
                else:
                    records.append(offset_tombstone(key))
        if not kept and not group.members and not offsets.in_transaction(group.group_id):
            records += self._groups.consumer_groups.deletion(group)
        return records

    def _is_expired(self, group: Group, topic: str, commit: Commit) -> bool:
        value = commit.value
        since_ms = value.commit_timestamp_ms
        if group.protocol_type is not None:
            if group.state is GroupState.EMPTY:
                since_ms = group.state_since_ms if group.state_since_ms >= 0 else since_ms
            elif not self._tells_what_it_reads(group) or group.subscribes_to(topic):
                return False
        now_ms = self._groups.node.now_ms
        if value.expire_timestamp_ms != -1:
            return now_ms >= value.expire_timestamp_ms
        return now_ms - since_ms >= self._retention_ms

    @staticmethod
    def _tells_what_it_reads(group: Group) -> bool:
        return group.state is GroupState.STABLE and group.protocol_type == CONSUMER_PROTOCOL

    def forget_topics(self, gone: dict[str, None]) -> None:
        """Delete what was committed for topics that are no longer there."""
        keys = self._groups.offsets.keys_of_topics(gone)
        self._groups.write_unless_failing([offset_tombstone(key) for key in keys])
