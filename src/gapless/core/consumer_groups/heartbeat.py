"""ConsumerGroupHeartbeat: the one request by which members join, stay, move partitions, and leave.

A heartbeat may change what its sender subscribes to, and with it the group's epoch; a group whose epoch is
ahead of its target assignment gets a new one; then the sender takes its next step towards it. All of that is
decided first and written as records, which change the state when they are replayed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gapless.core.consumer_groups.assignors import ASSIGNORS, DEFAULT_ASSIGNOR, Spec
from gapless.core.consumer_groups.group import (
    JOINING,
    LEAVING,
    LEAVING_FOR_A_WHILE,
    NEW,
    ConsumerGroup,
    Member,
)
from gapless.core.consumer_groups.patterns import InvalidPattern, compiled
from gapless.core.consumer_groups.reconciliation import reconcile
from gapless.core.consumer_groups.topics import Resolver, all_topics, digest
from gapless.core.contract import Request
from gapless.core.groups.group import GroupState as ClassicState
from gapless.core.groups.held import Held
from gapless.core.shard import CoordinatorError, OwnRecord
from gapless.wire import consumer_group_records as records
from gapless.wire.consumer_group_records import Assigned, CurrentAssignment, GroupEpoch, Subscription
from gapless.wire.errors import ErrorCode
from gapless.wire.group_records import MAX_STRING_BYTES, group_tombstone

if TYPE_CHECKING:
    from gapless.core.groups.state import GroupsState
    from gapless.core.image import Topic

CLIENTS_CHOOSE_IDS_FROM = 1
MAX_SUBSCRIPTION_BYTES = 256 * 1024
"""The largest record that a member may make of what it says of itself."""


SMALL_ENOUGH = 600
"""A group with no more members and partitions than that is assigned anew with every change."""
ASSIGNED_PER_MS = 12
"""A larger one pauses after it was, in proportion to its size, so that it leaves time for others."""


class Answer(NamedTuple):
    """What a member is told; no assignment if that has not changed."""

    member_id: str
    epoch: int
    assignment: Assigned | None = None
    is_member: bool = True


def heartbeat(groups: GroupsState, request: Request) -> Answer:
    """Handle a heartbeat; raises `CoordinatorError` with what its sender must be told."""
    _check(request)
    if request.body.member_epoch in (LEAVING, LEAVING_FOR_A_WHILE):
        return _leave(groups, request)
    return _Heartbeat(groups, request).handle()


def preferred_assignor(subscriptions: list[Subscription]) -> str:
    """The assignor that most members ask for; ties go to the one that was asked for first."""
    votes: dict[str, int] = {}
    for subscription in subscriptions:
        if subscription.assignor is not None:
            votes[subscription.assignor] = votes.get(subscription.assignor, 0) + 1
    return max(votes, key=lambda name: votes[name]) if votes else DEFAULT_ASSIGNOR


# ------------------------------------------------------------------------------------------- what is sent


def _check(request: Request) -> None:
    """Refuse what makes no sense by itself."""
    body = request.body
    if body.instance_id == "" or body.rack_id == "":
        raise _invalid("InstanceId and RackId can't be empty.")
    if any(len(text.encode()) > MAX_STRING_BYTES // 2 for text in (body.member_id, body.instance_id or "")):
        raise _invalid("An id is too long.")
    if body.member_epoch < LEAVING_FOR_A_WHILE:
        raise _invalid("MemberEpoch is invalid.")
    may_be_unnamed = request.header.api_version < CLIENTS_CHOOSE_IDS_FROM and body.member_epoch == JOINING
    if not body.member_id and not may_be_unnamed:
        raise _invalid("MemberId can't be empty.")
    if body.member_epoch == LEAVING_FOR_A_WHILE and body.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    if body.member_epoch == JOINING:
        _check_joining(request)
    if body.server_assignor is not None and body.server_assignor not in ASSIGNORS:
        raise CoordinatorError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {body.server_assignor} is not supported. Supported: {', '.join(ASSIGNORS)}.",
        )
    if body.subscribed_topic_regex:
        try:
            compiled(body.subscribed_topic_regex)
        except InvalidPattern as error:
            raise CoordinatorError(
                ErrorCode.INVALID_REGULAR_EXPRESSION, f"SubscribedTopicRegex is not valid: {error}."
            ) from error


def _check_joining(request: Request) -> None:
    body = request.body
    if body.rebalance_timeout_ms < 0:
        raise _invalid("RebalanceTimeoutMs must be provided in the first request.")
    if body.topic_partitions is None or body.topic_partitions:
        raise _invalid("TopicPartitions must be empty when (re-)joining.")
    if body.subscribed_topic_names is None and body.subscribed_topic_regex is None:
        raise _invalid("SubscribedTopicNames or SubscribedTopicRegex must be set in the first request.")


def _invalid(message: str) -> CoordinatorError:
    return CoordinatorError(ErrorCode.INVALID_REQUEST, message)


def _told_partitions(request: Request) -> Assigned | None:
    """What a member says it has; None if it says nothing about it."""
    if request.body.topic_partitions is None:
        return None
    told: Assigned = {}
    for each in request.body.topic_partitions:
        told.setdefault(each.topic_id, []).extend(each.partitions)
    return told


# ------------------------------------------------------------------------------------------------ leaving


def _leave(groups: GroupsState, request: Request) -> Answer:
    body = request.body
    group = groups.consumer_groups.get(body.group_id)
    if group is None:
        raise CoordinatorError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {body.group_id} not found.")
    if body.instance_id is None:
        member = group.find(body.member_id)
    else:
        member = group.find_static(body.instance_id, body.member_id)
    if body.member_epoch == LEAVING:
        groups.write_in_batches(groups.consumer_groups.departure(group, member))
    else:
        away = member.current._replace(epoch=LEAVING_FOR_A_WHILE, revoking={})
        groups.write_in_batches([records.current(group.group_id, member.member_id, away)])
    return Answer(body.member_id, body.member_epoch, is_member=False)


# ---------------------------------------------------------------------------------------------- heartbeats


class _Heartbeat:
    """One heartbeat of a member or of somebody who wants to be one."""

    def __init__(self, groups: GroupsState, request: Request) -> None:
        self._groups = groups
        self._request = request
        self._body = request.body
        self._records: list[OwnRecord] = []
        self._told = _told_partitions(request)
        self._group = self._find_group()
        self._member_id: str = self._body.member_id or str(groups.node.new_uuid())
        self._replaced: Member | None = None
        self._is_new = False
        self._pause_ms = 0
        self._before, self._current = self._find_member()

    # ------------------------------------------------------------------------------------------- who it is

    def _find_group(self) -> ConsumerGroup:
        group_id = self._body.group_id
        group = self._groups.consumer_groups.get(group_id)
        if group is not None:
            return group
        classic = self._groups.groups.get(group_id)
        if self._body.member_epoch != JOINING:
            raise CoordinatorError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
        if classic is not None and classic.state is not ClassicState.EMPTY:
            raise CoordinatorError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is in use with the classic protocol."
            )
        if classic is not None:
            self._records.append(group_tombstone(group_id))
        return ConsumerGroup(group_id, Held())

    def _find_member(self) -> tuple[Subscription, CurrentAssignment]:
        """What is known of the sender; raises if it may not be who it says it is."""
        instance_id = self._body.instance_id
        joins = self._body.member_epoch == JOINING
        if instance_id is not None and (not joins or instance_id in self._group.static_ids):
            return self._find_static(instance_id, joins)
        member = self._group.members.get(self._member_id)
        if member is not None:
            self._check_epoch(member)
            return member.subscription, member.current
        if not joins:
            self._group.find(self._member_id)
        self._check_room()
        self._is_new = True
        return Subscription(), NEW

    def _find_static(self, instance_id: str, joins: bool) -> tuple[Subscription, CurrentAssignment]:
        if not joins:
            member = self._group.find_static(instance_id, self._member_id)
            self._check_epoch(member)
            return member.subscription, member.current
        member = self._group.members[self._group.static_ids[instance_id]]
        if member.current.epoch != LEAVING_FOR_A_WHILE:
            raise CoordinatorError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Instance id {instance_id} is still in use by member {member.member_id}.",
            )
        self._replaced = member
        return member.subscription, member.current._replace(epoch=JOINING, previous_epoch=JOINING)

    def _check_epoch(self, member: Member) -> None:
        """An older epoch is taken for the current one if the reply that told of it may have been lost."""
        epoch, current = self._body.member_epoch, member.current
        if epoch == current.epoch:
            return
        if epoch == current.previous_epoch and epoch < current.epoch and self._told is not None:
            owned = current.assigned
            if all(set(parts).issubset(owned.get(topic, ())) for topic, parts in self._told.items()):
                return
        raise CoordinatorError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The member's epoch is {current.epoch}, not {epoch}: it must give up its partitions and rejoin.",
        )

    def _check_room(self) -> None:
        max_size = self._groups.node.settings.get("group.consumer.max.size")
        if len(self._group.members) >= max_size:
            raise CoordinatorError(
                ErrorCode.GROUP_MAX_SIZE_REACHED, f"The group has {max_size} members, which is the most."
            )
        self._groups.check_room()

    # ---------------------------------------------------------------------------------------- what follows

    def handle(self) -> Answer:
        subscription = self._subscription()
        self._write_member(subscription)
        epoch = self._next_epoch(subscription)
        target_epoch, target = self._target(epoch, subscription)
        following = reconcile(
            self._current,
            target_epoch,
            target,
            self._told,
            lambda topic_id, partition: self._is_taken(self._group.owner(topic_id, partition)),
        )
        if following != self._current:
            self._records.append(records.current(self._group.group_id, self._member_id, following))
        self._commit(following)
        is_changed = following.assigned != self._current.assigned
        assignment = following.assigned if is_changed or self._is_full() else None
        return Answer(self._member_id, following.epoch, assignment)

    def _is_taken(self, owner: str | None) -> bool:
        return owner not in (None, self._member_id, self._replaced and self._replaced.member_id)

    def _is_full(self) -> bool:
        """Whether the member tells everything: it may have missed our last answer."""
        body = self._body
        told_topics = body.subscribed_topic_names is not None or body.subscribed_topic_regex is not None
        told_all = body.rebalance_timeout_ms != -1 and told_topics and self._told is not None
        return bool(body.member_epoch == JOINING or told_all)

    def _subscription(self) -> Subscription:
        """What the member wants now: what it does not mention stays as it was."""
        body, before = self._body, self._before
        names = body.subscribed_topic_names
        return Subscription(
            instance_id=before.instance_id if body.instance_id is None else body.instance_id,
            rack_id=before.rack_id if body.rack_id is None else body.rack_id,
            client_id=self._request.header.client_id or "",
            client_host=self._request.host,
            topics=before.topics if names is None else tuple(sorted(dict.fromkeys(names))),
            regex=before.regex if body.subscribed_topic_regex is None else body.subscribed_topic_regex,
            rebalance_timeout_ms=(
                before.rebalance_timeout_ms if body.rebalance_timeout_ms < 0 else body.rebalance_timeout_ms
            ),
            assignor=before.assignor if body.server_assignor is None else body.server_assignor,
        )

    def _write_member(self, subscription: Subscription) -> None:
        group_id = self._group.group_id
        old = self._replaced
        if old is not None:
            self._records += self._groups.consumer_groups.removal(self._group, old.member_id)
            self._records += (
                records.target(group_id, self._member_id, self._group.targets.get(old.member_id, {})),
                records.current(group_id, self._member_id, self._current),
            )
        if old is not None or self._is_new or subscription != self._before:
            record = records.member_subscription(group_id, self._member_id, subscription)
            if len(record[1] or b"") > MAX_SUBSCRIPTION_BYTES:
                raise _invalid("The subscription is too large.")
            self._records.append(record)
        self._wants_others = (subscription.topics, subscription.regex) != (
            self._before.topics,
            self._before.regex,
        )

    def _all_subscriptions(self, own: Subscription) -> dict[str, Subscription]:
        """What all members want, the sender of this heartbeat included."""
        subscriptions = {
            each.member_id: each.subscription
            for each in self._group.members.values()
            if each is not self._replaced
        }
        subscriptions[self._member_id] = own
        return subscriptions

    def _next_epoch(self, subscription: Subscription) -> int:
        """The group's epoch: a new one if the members, what they want, or the topics have changed."""
        group = self._group
        is_due = self._is_new or self._wants_others
        if not is_due and group.image_version == self._groups.node.image.version:
            return group.epoch
        metadata_hash = digest(all_topics(self._wanted(self._all_subscriptions(subscription))))
        if not is_due and metadata_hash == group.metadata_hash:
            return group.epoch
        value = GroupEpoch(group.epoch + 1, metadata_hash)
        self._records.append(records.group_epoch(group.group_id, value))
        return value.epoch

    def _wanted(self, subscriptions: dict[str, Subscription]) -> dict[str, list[Topic]]:
        resolver = Resolver(self._groups.node.image)
        return {member_id: resolver.topics(each) for member_id, each in subscriptions.items()}

    def _target(self, epoch: int, subscription: Subscription) -> tuple[int, Assigned]:
        """What the member is to have, and since which epoch; made anew for all if the group has moved on."""
        group, old = self._group, self._replaced
        if epoch <= group.target_epoch or self._groups.node.now_ms < group.assign_after_ms:
            member_id = self._member_id if old is None else old.member_id
            return group.target_epoch, group.targets.get(member_id, {})
        before = dict(group.targets)
        if old is not None:
            before[self._member_id] = before.pop(old.member_id, {})
        subscriptions = self._all_subscriptions(subscription)
        wanted = self._wanted(subscriptions)
        spec = Spec(
            members={each: tuple(t.topic_id for t in topics) for each, topics in wanted.items()},
            instance_ids={each: told.instance_id for each, told in subscriptions.items()},
            partitions={t.topic_id: len(t.partitions) for t in all_topics(wanted).values()},
            previous=before,
        )
        targets = ASSIGNORS[preferred_assignor(list(subscriptions.values()))](spec)
        for member_id, target in targets.items():
            if target != before.get(member_id):
                self._records.append(records.target(group.group_id, member_id, target))
        self._records.append(records.target_epoch(group.group_id, epoch))
        size = len(targets) + sum(spec.partitions.values())
        self._pause_ms = 0 if size <= SMALL_ENOUGH else size // ASSIGNED_PER_MS
        return epoch, targets[self._member_id]

    def _commit(self, following: CurrentAssignment) -> None:
        consumer_groups = self._groups.consumer_groups
        self._groups.write_in_batches(self._records)
        group = consumer_groups.groups[self._group.group_id]
        group.image_version = self._groups.node.image.version
        if self._pause_ms:
            group.assign_after_ms = self._groups.node.now_ms + self._pause_ms
        member = group.members[self._member_id]
        consumer_groups.show_alive(group, member)
        if following != self._current:
            consumer_groups.watch_revocation(group, member)
