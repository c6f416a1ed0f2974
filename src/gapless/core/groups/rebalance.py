"""How a group finds its next generation: everybody joins, the leader assigns, and who is silent is dropped.

Preparing: all members are to join again, newcomers may. Completing: a generation is fixed, all wait for the
leader's assignment. Three clocks run: each member's session, one for the round of joins, one for the round of
syncs; the latter two allow what the most patient member asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gapless.core.groups.group import Group, GroupState, Member
from gapless.core.groups.replies import join_reply, joined, sync_failed
from gapless.core.timers import Timer
from gapless.wire.errors import ErrorCode
from gapless.wire.group_records import encode_group, encode_group_key

if TYPE_CHECKING:
    from gapless.core.groups.state import GroupsState

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""How long a newcomer may wait for its first generation; its client may have gone without a word."""


# --------------------------------------------------------------------------------------------- sessions


def is_alive(groups: GroupsState, group: Group, member: Member, timeout_ms: int | None = None) -> None:
    """A member has shown itself: its session begins anew."""
    due_ms = groups.node.now_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
    timer = member.session
    if timer is not None and timer.live and timer.due_ms <= due_ms:
        timer.put_off(due_ms)
        return
    stop(timer)
    member.session = groups.node.timers.at(due_ms, lambda: _session_ends(groups, group, member))


def _session_ends(groups: GroupsState, group: Group, member: Member) -> None:
    waits_for_us = member.joining is not None or member.syncing is not None
    if member.is_new or not waits_for_us:
        drop(groups, group, member)
        after_departure(groups, group)


def begin_sessions(groups: GroupsState) -> None:
    """After loading: members have their whole session to be heard of again."""
    max_size = groups.node.settings.get("group.max.size")
    for group in list(groups.groups.values()):
        for member in group.members.values():
            is_alive(groups, group, member)
        if len(group.members) > max_size:
            prepare(groups, group)


def stop(timer: Timer | None) -> None:
    if timer is not None:
        timer.cancel()


# ------------------------------------------------------------------------------------------- departures


def drop(groups: GroupsState, group: Group, member: Member) -> None:
    """Take a member out; whatever it waits for, it is a stranger now."""
    group.remove(member)
    _let_go(groups, member, ErrorCode.UNKNOWN_MEMBER_ID)


def _let_go(groups: GroupsState, member: Member, error: ErrorCode) -> None:
    stop(member.session)
    if member.joining is not None:
        groups.node.reply(member.joining, join_reply(member.joining, error, _told_id(member, error)))
        member.joining = None
    if member.syncing is not None:
        groups.node.reply(member.syncing, sync_failed(error))
        member.syncing = None


def _told_id(member: Member, error: ErrorCode) -> str:
    return "" if error is ErrorCode.UNKNOWN_MEMBER_ID else member.member_id


def fence(groups: GroupsState, member: Member) -> None:
    """Another process has taken a static member's place."""
    _let_go(groups, member, ErrorCode.FENCED_INSTANCE_ID)


def after_departure(groups: GroupsState, group: Group) -> None:
    """Members are gone: the others share their work, or stop waiting for them."""
    if group.state in (GroupState.STABLE, GroupState.COMPLETING):
        prepare(groups, group)
    elif group.state is GroupState.PREPARING and group.all_joined and not group.initial:
        complete_join(groups, group)


def dissolve(groups: GroupsState, group: Group, error: ErrorCode) -> None:
    """The group is no longer ours, or no longer there: nobody waits, no clock runs."""
    stop(group.join_timer)
    stop(group.sync_timer)
    for member_id in list(group.pending_joins):
        group.remove_pending(member_id)
    for member in group.members.values():
        _let_go(groups, member, error)
    group.forget()


# -------------------------------------------------------------------------------------- the round of joins


def rebalance_or_complete(groups: GroupsState, group: Group) -> None:
    """Somebody joined, or joined differently."""
    if group.state is not GroupState.PREPARING:
        prepare(groups, group)
    elif group.all_joined and not group.initial:
        complete_join(groups, group)


