"""The replies that may come long after their request: to JoinGroup and SyncGroup."""

from __future__ import annotations

from gapless.core.contract import Request
from gapless.core.groups.group import Group, Member
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import JoinGroupResponse, SyncGroupResponse

FIRST_VERSION_WITH_NULL_PROTOCOL = 7


def joined(request: Request, group: Group, member: Member) -> JoinGroupResponse:
    """The generation that a member is part of; the leader also gets to know the others."""
    leads = group.leader == member.member_id
    return join_reply(
        request,
        ErrorCode.NONE,
        member.member_id,
        group=group,
        members=_members(group) if leads else [],
    )


def kept_static_place(
    request: Request, group: Group, member: Member, former_leader: str | None
) -> JoinGroupResponse:
    """A static member came back into a stable group: nobody has to rebalance, nothing is assigned anew.

    From version 9 a leader can be told not to assign. Before, it must not learn that it leads: it is given
    the id that the leader had so far.
    """
    if request.header.api_version < 9:
        return join_reply(request, ErrorCode.NONE, member.member_id, group=group, leader=former_leader)
    leads = group.leader == member.member_id
    return join_reply(
        request,
        ErrorCode.NONE,
        member.member_id,
        group=group,
        members=_members(group) if leads else [],
        skip_assignment=leads,
    )


def join_reply(
    request: Request,
    error: ErrorCode,
    member_id: str = "",
    *,
    group: Group | None = None,
    members: list[JoinGroupResponse.JoinGroupResponseMember] | None = None,
    leader: str | None = None,
    skip_assignment: bool = False,
) -> JoinGroupResponse:
    """A reply to JoinGroup; `group` is given if it tells a generation."""
    protocol = None if group is None else group.protocol
    if protocol is None and request.header.api_version < FIRST_VERSION_WITH_NULL_PROTOCOL:
        protocol = ""
    return JoinGroupResponse(
        throttle_time_ms=0,
        error_code=int(error),
        generation_id=-1 if group is None else group.generation,
        protocol_type=None if group is None else group.protocol_type,
        protocol_name=protocol,
        leader=leader or (group.leader if group is not None else None) or "",
        skip_assignment=skip_assignment,
        member_id=member_id,
        members=members or [],
    )


def _members(group: Group) -> list[JoinGroupResponse.JoinGroupResponseMember]:
    return [
        JoinGroupResponse.JoinGroupResponseMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            metadata=member.protocols[group.protocol or ""],
        )
        for member in group.members.values()
    ]


def synced(group: Group, member: Member) -> SyncGroupResponse:
    """What the leader has assigned to a member."""
    return SyncGroupResponse(
        throttle_time_ms=0,
        error_code=0,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        assignment=member.assignment,
    )


def sync_failed(error: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(
        throttle_time_ms=0, error_code=int(error), protocol_type=None, protocol_name=None, assignment=b""
    )


def coordinator_error(error: ErrorCode) -> ErrorCode:
    """What clients are told if a record could not be committed: to look for the coordinator again."""
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if error is ErrorCode.REQUEST_TIMED_OUT else error
