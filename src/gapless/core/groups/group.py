"""One consumer group of the classic protocol: its members, its state, and what can be told from them alone.

A generation becomes durable when it is complete (`Stable`) or empty; `adopt` takes over such a record, a new
one as well as one read back. What happens in between (who joins, who is awaited) lives here only: a crash
takes the group back to its last durable generation, and its members join again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from gapless.core.contract import Request
from gapless.core.groups.held import MEMBER_BYTES, NAME_BYTES, PENDING_JOIN_BYTES, Held
from gapless.core.shard import CoordinatorError
from gapless.core.timers import Timer
from gapless.wire.errors import ErrorCode
from gapless.wire.group_records import GroupValue, MemberValue, subscribed_topics

CONSUMER_PROTOCOL = "consumer"

MEMBER_RECORD_BYTES = 24
"""Lengths and timeouts of one member in its group's record."""

Protocols = dict[str, bytes]
"""The assignment protocols that a member speaks, the one it likes best first, with its metadata for each."""


class GroupState(StrEnum):
    """Kafka's names. A group that is gone counts as Dead; there is no object for it."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True, eq=False)
class Member:
    """One member. `joining` and `syncing` are its requests that wait for the group."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    joining: Request | None = None
    syncing: Request | None = None
    session: Timer | None = None

    @property
    def size_bytes(self) -> int:
        """About what it costs to keep this member."""
        metadata = sum(NAME_BYTES + len(name) + len(data) for name, data in self.protocols.items())
        return MEMBER_BYTES + len(self.client_id) + 2 * len(self.member_id) + metadata + len(self.assignment)

    @property
    def stored_bytes(self) -> int:
        """What this member may take in its group's record, without its assignment."""
        names = (self.member_id, self.instance_id or "", self.client_id, self.client_host)
        metadata = max(map(len, self.protocols.values()), default=0)
        return MEMBER_RECORD_BYTES + sum(len(name.encode()) for name in names) + metadata


