"""Relays: read a topic, and write what came of it to another, each record exactly once.

What is written and how far was read are one transaction. A zombie is kept out by the group's generation, if
relays are members of a group (KIP-447); or, if they take their partitions by hand, by the epoch of a
transactional.id that belongs to the job and not to the process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gapless.simulator.clients.consumer import Position
from gapless.simulator.clients.group import Member
from gapless.simulator.clients.membership import Share
from gapless.simulator.clients.process import Part, Promise
from gapless.simulator.clients.transactions import Committer, GivenUp, TransactionalClient
from gapless.simulator.history import Attempt, Commit, Outcome, Place, Polled, Write

if TYPE_CHECKING:
    from gapless.simulator.scene import Scene


class Turns:
    """One at a time, in the order of asking."""

    def __init__(self) -> None:
        self._taken = False
        self._waiting: deque[Promise] = deque()

    def wait(self) -> Part:
        """Wait for a turn."""
        while self._taken:
            promise = Promise()
            self._waiting.append(promise)
            yield promise

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Have the turn."""
        self._taken = True
        try:
            yield
        finally:
            self._taken = False
            if self._waiting:
                self._waiting.popleft().keep()


class Relay(Member):
    """One process that relays. `newer` is the protocol of its transactions."""

    def __init__(
        self, scene: Scene, name: str, *, group: str, topic: str, target: str, protocol: str, newer: bool
    ) -> None:
        self.newer = newer
        self.target = target
        self.protocol = protocol
        self.group = group
        self._incarnation = 0
        self._target_places: list[Place] = []
        super().__init__(scene, name, group=group, topic=topic, protocol=protocol, committed_only=True)
        self._begin_anew()

    def retire(self, name: str) -> None:
        """Somebody else was started in its place; it goes on under another name until it is told."""
        self.is_retired = True
        self.name = self._producer.name = name

    def transactional_id(self) -> str:
        """Of the next process: the job's if partitions are taken by hand, else one that nobody had before."""
        if self.membership.by_hand:
            return self.group
        return f"{self.group}-{self.number}-{self._incarnation}"

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._turns = Turns()
        self._renew_producer()

    def _renew_producer(self) -> None:
        self._incarnation += 1
        self._producer = TransactionalClient(
            self.scene, self.name, self.transactional_id(), newer=self.newer, number=self.number
        )

    def _is_over(self) -> bool:
        return self.is_retired and self._producer.is_fenced

    def _prepare(self) -> Part:
        """The producer comes first: it ends what it, or whoever had its id, has left open."""
        while not self._producer.is_ready:
            if self._producer.is_fenced:
                if self.is_retired:
                    return
                self._renew_producer()
            yield from self._producer.start()
        if not self._target_places:
            self._target_places = yield from self.places_of(self.target)

    def _generation(self, share: Share) -> int:
        return self._producer.producer[1] if self.membership.by_hand else share.generation

    # ------------------------------------------------------------------------------------------ relaying

    def _deal_with(self, share: Share, position: Position, got: list[Polled]) -> Part:
        """Write what was read, and how far that is, in one transaction; in doubt, begin anew from there."""
        if not got:
            return
        yield from self._turns.wait()
        with self._turns.taken():
            if not self._producer.is_ready:
                return  # another place's transaction has failed, and the share is over
            attempt = self.history.begins(self.name, self._producer.transactional_id)
            place = position.reading.place
            commit = self.history.wants_commit(
                self.group, self._generation(share), self.name, place, position.reading.position
            )
            try:
                yield from self._transact(share, attempt, commit, got)
            except GivenUp as why:
                self._producer.gives_up(attempt, why)
                share.over.keep()
            finally:  # also if it is killed
                commit.outcome, commit.told = attempt.outcome, self.history.count()
                if attempt.outcome in (Outcome.COMMITTED, Outcome.UNKNOWN):
                    position.reading.processed = commit.offset

    def _transact(self, share: Share, attempt: Attempt, commit: Commit, got: list[Polled]) -> Part:
        places = self._target_places
        by_place: dict[Place, list[Write]] = {}
        for record in got:
            place = places[record.value % len(places)]
            write = self.history.sends(
                self.name, place, acks=-1, once=True, attempt=attempt, source=(commit.place, record.offset)
            )
            by_place.setdefault(place, []).append(write)
        for place, writes in by_place.items():
            yield from self._producer.write((place, writes))
        committer = Committer(self.group, share.member_id, share.generation)
        yield from self._producer.write_offset(committer, commit.place, commit.offset)
        yield from self._producer.end(attempt, commit=True)
