"""Who sends for a source, and from where on: decided from what the cluster has committed, never guessed.

Two registers of the ledger tell. The *position* of a spool: how many of its records are in the topics, with
a fingerprint of the last of them. The *owner* of a source: the instance that started last. Everything here
is a decision on values; `transactional.py` reads and commits them.
"""

from __future__ import annotations

import os
from typing import NamedTuple
from zlib import crc32

from gapless.client.producing.ledger import Committed
from gapless.client.spool import NotKept, Spool, Spooled, SpoolRestored
from gapless.errors import GaplessError

NO_FINGERPRINT = "-"


class PositionLost(GaplessError):
    """The cluster no longer knows how much of the spool it has. Nothing is sent: it could be sent twice."""


class SourceTakenOver(GaplessError):
    """Another producer sends for this source now. What this one had not sent stays in its spool."""


class Position(NamedTuple):
    """How far a spool has been sent, by whom, and what the last record was."""

    offset: int
    instance: str
    fingerprint: str = NO_FINGERPRINT

    @property
    def metadata(self) -> str:
        return f"{self.instance}:{self.fingerprint}"

    @classmethod
    def of(cls, committed: Committed) -> Position:
        instance, _, fingerprint = committed.metadata.partition(":")
        return cls(committed.offset, instance, fingerprint or NO_FINGERPRINT)


def new_instance() -> str:
    """A name for one Producer object, which no other will ever have."""
    return os.urandom(8).hex()


def fingerprint(record: Spooled) -> str:
    """Tells a record from another one that has the same place in a spool."""
    check = crc32(f"{record.topic}:{record.partition}:{record.sequence}:{record.timestamp_ms}".encode())
    check = crc32(record.key or b"", check)
    return f"{crc32(record.value or b'', check):08x}"


def judge_position(
    committed: Committed | None, *, source: str, claimed: bool, sent: int, stored: int, instance: str
) -> Position:
    """Where to go on, or the error that says why not.

    `claimed`: a position was committed for this spool once. `sent`: what the spool remembers of it, which
    may be behind the cluster and never ahead. `stored`: the spool's end.
    """
    recover = "run `gapless spool recover` on its folder: it finds the position in the topics themselves"
    if committed is None:
        if claimed:
            raise PositionLost(
                f"the cluster has forgotten how much of the spool of {source!r} it has "
                f"(its offsets expired, or they or the ledger topic were deleted); {recover}"
            )
        return Position(sent, instance)
    if committed.offset < sent:
        raise PositionLost(
            f"the cluster's position of {source!r} went back from {sent} to {committed.offset}; {recover}"
        )
    if committed.offset > stored:
        raise restored(source, f"the cluster has {committed.offset} records of it, the folder {stored}")
    return Position.of(committed)


def restored(source: str, why: str) -> SpoolRestored:
    return SpoolRestored(
        f"the spool of {source!r} is an old copy, for example a restored backup: {why}; "
        f"move the folder away and begin with a new one"
    )


def judge_fingerprint(position: Position, last_sent: Spooled | None, *, source: str) -> None:
    """Refuse a copy of the folder that has gone another way. The last record may have been deleted since."""
    if last_sent is None or position.fingerprint == NO_FINGERPRINT:
        return
    if fingerprint(last_sent) != position.fingerprint:
        raise restored(source, f"its record {last_sent.position} is not the one that was sent")


def judge_reached(committed: Committed, last: Spooled | None, *, source: str, stored: int) -> None:
    """Refuse a folder that lacks records which may have been sent. `last`: its last one of those, if kept."""
    if committed.offset > stored:
        raise restored(source, f"{committed.offset} records of it have been sent, the folder had {stored}")
    judge_fingerprint(
        Position(committed.offset, "", committed.metadata or NO_FINGERPRINT), last, source=source
    )


def record_before(spool: Spool, position: int) -> Spooled | None:
    """The last record before a position; None if there is none any more."""
    try:
        return next(iter(spool.read(position - 1, 1)), None) if position > 0 else None
    except NotKept:
        return None


def judge_owner(owner: Committed | None, *, source: str, mine: str, before: str | None) -> None:
    """Refuse to go on if somebody else has started meanwhile.

    `before` is who owned the source when this instance began to start, None once it owns the source itself.
    No owner at all means that somebody deleted it, which is no takeover: whoever takes over leaves a name.
    """
    if owner is None or owner.metadata in (mine, before):
        return
    raise SourceTakenOver(
        f"another producer has taken over source {source!r}: this one has stopped, its unsent records stay "
        f"in its spool; give each producer that runs at the same time a source of its own"
    )
