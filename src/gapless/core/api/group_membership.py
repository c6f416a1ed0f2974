"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: the life of a group's member.

Version notes: JoinGroup 1 has a rebalance timeout, 4 gives newcomers an id first, 5 (Sync 3, Heartbeat 3,
Leave 3) knows static members, 7 names the protocol type, 8 a reason, 9 may tell a leader not to assign.
LeaveGroup 3 takes many members at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gapless.core.api.registry import handles
from gapless.core.contract import Request
from gapless.core.coordinators import CONSUMER_OFFSETS, find_shard
from gapless.core.groups import membership
from gapless.core.groups.join import join
from gapless.core.groups.replies import coordinator_error, join_reply, sync_failed
from gapless.core.groups.state import GroupsState, groups_of
from gapless.core.shard import CoordinatorError
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.group_records import MAX_STRING_BYTES
from gapless.wire.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
)

if TYPE_CHECKING:
    from gapless.core.node import Node


def find_groups(node: Node, group_id: str, *, may_be_unnamed: bool = False) -> GroupsState:
    """The groups among which this one is coordinated; raises `CoordinatorError`."""
    if not (group_id or may_be_unnamed) or len(group_id.encode()) > MAX_STRING_BYTES:
        raise CoordinatorError(ErrorCode.INVALID_GROUP_ID)
    return groups_of(find_shard(node, CONSUMER_OFFSETS, group_id))


@handles(ApiKey.JOIN_GROUP, 0, 9)
def join_group(node: Node, request: Request) -> Any | None:
    body: JoinGroupRequest = request.body
    try:
        groups = find_groups(node, body.group_id)
    except CoordinatorError as error:
        return join_reply(request, error.code, body.member_id)
    join(groups, request)
    return None


@handles(ApiKey.SYNC_GROUP, 0, 5)
def sync_group(node: Node, request: Request) -> Any | None:
    body: SyncGroupRequest = request.body
    try:
        groups = find_groups(node, body.group_id)
    except CoordinatorError as error:
        return sync_failed(error.code)
    membership.sync(groups, request)
    return None


@handles(ApiKey.HEARTBEAT, 0, 4)
def heartbeat(node: Node, request: Request) -> HeartbeatResponse:
    body: HeartbeatRequest = request.body
    error = ErrorCode.NONE
    try:
        groups = find_groups(node, body.group_id)
        instance_id = body.group_instance_id
        membership.heartbeat(groups, body.group_id, body.member_id, instance_id, body.generation_id)
    except CoordinatorError as refusal:
        # While the group is being read back nobody's session runs: there is nothing to complain about.
        if refusal.code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            error = refusal.code
    return HeartbeatResponse(throttle_time_ms=0, error_code=int(error))


@handles(ApiKey.LEAVE_GROUP, 0, 5)
def leave_group(node: Node, request: Request) -> Any | None:
    body: LeaveGroupRequest = request.body
    one_only = request.header.api_version < 3
    leaving: list[tuple[str, str | None]] = (
        [(body.member_id, None)]
        if one_only
        else [(each.member_id, each.group_instance_id) for each in body.members]
    )
    try:
        groups = find_groups(node, body.group_id)
    except CoordinatorError as error:
        return _left(error.code)
    results = membership.leave(groups, body.group_id, leaving)
    reply = _left(results[0]) if one_only else _left(ErrorCode.NONE, leaving, results)
    groups.shard.answer(request, reply, failed=lambda error: _left(coordinator_error(error)))
    return None


def _left(
    error: ErrorCode,
    leaving: list[tuple[str, str | None]] | None = None,
    results: list[ErrorCode] | None = None,
) -> LeaveGroupResponse:
    return LeaveGroupResponse(
        throttle_time_ms=0,
        error_code=int(error),
        members=[
            LeaveGroupResponse.MemberResponse(
                member_id=member_id, group_instance_id=instance_id, error_code=int(result)
            )
            for (member_id, instance_id), result in zip(leaving or [], results or [], strict=True)
        ],
    )
