"""JoinGroup: who may come in, under which id, and whether the others have to be called together for it.

A newcomer is first given an id and asked to come back with it (from version 4), so that a client whose reply
was lost does not leave a ghost behind. A static member (one with an instance id of its own) that was
restarted takes its old place, and its former self is fenced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.core.contract import Request
from gapless.core.groups.group import Group, GroupState, Member, Protocols
from gapless.core.groups.held import MAX_PENDING_JOINS
from gapless.core.groups.rebalance import (
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    complete_join,
    drop,
    fence,
    is_alive,
    rebalance_or_complete,
)
from gapless.core.groups.replies import coordinator_error, join_reply, joined, kept_static_place
from gapless.core.shard import CoordinatorError
from gapless.wire.errors import ErrorCode
from gapless.wire.group_records import MAX_STRING_BYTES
from gapless.wire.messages import JoinGroupRequest, JoinGroupResponse

if TYPE_CHECKING:
    from gapless.core.groups.state import GroupsState

FIRST_VERSION_WITH_ID_FIRST = 4
CLIENT_ID_CHARS_IN_MEMBER_ID = 255
RECORD_ROOM_BYTES = 1024
"""For what a group's record says besides its members."""


class _Join:
    """One request to join, and what it says in the words of the rules."""

    def __init__(self, groups: GroupsState, request: Request) -> None:
        body: JoinGroupRequest = request.body
        self.groups = groups
        self.request = request
        self.group_id = body.group_id
        self.member_id = body.member_id
        self.instance_id: str | None = body.group_instance_id
        self.client_id = request.header.client_id or ""
        self.protocol_type = body.protocol_type
        self.protocols: Protocols = {}
        for protocol in body.protocols:
            self.protocols.setdefault(protocol.name, bytes(protocol.metadata))
        self.session_timeout_ms = body.session_timeout_ms
        version = request.header.api_version
        self.rebalance_timeout_ms = body.session_timeout_ms if version == 0 else body.rebalance_timeout_ms

    def answer(self, message: JoinGroupResponse) -> None:
        """Tell the client; not before what it rests on is committed."""
        self.groups.shard.answer(
            self.request,
            message,
            failed=lambda error: join_reply(self.request, coordinator_error(error), self.member_id),
        )

    def refuse(self, error: ErrorCode, member_id: str | None = None) -> None:
        told = self.member_id if member_id is None else member_id
        self.groups.node.reply(self.request, join_reply(self.request, error, told))

    def check_strings(self) -> None:
        """Everything that a record may have to hold must fit into one."""
        texts = (self.instance_id or "", self.protocol_type, *self.protocols)
        if any(len(text.encode()) > MAX_STRING_BYTES // 2 for text in texts):
            raise CoordinatorError(ErrorCode.INVALID_REQUEST)

    def new_member_id(self) -> str:
        name = self.client_id[:CLIENT_ID_CHARS_IN_MEMBER_ID] if self.instance_id is None else self.instance_id
        return f"{name}-{self.groups.node.new_uuid()}"

    def as_member(self, member_id: str) -> Member:
        return Member(
            member_id=member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.request.host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            protocols=self.protocols,
            is_new=True,
            joining=self.request,
        )


def join(groups: GroupsState, request: Request) -> None:
    """Handle a request to join; it is answered now, or when the group's next generation is known."""
    asked = _Join(groups, request)
    try:
        _check_timeout(asked)
        asked.check_strings()
        group = _find_or_create(asked)
        if not _has_room(groups, group, asked.member_id):
            _turn_away(asked, group)
        elif not group.supports(asked.protocol_type, asked.protocols):
            asked.refuse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif not asked.member_id:
            _join_as_stranger(asked, group)
        else:
            _join_with_id(asked, group)
    except CoordinatorError as error:
        asked.refuse(error.code)


def _check_timeout(asked: _Join) -> None:
    settings = asked.groups.node.settings
    shortest = settings.get("group.min.session.timeout.ms")
    longest = settings.get("group.max.session.timeout.ms")
    if not shortest <= asked.session_timeout_ms <= longest:
        raise CoordinatorError(ErrorCode.INVALID_SESSION_TIMEOUT)


def _find_or_create(asked: _Join) -> Group:
    group = asked.groups.groups.get(asked.group_id)
    if group is not None:
        return group
    newer = asked.groups.consumer_groups.get(asked.group_id)
    if newer is not None and newer.members:
        raise CoordinatorError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if asked.member_id:
        raise CoordinatorError(ErrorCode.UNKNOWN_MEMBER_ID)
    if not asked.protocol_type or not asked.protocols:
        raise CoordinatorError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return asked.groups.create_group(asked.group_id)


def _has_room(groups: GroupsState, group: Group, member_id: str) -> bool:
    max_size = groups.node.settings.get("group.max.size")
    member = group.members.get(member_id)
    if group.state is GroupState.EMPTY:
        return True
    if group.state is GroupState.PREPARING:
        return (member is not None and member.joining is not None) or group.joined < max_size
    return member is not None or len(group.members) < max_size


def _check_fits(asked: _Join, group: Group, more_bytes: int) -> None:
    """A generation must fit into one record: who would make it too large is not let in."""
    limit_bytes = asked.groups.shard.partition.config.max_message_bytes
    if group.stored_bytes + more_bytes > limit_bytes - RECORD_ROOM_BYTES:
        raise CoordinatorError(ErrorCode.GROUP_MAX_SIZE_REACHED)


def _turn_away(asked: _Join, group: Group) -> None:
    group.remove_pending(asked.member_id)
    member = group.members.get(asked.member_id)
    if member is not None:
        drop(asked.groups, group, member)
    asked.refuse(ErrorCode.GROUP_MAX_SIZE_REACHED, "")


# --------------------------------------------------------------------------------------------- newcomers


def _join_as_stranger(asked: _Join, group: Group) -> None:
    member_id = asked.new_member_id()
    former = group.members.get(group.static_ids.get(asked.instance_id or "", ""))
    if asked.instance_id is not None and former is not None:
        _take_static_place(asked, group, former, member_id)
        return
    asked.groups.check_room()
    if asked.instance_id is None and asked.request.header.api_version >= FIRST_VERSION_WITH_ID_FIRST:
        _check_fits(asked, group, asked.as_member(member_id).stored_bytes)
        _give_id(asked, group, member_id)
        return
    _come_in(asked, group, member_id)


def _give_id(asked: _Join, group: Group, member_id: str) -> None:
    groups = asked.groups
    if len(group.pending_joins) >= MAX_PENDING_JOINS:
        group.remove_pending(next(iter(group.pending_joins)))
    due_ms = groups.node.now_ms + asked.session_timeout_ms
    group.add_pending(
        member_id, groups.node.timers.at(due_ms, lambda: _never_came_back(groups, group, member_id))
    )
    asked.answer(join_reply(asked.request, ErrorCode.MEMBER_ID_REQUIRED, member_id))


def _never_came_back(groups: GroupsState, group: Group, member_id: str) -> None:
    group.remove_pending(member_id)
    if group.state is GroupState.PREPARING and group.all_joined and not group.initial:
        complete_join(groups, group)


def _come_in(asked: _Join, group: Group, member_id: str) -> None:
    group.remove_pending(member_id)
    member = asked.as_member(member_id)
    _check_fits(asked, group, member.stored_bytes)
    group.member_added = group.initial
    group.add(member, asked.protocol_type)
    is_alive(asked.groups, group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
    rebalance_or_complete(asked.groups, group)


# ----------------------------------------------------------------------------------------- known members


def _join_with_id(asked: _Join, group: Group) -> None:
    if asked.member_id in group.pending_joins:
        if asked.instance_id is not None:
            raise CoordinatorError(ErrorCode.UNKNOWN_SERVER_ERROR)
        asked.groups.check_room()
        _come_in(asked, group, asked.member_id)
        return
    member = group.find(asked.member_id, asked.instance_id)
    same = list(member.protocols.items()) == list(asked.protocols.items())
    leads = group.leader == member.member_id
    nothing_new = same and (
        group.state is GroupState.COMPLETING or (group.state is GroupState.STABLE and not leads)
    )
    if nothing_new:
        # Its reply was lost, or it has not heard yet: the generation that it is part of.
        is_alive(asked.groups, group, member)
        asked.answer(joined(asked.request, group, member))
    else:
        _check_growth(asked, group, member)
        _join_again(asked, group, member)
        rebalance_or_complete(asked.groups, group)


def _check_growth(asked: _Join, group: Group, member: Member) -> None:
    """Whether there is room for all that a member now says of itself."""
    if sum(map(len, asked.protocols.values())) > sum(map(len, member.protocols.values())):
        asked.groups.check_room()
        _check_fits(asked, group, max(map(len, asked.protocols.values())))


def _join_again(asked: _Join, group: Group, member: Member) -> None:
    group.update(member, asked.protocols, asked.rebalance_timeout_ms, asked.session_timeout_ms)
    if member.joining is not None:  # on a connection that it has given up
        abandoned = join_reply(member.joining, ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
        asked.groups.node.reply(member.joining, abandoned)
    group.set_joining(member, asked.request)


def _take_static_place(asked: _Join, group: Group, former: Member, member_id: str) -> None:
    """A static member was restarted. In a stable group its place is kept, and nobody notices."""
    groups = asked.groups
    _check_growth(asked, group, former)
    if group.state is GroupState.STABLE:
        group.update(former, asked.protocols, asked.rebalance_timeout_ms, asked.session_timeout_ms)
        if group.choose_protocol() == group.protocol:
            _keep_place(asked, group, former, member_id)
            return
    member = group.replace(former, member_id)
    fence(groups, former)
    _join_again(asked, group, member)
    is_alive(groups, group, member)
    rebalance_or_complete(groups, group)


def _keep_place(asked: _Join, group: Group, former: Member, member_id: str) -> None:
    groups = asked.groups
    former_leader = group.leader
    assignments = {member.member_id: member.assignment for member in group.members.values()}
    value = group.as_value(assignments, group.state_since_ms)
    members = [
        stored._replace(member_id=member_id) if stored.member_id == former.member_id else stored
        for stored in value.members
    ]
    leader = member_id if former_leader == former.member_id else former_leader
    groups.write_group(group.group_id, value._replace(leader=leader, members=tuple(members)))
    fence(groups, former)
    if former.member_id in group.unsynced:
        del group.unsynced[former.member_id]
        group.unsynced[member_id] = None
    member = group.members[member_id]
    group.update(member, asked.protocols, asked.rebalance_timeout_ms, asked.session_timeout_ms)
    is_alive(groups, group, member)
    asked.answer(kept_static_place(asked.request, group, member, former_leader))
