"""How a client comes to its share of a group's partitions: by either protocol of Kafka, or by hand.

`enter` returns a share that lasts until its `over` is kept; `stay` is the heartbeat meanwhile. Between two
shares everything is given back (eager rebalances), so a share is all that a member has in one generation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from struct import pack
from typing import Any, ClassVar
from uuid import UUID

from gapless.simulator.clients.client import GROUP_KEY, Client
from gapless.simulator.clients.process import Part, Process, Promise
from gapless.simulator.history import Owned, Place
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)

SESSION_MS = 1_500
REBALANCE_MS = 2_000
HEARTBEAT_MS = 400
LOOKS_EVERY = 4
"""After how many heartbeats a leader sees whether the topic has more partitions."""
PATIENCE_MS = REBALANCE_MS + 1_000
"""How long to wait for the others to join."""
PURPOSE = "group"
GONE = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)
"""Answers after which a member is none any more."""
JOINING, LEAVING, LEAVING_FOR_A_WHILE = 0, -1, -2


@dataclass(slots=True, eq=False)
class Share:
    """A client's partitions in one generation."""

    member_id: str
    generation: int
    places: list[Place]
    over: Promise = field(default_factory=Promise)


class Membership(ABC):
    """A client's part in a group."""

    by_hand: ClassVar[bool] = False

    def __init__(self, client: Client, group: str, topic: str, instance_id: str | None = None) -> None:
        """`instance_id` is a static member's, which outlives its processes (KIP-345)."""
        self._client = client
        self.group = group
        self.topic = topic
        self.instance_id = instance_id
        self.member_id = ""

    @abstractmethod
    def enter(self) -> Part:
        """Take part: returns a share."""

    @abstractmethod
    def stay(self, share: Share) -> Process:
        """Show itself until the share is over."""

    @abstractmethod
    def leave(self) -> Part:
        """Say good-bye; one try."""

    def forget(self) -> None:
        """A new process begins, which knows nothing."""
        self.member_id = ""

    def _ask(self, key: ApiKey, version: int, body: Any, timeout_ms: int = PATIENCE_MS) -> Part:
        """Ask the coordinator; the answer, if any, and the error."""
        client = self._client
        broker = yield from client.coordinator(GROUP_KEY, self.group)
        answer = yield client.ask(broker, key, version, body, PURPOSE, timeout_ms)
        error = ErrorCode.REQUEST_TIMED_OUT if answer is None else ErrorCode(answer.error_code)
        if answer is None or error in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            client.forget_coordinator(GROUP_KEY, self.group)
        return answer, error

    def _owns(self, share: Share) -> Share:
        history = self._client.history
        who = self.instance_id or share.member_id
        history.owned += [Owned(self.group, share.generation, who, place) for place in share.places]
        names = ", ".join(f"{topic}-{partition}" for topic, partition in share.places)
        history.say(
            self._client.name, f"has {names or 'nothing'} in generation {share.generation} of {self.group}"
        )
        return share


class Classic(Membership):
    """The protocol of JoinGroup and SyncGroup: a member that leads shares out."""

    _places: list[Place] | None = None
    """What it has shared out, if it leads."""

    def enter(self) -> Part:
        """See `Membership`."""
        tries = 0
        while True:
            joined, error = yield from self._ask(ApiKey.JOIN_GROUP, 9, self._join_request())
            if error is ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = joined.member_id
                continue
            if not error:
                self.member_id = joined.member_id
                share = yield from self._sync(joined)
                if share is not None:
                    return self._owns(share)
            elif error in GONE:
                self.forget()
            yield self._client.back_off(tries)
            tries += 1

    def _join_request(self) -> JoinGroupRequest:
        topic = self.topic.encode()
        subscription = pack(">hih", 0, 1, len(topic)) + topic + pack(">i", -1)
        return JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=subscription)],
            reason=None,
        )

    def _sync(self, joined: Any) -> Part:
        shares: dict[str, list[int]] = {}
        self._places = None
        if joined.leader == joined.member_id:
            self._places = yield from self._client.places_of(self.topic)
            if joined.skip_assignment:  # it has come back; what it shared out before, it does not know
                self._places = []
            else:
                shares = _shared_out(self._places, sorted(member.member_id for member in joined.members))
        assignment = SyncGroupRequest.SyncGroupRequestAssignment
        body = SyncGroupRequest(
            group_id=self.group,
            generation_id=joined.generation_id,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocol_name=joined.protocol_name,
            assignments=[
                assignment(member_id=member_id, assignment=bytes(partitions))
                for member_id, partitions in shares.items()
            ],
        )
        answer, error = yield from self._ask(ApiKey.SYNC_GROUP, 5, body)
        if error:
            if error in GONE:
                self.forget()
            return None
        places = [(self.topic, partition) for partition in bytes(answer.assignment)]
        return Share(self.member_id, joined.generation_id, places)

    def stay(self, share: Share) -> Process:
        """See `Membership`."""
        body = HeartbeatRequest(
            group_id=self.group,
            generation_id=share.generation,
            member_id=share.member_id,
            group_instance_id=self.instance_id,
        )
        beats = 0
        while not share.over.done:
            yield HEARTBEAT_MS
            _, error = yield from self._ask(ApiKey.HEARTBEAT, 4, body, SESSION_MS)
            if error in GONE:
                self.forget()
            if error in (*GONE, ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS):
                share.over.keep()
            beats += 1
            if self._places is not None and not beats % LOOKS_EVERY:
                places = yield from self._client.places_of(self.topic)
                if places != self._places:
                    share.over.keep()  # it joins again, and so does everybody

    def leave(self) -> Part:
        """See `Membership`. A static member says nothing: it may be back before its session ends."""
        if self.instance_id is not None:
            self.forget()
            return
        member = LeaveGroupRequest.MemberIdentity(
            member_id=self.member_id, group_instance_id=None, reason=None
        )
        body = LeaveGroupRequest(group_id=self.group, members=[member])
        yield from self._ask(ApiKey.LEAVE_GROUP, 5, body)
        self.forget()


