"""Members of consumer groups: each reads its share, deals with what it reads, and then commits how far it is.

A member that stood still, or was cut off, goes on with what it has in hand, though others may have its share
by now: it finds out when it commits, or by its next heartbeat.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gapless.simulator.clients.client import GROUP_KEY
from gapless.simulator.clients.consumer import Consumer, Position
from gapless.simulator.clients.membership import MEMBERSHIPS, Share
from gapless.simulator.clients.process import Part, Process, Running
from gapless.simulator.history import Commit, Outcome, Place, Polled, Start
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import OffsetCommitRequest, OffsetFetchRequest

if TYPE_CHECKING:
    from gapless.simulator.scene import Scene

MAX_TRIES = 8
LONGEST_WORK_MS = 20
COMMIT_VERSION = 9
FETCH_VERSION = 9

# Answers to a commit after which it certainly is not stored, and the share is over.
LOST = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.FENCED_INSTANCE_ID,
    }
)

CommitTopic = OffsetCommitRequest.OffsetCommitRequestTopic
FetchGroup = OffsetFetchRequest.OffsetFetchRequestGroup


class Member(Consumer):
    """One member of a group. `protocol` names one of `MEMBERSHIPS`."""

    def __init__(
        self,
        scene: Scene,
        name: str,
        *,
        group: str,
        topic: str,
        protocol: str,
        committed_only: bool,
        static: bool = False,
    ) -> None:
        super().__init__(scene, name, [], committed_only=committed_only)
        self.membership = MEMBERSHIPS[protocol](self, group, topic, name if static else None)
        self.share: Share | None = None
        self.is_retired = False
        """Whether somebody else was started in its place: nobody waits for what it still does."""
        self.begin(self._live())
        self._doze_ms = 0
        self._away_ms: int | None = None
        self._shares = 0
        self._lives = 0

    # ----------------------------------------------------------------------------------- what steps ask for

    def doze(self, ms: int) -> None:
        """Stand still for so long as soon as there is something to deal with."""
        self._doze_ms = ms

    def go_away(self, ms: int) -> None:
        """Leave the group, and come back later."""
        if self.share is not None:
            self._away_ms = ms
            self.share.over.keep()

    def die(self, ms: int) -> None:
        """The process is killed, and another is started later."""
        self.stop()
        self._begin_anew()
        self._lives += 1
        life = self._lives
        self.world.after(ms, lambda: self._come_back(life))

    def _come_back(self, life: int) -> None:
        if self._lives == life:  # it was not killed again meanwhile
            self.begin(self._live())

    def _begin_anew(self) -> None:
        self.membership.forget()
        self.share = None
        self.positions = {}
        self._doze_ms, self._away_ms = 0, None

    def what_is_left(self) -> Iterator[str]:
        """Its group has shared out everything, and it has dealt with all of its share."""
        if self.is_retired:
            return
        share = self.share
        if share is None or share.over.done:
            yield f"{self.name} has no share in its group"
            return
        group, topic = self.membership.group, self.membership.topic
        shares = [other.share for other in self._others() if other.share is not None]
        shared_out = {place for each in shares for place in each.places}
        if share.generation < max(each.generation for each in shares):
            yield f"{self.name} does not know the newest generation of its group"
        if len(shared_out) < self.scene.topics[topic].partitions:
            yield f"there are partitions of {topic} that nobody in {group} has"
        if len(self.positions) < len(share.places):
            yield f"{self.name} does not know yet where to go on"
        if any(position.busy for position in self.positions.values()):
            yield f"{self.name} is still dealing with something"
        yield from super().what_is_left()

    def _others(self) -> Iterator[Member]:
        """All members of its group, itself too."""
        for client in self.scene.clients.values():
            if isinstance(client, Member) and client.membership.group == self.membership.group:
                yield client

    # --------------------------------------------------------------------------------------------- its life

    def _live(self) -> Process:
        while not self._is_over():
            yield from self._prepare()
            if self._is_over():
                return
            share: Share = yield from self.membership.enter()
            self.share = share
            self._shares += 1
            workers: dict[Place, Running] = {}
            others = [
                self.begin(self.membership.stay(share)),
                self.begin(self._open(share, workers)),
            ]
            yield share.over
            for running in others:
                running.stop()
            for place, running in workers.items():
                if self.positions[place].busy:
                    yield running.ended
                running.stop()
            self.positions = {}
            if self._away_ms is not None:
                yield from self._leave()

    def _is_over(self) -> bool:
        return False

    def _prepare(self) -> Part:
        """Whatever must be done before there can be a share."""
        yield 0

    def _leave(self) -> Part:
        away_ms, self._away_ms = self._away_ms or 0, None
        self.history.say(self.name, f"leaves {self.membership.group}")
        self.share = None
        yield from self.membership.leave()
        yield away_ms

    def _open(self, share: Share, workers: dict[Place, Running]) -> Process:
        """Find out where to go on, and do so."""
        for place in share.places:
            start = yield from self._start_of(share, place)
            if share.over.done:
                return
            self.history.starts.append(start)
            position = self.positions[place] = Position(start.reading)
            workers[place] = self.begin(self._work(share, position))

    def _work(self, share: Share, position: Position) -> Process:
        reading, purpose = position.reading, (self.name, self._shares)
        while not share.over.done:
            before, known = reading.position, len(reading.polled)
            yield from self.poll(position, purpose)
            if reading.position > before:
                position.busy = True
                got = reading.polled[known:]
                if got and self._doze_ms:
                    yield from self._fall_asleep()
                yield from self._deal_with(share, position, got)
                position.busy = False

    def _fall_asleep(self) -> Part:
        ms, self._doze_ms = self._doze_ms, 0
        self.history.say(self.name, f"stands still for {ms} ms with what it has just read")
        self.stall(ms)
        yield 1

    def _deal_with(self, share: Share, position: Position, got: list[Polled]) -> Part:
        """Work on what was read, then commit."""
        reading = position.reading
        offset = reading.position
        if got:
            yield self.random.randrange(1, LONGEST_WORK_MS)
        reading.processed = offset
        if got:
            yield from self._commit(share, reading.place, offset)

    # --------------------------------------------------------------------------------------------- offsets

    def _start_of(self, share: Share, place: Place) -> Part:
        """Where to go on: asks until it is told, and no open transaction can change it."""
        group, tries, asked = self.membership.group, 0, 0
        topic = FetchGroup.OffsetFetchRequestTopics(name=place[0], partition_indexes=[place[1]])
        body = OffsetFetchRequest(
            groups=[FetchGroup(group_id=group, member_id=None, member_epoch=-1, topics=[topic])],
            require_stable=True,
        )
        offset: int | None = None
        while offset is None:
            asked = self.history.count()
            broker = yield from self.coordinator(GROUP_KEY, group)
            answer = yield self.ask(broker, ApiKey.OFFSET_FETCH, FETCH_VERSION, body)
            error, offset = _offset_in(answer)
            if error:
                if error is not ErrorCode.UNSTABLE_OFFSET_COMMIT:
                    self.forget_coordinator(GROUP_KEY, group)
                yield self.back_off(tries)
                tries += 1
        self.history.say(self.name, f"is to go on with {place[0]}-{place[1]} at {max(0, offset)}")
        reading = self.history.reads(
            self.name, place, committed_only=self.committed_only, starts_at=max(0, offset)
        )
        reading.to_the_end = False
        reading.group = group
        return Start(group, self._generation(share), self.name, place, offset, asked, reading)

    def _generation(self, share: Share) -> int:
        """By what its commits are told from those of others."""
        return share.generation

    def _commit(self, share: Share, place: Place, offset: int) -> Part:
        group = self.membership.group
        commit = self.history.wants_commit(group, self._generation(share), self.name, place, offset)
        body = self._commit_request(share, place, offset)
        for tries in range(MAX_TRIES):
            broker = yield from self.coordinator(GROUP_KEY, group)
            answer = yield self.ask(broker, ApiKey.OFFSET_COMMIT, COMMIT_VERSION, body)
            error = ErrorCode.REQUEST_TIMED_OUT
            if answer is not None:
                error = ErrorCode(answer.topics[0].partitions[0].error_code)
            if not error or error in LOST:
                self._committed(commit, error)
                if error:
                    share.over.keep()
                return
            commit.outcome, commit.astray = Outcome.UNKNOWN, True
            self.forget_coordinator(GROUP_KEY, group)
            yield self.back_off(tries)

    def _commit_request(self, share: Share, place: Place, offset: int) -> OffsetCommitRequest:
        part = CommitTopic.OffsetCommitRequestPartition(
            partition_index=place[1],
            committed_offset=offset,
            committed_leader_epoch=-1,
            committed_metadata="",
        )
        return OffsetCommitRequest(
            group_id=self.membership.group,
            generation_id_or_member_epoch=share.generation,
            member_id=share.member_id,
            group_instance_id=self.membership.instance_id,
            topics=[CommitTopic(name=place[0], partitions=[part])],
        )

    def _committed(self, commit: Commit, error: ErrorCode) -> None:
        topic, partition = commit.place
        if error:
            if commit.outcome is Outcome.OPEN:
                commit.outcome = Outcome.ABORTED
            self.history.say(
                self.name, f"may not commit {topic}-{partition} at {commit.offset}: {error.name}"
            )
        else:
            commit.outcome, commit.told = Outcome.COMMITTED, self.history.count()
            self.history.say(self.name, f"has committed {topic}-{partition} at {commit.offset}")


def _offset_in(answer: Any) -> tuple[ErrorCode, int | None]:
    """What a coordinator says is committed; -1 if nothing is."""
    if answer is None:
        return ErrorCode.REQUEST_TIMED_OUT, None
    group = answer.groups[0]
    if group.error_code:
        return ErrorCode(group.error_code), None
    found = group.topics[0].partitions[0]
    return ErrorCode(found.error_code), None if found.error_code else found.committed_offset
