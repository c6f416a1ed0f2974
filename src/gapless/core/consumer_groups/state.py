"""The groups of the newer protocol in one shard: what their records say, and the members' clocks.

They share `__consumer_offsets`, the offsets and the bound on memory with the groups of the classic protocol;
a group's id belongs to one of the two at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.core.consumer_groups.group import ConsumerGroup, Member, MemberState
from gapless.core.consumer_groups.topics import Resolver, all_topics, digest
from gapless.core.shard import OwnRecord
from gapless.wire import consumer_group_records as records
from gapless.wire.consumer_group_records import ConsumerGroupKey, GroupEpoch

if TYPE_CHECKING:
    from gapless.core.groups.state import GroupsState


class ConsumerGroups:
    """All of them in one shard."""

    def __init__(self, shared: GroupsState) -> None:
        self._shared = shared
        self.groups: dict[str, ConsumerGroup] = {}

    def get(self, group_id: str) -> ConsumerGroup | None:
        return self.groups.get(group_id)

    # ------------------------------------------------------------------------------------------ replaying

    def replay(self, key: ConsumerGroupKey, value: bytes | None) -> None:
        """Apply a record; raises `MalformedMessage` if it cannot be read."""
        if value is None:
            self._replay_tombstone(key)
            return
        group = self.groups.get(key.group)
        if group is None:
            self._shared.forget_classic(key.group)
            group = self.groups[key.group] = ConsumerGroup(key.group, self._shared.held)
        match key.kind:
            case records.GROUP:
                group.epoch, group.metadata_hash = records.decode_group_epoch(value)
            case records.MEMBER:
                group.set_subscription(key.member, records.decode_subscription(value))
            case records.TARGET_EPOCH:
                group.target_epoch = records.decode_target_epoch(value)
            case records.TARGET:
                group.set_target(key.member, records.decode_target(value))
            case records.CURRENT:
                group.set_current(key.member, records.decode_current(value))

    def _replay_tombstone(self, key: ConsumerGroupKey) -> None:
        group = self.groups.get(key.group)
        if group is None:
            return
        match key.kind:
            case records.GROUP:
                group.dissolve()
                del self.groups[key.group]
            case records.MEMBER:
                group.remove(key.member)
            case records.TARGET:
                group.remove_target(key.member)
            case records.CURRENT:
                group.forget_current(key.member)

    # ------------------------------------------------------------------------------------- begin and end

    def loaded(self) -> None:
        """Members have a whole session's time to show up, and as long as ever to give up partitions."""
        for group in self.groups.values():
            for member in group.members.values():
                self.show_alive(group, member)
                self.watch_revocation(group, member)

    def unloaded(self) -> None:
        """Another broker coordinates these groups now."""
        for group in self.groups.values():
            for member in group.members.values():
                member.stop_clocks()

    # --------------------------------------------------------------------------------------------- clocks

    def show_alive(self, group: ConsumerGroup, member: Member) -> None:
        """A member has been heard of: its session begins anew."""
        node = self._shared.node
        due_ms = node.now_ms + node.settings.get("group.consumer.session.timeout.ms")
        if member.session is not None and member.session.live:
            member.session.put_off(due_ms)
        else:
            member.session = node.timers.at(due_ms, lambda: self._session_ends(group, member))

    def _session_ends(self, group: ConsumerGroup, member: Member) -> None:
        if not self._shared.write_unless_failing(self.departure(group, member)):
            self.show_alive(group, member)

    def watch_revocation(self, group: ConsumerGroup, member: Member) -> None:
        """A member that is to give up partitions has its own rebalance timeout to do so."""
        if member.rebalance is not None:
            member.rebalance.cancel()
            member.rebalance = None
        if member.current.state == MemberState.UNREVOKED_PARTITIONS:
            node = self._shared.node
            due_ms = node.now_ms + max(0, member.subscription.rebalance_timeout_ms)
            member.rebalance = node.timers.at(due_ms, lambda: self._revocation_is_overdue(group, member))

    def _revocation_is_overdue(self, group: ConsumerGroup, member: Member) -> None:
        if not self._shared.write_unless_failing(self.departure(group, member)):
            self.watch_revocation(group, member)

    # -------------------------------------------------------------------------------------------- records

    def departure(self, group: ConsumerGroup, member: Member) -> list[OwnRecord]:
        """The records by which a member leaves; the others' share is made anew with the next heartbeat."""
        resolver = Resolver(self._shared.node.image)
        wanted = {
            each.member_id: resolver.topics(each.subscription)
            for each in group.members.values()
            if each is not member
        }
        epoch = GroupEpoch(group.epoch + 1, digest(all_topics(wanted)))
        return [*self.removal(group, member.member_id), records.group_epoch(group.group_id, epoch)]

    @staticmethod
    def removal(group: ConsumerGroup, member_id: str) -> list[OwnRecord]:
        """The tombstones of one member."""
        kinds = (records.CURRENT, records.TARGET, records.MEMBER)
        return [records.tombstone(kind, group.group_id, member_id) for kind in kinds]

    def deletion(self, group: ConsumerGroup) -> list[OwnRecord]:
        """The tombstones of a group, its offsets aside."""
        tombstones: list[OwnRecord] = []
        for member_id in group.members:
            tombstones += self.removal(group, member_id)
        for kind in (records.TARGET_EPOCH, records.GROUP):
            tombstones.append(records.tombstone(kind, group.group_id))
        return tombstones

    def subscribes_to(self, group: ConsumerGroup, topic: str) -> bool:
        """Whether a member of the group wants this topic."""
        image = self._shared.node.image
        known_for = (group.epoch, image.version)  # whoever wants something else begins a new epoch
        if group.subscribed_for != known_for:
            resolver = Resolver(image)
            topics: dict[str, None] = {}
            for member in group.members.values():
                topics.update(dict.fromkeys(member.subscription.topics))
                topics.update((each.name, None) for each in resolver.topics(member.subscription))
            group.subscribed, group.subscribed_for = topics, known_for
        return topic in group.subscribed