def prepare(groups: GroupsState, group: Group) -> None:
    """Call everybody to join. The first members of a group are given a moment to come together."""
    if group.state is GroupState.COMPLETING:
        _call_off_assignment(groups, group, ErrorCode.REBALANCE_IN_PROGRESS)
    stop(group.sync_timer)
    group.unsynced.clear()
    group.initial = group.state is GroupState.EMPTY
    group.enter(GroupState.PREPARING, groups.node.now_ms)
    if group.initial:
        delay_ms = groups.node.settings.get("group.initial.rebalance.delay.ms")
        remaining_ms = max(0, group.rebalance_timeout_ms - delay_ms)
        _join_timer(groups, group, delay_ms, lambda: _complete_initial(groups, group, delay_ms, remaining_ms))
    elif group.all_joined:
        complete_join(groups, group)
    else:
        _wait_for_joins(groups, group)


def _wait_for_joins(groups: GroupsState, group: Group) -> None:
    _join_timer(groups, group, group.rebalance_timeout_ms, lambda: complete_join(groups, group))


def _join_timer(groups: GroupsState, group: Group, delay_ms: int, action: Callable[[], None]) -> None:
    stop(group.join_timer)
    group.join_timer = groups.node.timers.at(groups.node.now_ms + max(0, delay_ms), action)


def _complete_initial(groups: GroupsState, group: Group, delay_ms: int, remaining_ms: int) -> None:
    """While newcomers keep arriving, wait for more of them, but no longer than a rebalance may take."""
    if not group.member_added or not remaining_ms:
        complete_join(groups, group)
        return
    group.member_added = False
    next_ms = min(groups.node.settings.get("group.initial.rebalance.delay.ms"), remaining_ms)
    left_ms = max(0, remaining_ms - delay_ms)
    _join_timer(groups, group, next_ms, lambda: _complete_initial(groups, group, next_ms, left_ms))


def complete_join(groups: GroupsState, group: Group) -> None:
    """The round of joins is over. Who has not joined is out, unless static: it may be restarting."""
    stop(group.join_timer)
    group.initial = group.member_added = False
    for member in list(group.members.values()):
        if member.joining is None and member.instance_id is None:
            drop(groups, group, member)
    if not group.members:
        _become_empty(groups, group)
    elif group.elect_joined_leader():
        _tell_generation(groups, group)
    else:
        _wait_for_joins(groups, group)


def _become_empty(groups: GroupsState, group: Group) -> None:
    now_ms = groups.node.now_ms
    value = group.as_value({}, now_ms)._replace(generation=group.generation + 1, protocol=None, leader=None)
    if not groups.write_unless_failing([(encode_group_key(group.group_id), encode_group(value))]):
        group.enter(GroupState.EMPTY, now_ms)


def _tell_generation(groups: GroupsState, group: Group) -> None:
    group.begin_generation(groups.node.now_ms)
    for member in group.members.values():
        if member.joining is not None:
            groups.node.reply(member.joining, joined(member.joining, group, member))
            group.set_joining(member, None)
        member.is_new = False
        is_alive(groups, group, member)
    timeout_ms = max(0, group.rebalance_timeout_ms)
    group.sync_timer = groups.node.timers.at(
        groups.node.now_ms + timeout_ms, lambda: _syncs_are_overdue(groups, group)
    )


# -------------------------------------------------------------------------------------- the round of syncs


def has_synced(group: Group, member: Member) -> None:
    """A member has asked for its assignment."""
    group.unsynced.pop(member.member_id, None)
    if not group.unsynced:
        stop(group.sync_timer)


def _syncs_are_overdue(groups: GroupsState, group: Group) -> None:
    for member_id in list(group.unsynced):
        drop(groups, group, group.members[member_id])
    prepare(groups, group)


def _call_off_assignment(groups: GroupsState, group: Group, error: ErrorCode) -> None:
    """The leader's assignment will not come, or could not be stored: whoever waits for it is told."""
    for member in group.members.values():
        groups.held.grow(-len(member.assignment))
        member.assignment = b""
        if member.syncing is not None:
            groups.node.reply(member.syncing, sync_failed(error))
            member.syncing = None
            is_alive(groups, group, member)


def restart_after_failed_sync(groups: GroupsState, group: Group, error: ErrorCode) -> None:
    """A generation could not be made durable."""
    _call_off_assignment(groups, group, error)
    prepare(groups, group)