def _shared_out(places: Iterable[Place], member_ids: list[str]) -> dict[str, list[int]]:
    shares: dict[str, list[int]] = {member_id: [] for member_id in member_ids}
    for turn, (_, partition) in enumerate(places):
        shares[member_ids[turn % len(member_ids)]].append(partition)
    return shares


class Newer(Membership):
    """The protocol of KIP-848: the coordinator shares out, and heartbeats carry everything."""

    def __init__(self, client: Client, group: str, topic: str, instance_id: str | None = None) -> None:
        super().__init__(client, group, topic, instance_id)
        self._epoch = JOINING
        self._assigned: list[tuple[UUID, int]] = []
        self.forget()

    def forget(self) -> None:
        """See `Membership`."""
        self.member_id = str(UUID(int=self._client.random.getrandbits(128), version=4))
        self._epoch = JOINING
        self._assigned = []

    def enter(self) -> Part:
        """See `Membership`."""
        tries = 0
        while True:
            changed, error = yield from self._beat()
            if not error and not changed and self._epoch > JOINING:
                places = [(self.topic, partition) for _, partition in self._assigned]
                return self._owns(Share(self.member_id, self._epoch, places))
            if error:
                yield self._client.back_off(tries)
                tries += 1

    def _beat(self) -> Part:
        """One heartbeat that tells all; whether anything is new, and the error."""
        by_topic: dict[UUID, list[int]] = {}
        for topic_id, partition in self._assigned:
            by_topic.setdefault(topic_id, []).append(partition)
        told = ConsumerGroupHeartbeatRequest.TopicPartitions
        body = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self._epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=REBALANCE_MS,
            subscribed_topic_names=[self.topic],
            topic_partitions=[
                told(topic_id=topic_id, partitions=partitions) for topic_id, partitions in by_topic.items()
            ],
        )
        before = (self._epoch, self._assigned)
        answer, error = yield from self._ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, body, SESSION_MS)
        if error in (*GONE, ErrorCode.FENCED_MEMBER_EPOCH):
            self._epoch, self._assigned = JOINING, []
        elif not error:
            self._epoch = answer.member_epoch
            if answer.assignment is not None:
                self._assigned = [
                    (topic.topic_id, partition)
                    for topic in answer.assignment.topic_partitions
                    for partition in topic.partitions
                ]
        return (self._epoch, self._assigned) != before, error

    def stay(self, share: Share) -> Process:
        """See `Membership`."""
        while not share.over.done:
            yield HEARTBEAT_MS
            changed, _ = yield from self._beat()
            if changed:
                share.over.keep()

    def leave(self) -> Part:
        """See `Membership`."""
        body = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=LEAVING if self.instance_id is None else LEAVING_FOR_A_WHILE,
            instance_id=self.instance_id,
        )
        yield from self._ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, body)
        self.forget()


class ByHand(Membership):
    """No members: whoever runs has all partitions, and has to see to it that nobody else does."""

    by_hand = True

    def enter(self) -> Part:
        """See `Membership`."""
        places = yield from self._client.places_of(self.topic)
        return Share("", -1, places)

    def stay(self, share: Share) -> Process:
        """See `Membership`."""
        yield 0

    def leave(self) -> Part:
        """See `Membership`."""
        yield 0


MEMBERSHIPS: dict[str, type[Membership]] = {"classic": Classic, "newer": Newer, "by-hand": ByHand}