class Group:
    """One group. Methods keep the sums right; rules that need clocks or the log are in `rebalance`."""

    def __init__(self, group_id: str, held: Held, now_ms: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.state_since_ms = now_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static_ids: dict[str, str] = {}
        self.subscribed: frozenset[str] | None = None
        # Only while the group is being formed:
        self.pending_joins: dict[str, Timer] = {}
        self.unsynced: dict[str, None] = {}
        self.joined = 0
        self.stored_bytes = 0
        self.initial = False
        self.member_added = False
        self.join_timer: Timer | None = None
        self.sync_timer: Timer | None = None
        self._speakers: dict[str, int] = {}
        self._held = held

    # --------------------------------------------------------------------------------------- durable state

    def adopt(self, value: GroupValue) -> None:
        """Take over a durable generation. Members that are known here already keep their sessions."""
        known = self.members
        self.members = {}
        for stored in value.members:
            member = known.pop(stored.member_id, None)
            if member is None:
                member = _restored(stored, value.protocol or "")
                self._held.grow(member.size_bytes)
            else:
                self._held.grow(len(stored.assignment) - len(member.assignment))
            member.assignment = stored.assignment
            self.members[stored.member_id] = member
        for replaced in known.values():
            self._held.grow(-replaced.size_bytes)
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol = value.protocol
        self.leader = value.leader
        self.enter(GroupState.STABLE if value.members else GroupState.EMPTY, value.state_timestamp_ms)
        self._count_again()

    def _count_again(self) -> None:
        self._speakers = {}
        self.stored_bytes = 0
        self.static_ids = {}
        for member in self.members.values():
            self._count(member, 1)
            if member.instance_id is not None:
                self.static_ids[member.instance_id] = member.member_id
        self.joined = sum(member.joining is not None for member in self.members.values())
        self._note_subscribed()

    def as_value(self, assignments: dict[str, bytes], now_ms: int) -> GroupValue:
        """The record of the present generation with these assignments."""
        return GroupValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            state_timestamp_ms=now_ms,
            members=tuple(
                MemberValue(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.rebalance_timeout_ms,
                    member.session_timeout_ms,
                    member.protocols[self.protocol or ""],
                    assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ),
        )

    # --------------------------------------------------------------------------------------------- members

    def enter(self, state: GroupState, now_ms: int) -> None:
        self.state = state
        self.state_since_ms = now_ms

    def add(self, member: Member, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
            self.leader = member.member_id
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.member_id
        self._count(member, 1)
        self.joined += member.joining is not None
        self._held.grow(member.size_bytes)

    def update(self, member: Member, protocols: Protocols, rebalance_ms: int, session_ms: int) -> None:
        """What a member says when it joins again."""
        self._held.grow(-member.size_bytes)
        self._count(member, -1)
        member.protocols = protocols
        member.rebalance_timeout_ms = rebalance_ms
        member.session_timeout_ms = session_ms
        self._count(member, 1)
        self._held.grow(member.size_bytes)

    def remove(self, member: Member) -> None:
        """A member leaves; if it led, the one that has been here for longest does now."""
        del self.members[member.member_id]
        if member.instance_id is not None:
            del self.static_ids[member.instance_id]
        self._count(member, -1)
        self.joined -= member.joining is not None
        self.unsynced.pop(member.member_id, None)
        self._held.grow(-member.size_bytes)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def replace(self, member: Member, member_id: str) -> Member:
        """A static member under a new id, in the old one's place."""
        successor = replace(
            member, member_id=member_id, is_new=False, joining=None, syncing=None, session=None
        )
        leads = self.leader == member.member_id
        self.remove(member)
        self.add(successor, self.protocol_type or "")
        if leads:
            self.leader = member_id
        return successor

    def set_joining(self, member: Member, request: Request | None) -> None:
        self.joined += (request is not None) - (member.joining is not None)
        member.joining = request

    def add_pending(self, member_id: str, timer: Timer) -> None:
        """An id was given out; whoever got it is to join with it before the timer ends."""
        self.pending_joins[member_id] = timer
        self._held.grow(PENDING_JOIN_BYTES + len(member_id))

    def remove_pending(self, member_id: str) -> bool:
        """Whether this id was given out and not used yet."""
        timer = self.pending_joins.pop(member_id, None)
        if timer is None:
            return False
        timer.cancel()
        self._held.grow(-PENDING_JOIN_BYTES - len(member_id))
        return True

    def _count(self, member: Member, change: int) -> None:
        self.stored_bytes += change * member.stored_bytes
        speakers = self._speakers
        for name in member.protocols:
            speakers[name] = speakers.get(name, 0) + change
            if not speakers[name]:
                del speakers[name]

    def find(self, member_id: str, instance_id: str | None) -> Member:
        """The member that a request speaks for; raises what its sender must be told if it may not."""
        if instance_id is not None:
            current = self.static_ids.get(instance_id)
            if current is None:
                raise CoordinatorError(ErrorCode.UNKNOWN_MEMBER_ID)
            if current != member_id:
                raise CoordinatorError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise CoordinatorError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    # ------------------------------------------------------------------------------------- what members say

    @property
    def all_joined(self) -> bool:
        return self.joined == len(self.members) and not self.pending_joins

    @property
    def rebalance_timeout_ms(self) -> int:
        """The most patient member decides."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a newcomer with these protocols can work with everybody here."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type and protocols)
        everybody = len(self.members)
        return self.protocol_type == protocol_type and any(
            self._speakers.get(name, 0) == everybody for name in protocols
        )

    def choose_protocol(self) -> str:
        """Each member votes for what it likes best of the protocols that all speak; ties go to the first."""
        everybody = len(self.members)
        votes: dict[str, int] = {}
        for member in self.members.values():
            vote = next(name for name in member.protocols if self._speakers[name] == everybody)
            votes[vote] = votes.get(vote, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is a member who has joined; False if nobody has."""
        leader = self.members.get(self.leader or "")
        if leader is not None and leader.joining is not None:
            return True
        for member in self.members.values():
            if member.joining is not None:
                self.leader = member.member_id
                return True
        return False

    def begin_generation(self, now_ms: int) -> None:
        """All who take part are known: the leader is to tell what each of them does."""
        self.generation += 1
        self.protocol = self.choose_protocol()
        self._note_subscribed()
        self.enter(GroupState.COMPLETING, now_ms)
        self.unsynced = dict.fromkeys(self.members)

    def subscribes_to(self, topic: str) -> bool:
        """Whether a member may want this topic; a consumer group that does not tell may want any."""
        if self.subscribed is None:
            return self.protocol_type == CONSUMER_PROTOCOL
        return topic in self.subscribed

    def _note_subscribed(self) -> None:
        self._held.grow(-NAME_BYTES * len(self.subscribed or ()))
        self.subscribed = self._subscribed_topics()
        self._held.grow(NAME_BYTES * len(self.subscribed or ()))

    def forget(self) -> None:
        """The group is no longer kept here."""
        self._held.grow(-NAME_BYTES * len(self.subscribed or ()))
        for member in self.members.values():
            self._held.grow(-member.size_bytes)
        self.members.clear()
        self.subscribed = None

    def _subscribed_topics(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        if not self.members:
            return frozenset()
        topics: list[str] = []
        for member in self.members.values():
            told = subscribed_topics(member.protocols.get(self.protocol or "", b""))
            if told is None:
                return None
            topics += told
        return frozenset(topics)


def _restored(stored: MemberValue, protocol: str) -> Member:
    return Member(
        member_id=stored.member_id,
        instance_id=stored.instance_id,
        client_id=stored.client_id,
        client_host=stored.client_host,
        rebalance_timeout_ms=stored.rebalance_timeout_ms,
        session_timeout_ms=stored.session_timeout_ms,
        protocols={protocol: stored.subscription},
        assignment=stored.assignment,
    )
