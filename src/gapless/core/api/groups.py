"""DescribeGroups, ListGroups and DeleteGroups: groups as an administrator sees them.

Version notes: DescribeGroups 4 tells instance ids, 6 says of a missing group that it is missing (before, that
it is dead). ListGroups 4 filters by state, 5 by type. DescribeGroups knows classic groups only; the others
have a request of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from gapless.core.api.group_membership import find_groups
from gapless.core.api.registry import handles
from gapless.core.contract import Request
from gapless.core.coordinators import CONSUMER_OFFSETS
from gapless.core.groups.answering import Part, answer_together
from gapless.core.groups.group import Group, GroupState, Member
from gapless.core.groups.state import GroupsState, groups_of
from gapless.core.shard import CoordinatorError, OwnRecord
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.group_records import group_tombstone, offset_tombstone
from gapless.wire.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)

if TYPE_CHECKING:
    from gapless.core.node import Node

NOT_ASKED = {31}
GROUP_OPERATIONS = {3, 6, 8, 10, 11}
CLASSIC = "classic"
CONSUMER = "consumer"
MISSING_IS_AN_ERROR_FROM = 6

Described = DescribeGroupsResponse.DescribedGroup
DescribedMember = Described.DescribedGroupMember
Deleted = DeleteGroupsResponse.DeletableGroupResult


# ---------------------------------------------------------------------------------------------- describe


@handles(ApiKey.DESCRIBE_GROUPS, 0, 6)
def describe_groups(node: Node, request: Request) -> Any | None:
    body: DescribeGroupsRequest = request.body
    answers: list[Described] = []
    parts: list[Part] = []
    for group_id in dict.fromkeys(body.groups):  # once each: a reply must not be larger than what is kept
        try:
            groups = find_groups(node, group_id, may_be_unnamed=True)
        except CoordinatorError as error:
            answers.append(_no_description(group_id, error.code))
            continue
        answer = _describe(groups, group_id, request)
        if body.include_authorized_operations and not answer.error_code:
            answer.authorized_operations = GROUP_OPERATIONS
        answers.append(answer)
        parts.append(Part(groups.shard, partial(_undo_description, answer)))
    return answer_together(node, request, DescribeGroupsResponse(throttle_time_ms=0, groups=answers), parts)


def _describe(groups: GroupsState, group_id: str, request: Request) -> Described:
    group = groups.groups.get(group_id)
    if group is None:
        if request.header.api_version >= MISSING_IS_AN_ERROR_FROM:
            why = "not found" if groups.consumer_groups.get(group_id) is None else "is not a classic group"
            return _no_description(group_id, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {why}.")
        return _no_description(group_id, ErrorCode.NONE, state=GroupState.DEAD)
    is_stable = group.state is GroupState.STABLE
    return Described(
        error_code=0,
        error_message=None,
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if is_stable else "",
        members=[_describe_member(group, member, is_stable) for member in group.members.values()],
        authorized_operations=NOT_ASKED,
    )


def _describe_member(group: Group, member: Member, is_stable: bool) -> DescribedMember:
    return DescribedMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.protocols[group.protocol or ""] if is_stable else b"",
        member_assignment=member.assignment,
    )


def _no_description(
    group_id: str, error: ErrorCode, message: str | None = None, state: GroupState | None = None
) -> Described:
    if state is None and error is ErrorCode.GROUP_ID_NOT_FOUND:
        state = GroupState.DEAD
    return Described(
        error_code=int(error),
        error_message=message,
        group_id=group_id,
        group_state="" if state is None else state.value,
        protocol_type="",
        protocol_data="",
        members=[],
        authorized_operations=NOT_ASKED,
    )


def _undo_description(answer: Described, error: ErrorCode) -> None:
    answer.error_code = int(error)
    answer.group_state = answer.protocol_type = answer.protocol_data = ""
    answer.members = []


# -------------------------------------------------------------------------------------------------- list


@handles(ApiKey.LIST_GROUPS, 0, 5)
def list_groups(node: Node, request: Request) -> ListGroupsResponse:
    """All groups that this broker coordinates, or those in the states asked for."""
    body: ListGroupsRequest = request.body
    states = {state.lower() for state in (body.states_filter or [])}
    types = {kind.lower() for kind in (body.types_filter or [])}
    listed: list[ListGroupsResponse.ListedGroup] = []
    for name, shard in node.shards.items():
        if name[0] != CONSUMER_OFFSETS:
            continue
        try:
            shard.check_ready()
        except CoordinatorError as error:
            if error.code is ErrorCode.NOT_COORDINATOR:
                continue
            return ListGroupsResponse(throttle_time_ms=0, error_code=int(error.code), groups=[])
        listed += [
            group
            for group in _all_listed(groups_of(shard))
            if (not states or group.group_state.lower() in states)
            and (not types or group.group_type in types)
        ]
    return ListGroupsResponse(throttle_time_ms=0, error_code=0, groups=listed)


def _all_listed(groups: GroupsState) -> Iterator[ListGroupsResponse.ListedGroup]:
    for group in groups.groups.values():
        yield _listed(group.group_id, group.protocol_type or "", group.state, CLASSIC)
    for newer in groups.consumer_groups.groups.values():
        yield _listed(newer.group_id, CONSUMER, newer.state, CONSUMER)


def _listed(group_id: str, protocol_type: str, state: StrEnum, kind: str) -> ListGroupsResponse.ListedGroup:
    return ListGroupsResponse.ListedGroup(
        group_id=group_id, protocol_type=protocol_type, group_state=state.value, group_type=kind
    )


# ------------------------------------------------------------------------------------------------ delete


@handles(ApiKey.DELETE_GROUPS, 0, 2)
def delete_groups(node: Node, request: Request) -> Any | None:
    """Delete groups without members, and all that they have committed."""
    body: DeleteGroupsRequest = request.body
    results: list[Deleted] = []
    parts: list[Part] = []
    for group_id in body.groups_names:
        result = Deleted(group_id=group_id, error_code=0)
        results.append(result)
        try:
            groups = find_groups(node, group_id, may_be_unnamed=True)
            groups.write_in_batches(_deletion(groups, group_id))
        except CoordinatorError as error:
            result.error_code = int(error.code)
            continue
        parts.append(Part(groups.shard, partial(_undo_deletion, result)))
    return answer_together(node, request, DeleteGroupsResponse(throttle_time_ms=0, results=results), parts)


def _deletion(groups: GroupsState, group_id: str) -> list[OwnRecord]:
    group = groups.groups.get(group_id)
    newer = groups.consumer_groups.get(group_id)
    if group is None and newer is None:
        raise CoordinatorError(ErrorCode.GROUP_ID_NOT_FOUND)
    if (group is not None and group.state is not GroupState.EMPTY) or (newer is not None and newer.members):
        raise CoordinatorError(ErrorCode.NON_EMPTY_GROUP)
    offsets = list(map(offset_tombstone, groups.offsets.keys(group_id)))
    if newer is not None:
        return [*offsets, *groups.consumer_groups.deletion(newer)]
    return [*offsets, group_tombstone(group_id)]


def _undo_deletion(result: Deleted, error: ErrorCode) -> None:
    result.error_code = int(error)
