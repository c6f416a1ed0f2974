"""One group of the newer consumer protocol: its members, what each is to have and what each has.

Epochs order everything. The group's grows when its members, their subscriptions or the topics change; the
target assignment is then made anew for it; each member follows in its own time and proves with its own epoch
how far it has come. All of it comes from records; only clocks live here besides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from uuid import UUID

from gapless.core.groups.held import GROUP_BYTES, MEMBER_BYTES, Held
from gapless.core.shard import CoordinatorError
from gapless.core.timers import Timer
from gapless.wire.consumer_group_records import Assigned, CurrentAssignment, Subscription
from gapless.wire.errors import ErrorCode

JOINING = 0
LEAVING = -1
LEAVING_FOR_A_WHILE = -2
"""Epochs that members send to say what they want; a static member may come back under another id."""

PARTITION_BYTES = 60
"""About what one partition costs in an assignment, with the note of who owns it."""


class GroupState(StrEnum):
    """Kafka's names."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class MemberState(IntEnum):
    """Kafka's numbers."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """It has been asked to give up partitions and has not said yet that it did."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that others have not given up yet."""


NEW = CurrentAssignment(JOINING, JOINING, MemberState.STABLE, {}, {})


@dataclass(slots=True, eq=False)
class Member:
    """One member. Both clocks are running only where a shard is loaded."""

    member_id: str
    subscription: Subscription = field(default_factory=Subscription)
    current: CurrentAssignment = NEW
    session: Timer | None = None
    rebalance: Timer | None = None

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.current.state == MemberState.STABLE and self.current.epoch == epoch

    def stop_clocks(self) -> None:
        for timer in (self.session, self.rebalance):
            if timer is not None:
                timer.cancel()
        self.session = self.rebalance = None

    @property
    def size_bytes(self) -> int:
        """About what it costs to keep this member."""
        told = self.subscription
        texts = sum(len(topic) + 50 for topic in told.topics) + len(told.regex or "")
        partitions = count(self.current.assigned) + count(self.current.revoking)
        return MEMBER_BYTES + 2 * len(self.member_id) + texts + PARTITION_BYTES * partitions


class ConsumerGroup:
    """One group. Changed by the methods that replay records, and by nothing else."""

    def __init__(self, group_id: str, held: Held) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        self.target_epoch = 0
        self.members: dict[str, Member] = {}
        self.targets: dict[str, Assigned] = {}
        self.static_ids: dict[str, str] = {}
        self.image_version = -1
        """The cluster's shape that subscriptions were last resolved against."""
        self.assign_after_ms = 0
        """Not before that time is a large group assigned anew."""
        self.subscribed: dict[str, None] = {}
        self.subscribed_for = (-1, -1)
        """The topics that members want, and the epoch and cluster's shape for which that was found out."""
        self._owners: dict[UUID, dict[int, str]] = {}
        self._held = held
        held.grow(GROUP_BYTES + len(group_id))

    # ------------------------------------------------------------------------------------------ replaying

    def set_subscription(self, member_id: str, subscription: Subscription) -> None:
        member = self._member(member_id)
        self._held.grow(-member.size_bytes)
        member.subscription = subscription
        self._held.grow(member.size_bytes)
        if subscription.instance_id is not None:
            self.static_ids[subscription.instance_id] = member_id

    def set_current(self, member_id: str, current: CurrentAssignment) -> None:
        member = self._member(member_id)
        self._held.grow(-member.size_bytes)
        self._disown(member)
        member.current = current
        self._held.grow(member.size_bytes)
        for assigned in (current.assigned, current.revoking):
            for topic_id, partitions in assigned.items():
                self._owners.setdefault(topic_id, {}).update(dict.fromkeys(partitions, member_id))

    def set_target(self, member_id: str, target: Assigned) -> None:
        self.remove_target(member_id)
        self.targets[member_id] = target
        self._held.grow(PARTITION_BYTES * count(target))

    def remove_target(self, member_id: str) -> None:
        self._held.grow(-PARTITION_BYTES * count(self.targets.pop(member_id, {})))

    def forget_current(self, member_id: str) -> None:
        if member_id in self.members:
            self.set_current(member_id, NEW)

    def remove(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._disown(member)
        self._held.grow(-member.size_bytes)
        member.stop_clocks()
        instance_id = member.subscription.instance_id
        if instance_id is not None and self.static_ids.get(instance_id) == member_id:
            del self.static_ids[instance_id]

    def dissolve(self) -> None:
        """The group is gone, or no longer ours."""
        for member_id in list(self.members):
            self.remove(member_id)
        for member_id in list(self.targets):
            self.remove_target(member_id)
        self._held.grow(-GROUP_BYTES - len(self.group_id))

    def _member(self, member_id: str) -> Member:
        member = self.members.get(member_id)
        if member is None:
            member = self.members[member_id] = Member(member_id)
            self._held.grow(member.size_bytes)
        return member

    def _disown(self, member: Member) -> None:
        for assigned in (member.current.assigned, member.current.revoking):
            for topic_id, partitions in assigned.items():
                owners = self._owners.get(topic_id, {})
                for partition in partitions:
                    if owners.get(partition) == member.member_id:
                        del owners[partition]
                if not owners:
                    self._owners.pop(topic_id, None)

    # ------------------------------------------------------------------------------------------- questions

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.target_epoch:
            return GroupState.ASSIGNING
        if all(member.is_reconciled_to(self.target_epoch) for member in self.members.values()):
            return GroupState.STABLE
        return GroupState.RECONCILING

    def owner(self, topic_id: UUID, partition: int) -> str | None:
        """The member that has a partition, or has not said yet that it gave it up."""
        return self._owners.get(topic_id, {}).get(partition)

    def find(self, member_id: str) -> Member:
        member = self.members.get(member_id)
        if member is None:
            raise CoordinatorError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is no member of this group.")
        return member

    def find_static(self, instance_id: str, member_id: str) -> Member:
        """The static member of this name; raises if somebody else has its place now."""
        current = self.static_ids.get(instance_id)
        if current is None:
            raise CoordinatorError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if current != member_id:
            raise CoordinatorError(
                ErrorCode.FENCED_INSTANCE_ID, f"Instance id {instance_id} belongs to member {current} now."
            )
        return self.members[current]

    def check_epoch(self, member_id: str, epoch: int) -> None:
        """Raise what a member that commits or asks for offsets must be told if it is not up to date."""
        member = self.find(member_id)
        if epoch != member.current.epoch:
            raise CoordinatorError(
                ErrorCode.STALE_MEMBER_EPOCH, f"The member's epoch is {member.current.epoch}, not {epoch}."
            )


def count(assigned: Assigned) -> int:
    return sum(map(len, assigned.values()))
