"""SyncGroup, Heartbeat and LeaveGroup: what members do between two rounds of joins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.core.contract import Request
from gapless.core.groups.group import Group, GroupState, Member
from gapless.core.groups.rebalance import (
    after_departure,
    drop,
    has_synced,
    is_alive,
    restart_after_failed_sync,
)
from gapless.core.groups.replies import coordinator_error, sync_failed, synced
from gapless.core.shard import CoordinatorError
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import SyncGroupRequest

if TYPE_CHECKING:
    from gapless.core.groups.state import GroupsState


# -------------------------------------------------------------------------------------------------- sync


def sync(groups: GroupsState, request: Request) -> None:
    """A member asks for its assignment; the leader's request brings the assignments of all."""
    body: SyncGroupRequest = request.body
    try:
        group = groups.groups.get(body.group_id)
        if group is None:
            raise CoordinatorError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = group.find(body.member_id, body.group_instance_id)
        _check_round(group, body)
    except CoordinatorError as error:
        groups.node.reply(request, sync_failed(error.code))
        return
    has_synced(group, member)
    if group.state is GroupState.STABLE:
        is_alive(groups, group, member)
        _answer(groups, group, member, request)
        return
    if member.syncing is not None:  # on a connection that it has given up
        groups.node.reply(member.syncing, sync_failed(ErrorCode.REBALANCE_IN_PROGRESS))
    member.syncing = request
    if group.leader == member.member_id:
        assignments = {each.member_id: bytes(each.assignment) for each in body.assignments}
        _assign(groups, group, assignments)


def _check_round(group: Group, body: SyncGroupRequest) -> None:
    if body.generation_id != group.generation:
        raise CoordinatorError(ErrorCode.ILLEGAL_GENERATION)
    if body.protocol_type not in (None, group.protocol_type) or body.protocol_name not in (
        None,
        group.protocol,
    ):
        raise CoordinatorError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if group.state is GroupState.PREPARING:
        raise CoordinatorError(ErrorCode.REBALANCE_IN_PROGRESS)


def _assign(groups: GroupsState, group: Group, assignments: dict[str, bytes]) -> None:
    """The generation is complete: write it down, then tell everybody who asked."""
    try:
        groups.write_group(group.group_id, group.as_value(assignments, groups.node.now_ms))
    except CoordinatorError as error:
        restart_after_failed_sync(groups, group, error.code)
        return
    for member in group.members.values():
        if member.syncing is not None:
            request, member.syncing = member.syncing, None
            is_alive(groups, group, member)
            _answer(groups, group, member, request)


def _answer(groups: GroupsState, group: Group, member: Member, request: Request) -> None:
    groups.shard.answer(
        request, synced(group, member), failed=lambda error: sync_failed(coordinator_error(error))
    )


# --------------------------------------------------------------------------------------------- heartbeat


def heartbeat(
    groups: GroupsState, group_id: str, member_id: str, instance_id: str | None, generation: int
) -> None:
    """A member is alive; raises what it must be told if there is something to tell."""
    group = groups.groups.get(group_id)
    if group is None:
        raise CoordinatorError(ErrorCode.UNKNOWN_MEMBER_ID)
    member = group.find(member_id, instance_id)
    if generation != group.generation:
        raise CoordinatorError(ErrorCode.ILLEGAL_GENERATION)
    is_alive(groups, group, member)
    if group.state is GroupState.PREPARING:
        raise CoordinatorError(ErrorCode.REBALANCE_IN_PROGRESS)


# ------------------------------------------------------------------------------------------------- leave


def leave(groups: GroupsState, group_id: str, leaving: list[tuple[str, str | None]]) -> list[ErrorCode]:
    """Members (by member and instance id) leave; one result each. The others rebalance once for all."""
    group = groups.groups.get(group_id)
    if group is None:
        return [ErrorCode.UNKNOWN_MEMBER_ID for _ in leaving]
    before = len(group.members)
    results = [_leave(groups, group, member_id, instance_id) for member_id, instance_id in leaving]
    if len(group.members) < before or group.state is GroupState.PREPARING:
        after_departure(groups, group)
    return results


def _leave(groups: GroupsState, group: Group, member_id: str, instance_id: str | None) -> ErrorCode:
    if not member_id and instance_id is not None:  # an administrator removes a static member
        member_id = group.static_ids.get(instance_id, "")
    if group.remove_pending(member_id):
        return ErrorCode.NONE
    try:
        drop(groups, group, group.find(member_id, instance_id))
    except CoordinatorError as error:
        return error.code
    return ErrorCode.NONE
