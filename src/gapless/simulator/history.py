"""What clients did, what they were told, and what they saw: all that a promise can be judged by.

Every value is a number that is written once in a run, so that a duplicate cannot hide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from gapless.wire.errors import ErrorCode

Place = tuple[str, int]
"""Topic and partition."""


class Outcome(StrEnum):
    """What the client of a transaction knows of its end."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(slots=True, eq=False)
class Attempt:
    """One transaction of one producer."""

    producer: str
    number: int
    transactional_id: str = ""
    values: list[int] = field(default_factory=list)
    outcome: Outcome = Outcome.OPEN
    end_request: object = None
    """With what its end was asked for: whoever sees that arrive knows which transaction was meant."""


@dataclass(slots=True, eq=False)
class Write:
    """One record on its way."""

    value: int
    place: Place
    producer: str
    order: int
    """Its turn among all that this producer sends to this place."""
    acks: int
    once: bool
    """Whether its producer promises that it is stored at most once."""
    attempt: Attempt | None = None
    acknowledged: bool = False
    offset: int = -1
    """Where it is, if the producer was told."""
    stamp_ms: int = 0
    """The time that it bears."""
    source: tuple[Place, int] | None = None
    """Where the record lies of which a relay made this one."""

    @property
    def must_survive(self) -> bool:
        """Whether the client was promised that it stays."""
        if self.attempt is not None:
            return self.attempt.outcome is Outcome.COMMITTED
        return self.acknowledged and self.acks == -1


class Polled(NamedTuple):
    """A record as a consumer got it."""

    offset: int
    value: int


@dataclass(slots=True, eq=False)
class Reading:
    """What one consumer read of one place, without a seek in between."""

    consumer: str
    place: Place
    committed_only: bool
    starts_at: int = 0
    position: int = 0
    to_the_end: bool = True
    """Whether it goes on until nothing is left; not if somebody else takes over the place."""
    group: str | None = None
    processed: int = 0
    """For a group: up to where everything is dealt with."""
    polled: list[Polled] = field(default_factory=list)
    skipped: list[tuple[int, int]] = field(default_factory=list)
    """Offsets that were passed over though nothing explains it: from, and before which."""
    expired: list[tuple[int, int]] = field(default_factory=list)
    """Offsets that the log no longer had because retention took them."""
    cut_off: list[tuple[int, int]] = field(default_factory=list)
    """Where the log turned out to end before what had been read: its end, and the position."""


@dataclass(slots=True, eq=False)
class Commit:
    """A group's offset that somebody wants to commit."""

    group: str
    generation: int
    """The member's generation or epoch; without members, the epoch of the producer that commits."""
    member: str
    place: Place
    offset: int
    asked: int
    """When, by the history's own count, and when it was answered."""
    told: int = -1
    outcome: Outcome = Outcome.OPEN
    astray: bool = False
    """Whether it was sent again, while the first request may still be under way."""


@dataclass(slots=True, eq=False)
class Start:
    """Where a group's offset said that somebody is to go on."""

    group: str
    generation: int
    member: str
    place: Place
    offset: int
    """-1 if nothing was committed."""
    asked: int
    reading: Reading


class Owned(NamedTuple):
    """A member is told that a place is its own."""

    group: str
    generation: int
    member_id: str
    place: Place


class GiveUp(NamedTuple):
    """A producer does not go on with what is under way, because of what it was told."""

    producer: str
    error: ErrorCode
    place: Place | None
    """Where it was told so, if it was about records."""
    values: tuple[int, ...]
    """The records that it gives up."""


Line = Callable[[str, str], None]


class History:
    """Everything, in the order in which it happened."""

    def __init__(self) -> None:
        self.writes: dict[int, Write] = {}
        self.attempts: list[Attempt] = []
        self.readings: list[Reading] = []
        self.given_up: list[GiveUp] = []
        self.owned: list[Owned] = []
        self.commits: list[Commit] = []
        self.starts: list[Start] = []
        self.deleted: dict[Place, int] = {}
        """Below which offset an administrator has deleted each place, or has asked for it."""
        self.expired: dict[Place, int] = {}
        """Below which offset retention has taken what was in each place, on any broker."""
        self.say: Line = lambda who, text: None
        """Called with who did what, for whoever wants to tell the story."""
        self._orders: dict[tuple[str, Place], int] = {}
        self._count = 0

    def count(self) -> int:
        """The next number, for things whose order matters."""
        self._count += 1
        return self._count

    def sends(
        self,
        producer: str,
        place: Place,
        *,
        acks: int,
        once: bool,
        attempt: Attempt | None = None,
        source: tuple[Place, int] | None = None,
    ) -> Write:
        """A producer is about to send a value."""
        order = self._orders[producer, place] = self._orders.get((producer, place), 0) + 1
        write = Write(len(self.writes), place, producer, order, acks, once, attempt, source=source)
        self.writes[write.value] = write
        if attempt is not None:
            attempt.values.append(write.value)
        return write

    def deletes(self, place: Place, before: int) -> None:
        """All below an offset is going to be deleted."""
        self.deleted[place] = max(before, self.deleted.get(place, 0))

    def begins_at(self, place: Place) -> int:
        """Where a place may begin by now: what lay before is not missed."""
        return max(self.deleted.get(place, 0), self.expired.get(place, 0))

    def begins(self, producer: str, transactional_id: str = "", plan: str = "") -> Attempt:
        """A producer begins a transaction."""
        attempt = Attempt(producer, len(self.attempts), transactional_id)
        self.attempts.append(attempt)
        self.say(producer, f"begins transaction {attempt.number}{plan}")
        return attempt

    def reads(self, consumer: str, place: Place, *, committed_only: bool, starts_at: int = 0) -> Reading:
        """A consumer begins to read a place."""
        reading = Reading(consumer, place, committed_only, starts_at, starts_at)
        self.readings.append(reading)
        return reading

    def wants_commit(self, group: str, generation: int, member: str, place: Place, offset: int) -> Commit:
        """A member is about to commit how far it is."""
        commit = Commit(group, generation, member, place, offset, self.count())
        self.commits.append(commit)
        return commit
