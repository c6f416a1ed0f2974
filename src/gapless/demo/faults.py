"""What goes wrong in a demo, and when. All of it comes from a seed."""

from __future__ import annotations

from enum import StrEnum
from random import Random
from typing import NamedTuple

from gapless.demo.sides import PARTITIONS, SOURCES

_FIRST, _LAST = 0.12, 0.82


class Kind(StrEnum):
    """What can happen. Each happens once, to both sides alike."""

    LOSE_ACKS = "lose acknowledgements"
    KILL_LEADER = "kill a leader"
    KILL_PRODUCERS = "kill a producer of each side"
    KILL_CONSUMERS = "kill both consumers"
    KILL_DRIVER = "kill the driver of both pipelines"


class Fault(NamedTuple):
    """One of them, with all that is left to chance."""

    kind: Kind
    at: float
    """When so much of all orders was acknowledged on the side that is ahead, from 0 to 1."""
    which: int
    """The partition whose leader it is, the shop, or how many acknowledgements."""
    pause_s: float
    """How long it takes until the victim is started again."""
    cut_s: float = 0.0
    """How long a leader goes on without its followers before it is killed."""


def faults_of(seed: int) -> list[Fault]:
    """One of each kind, in any order, spread over the run."""
    chance = Random(seed)
    kinds = list(Kind)
    chance.shuffle(kinds)
    step = (_LAST - _FIRST) / len(kinds)
    return [
        Fault(
            kind,
            at=_FIRST + step * (place + chance.random() * 0.6),
            which={
                Kind.LOSE_ACKS: chance.randint(8, 16),
                Kind.KILL_LEADER: chance.randrange(PARTITIONS),
                Kind.KILL_PRODUCERS: chance.randrange(len(SOURCES)),
            }.get(kind, 0),
            pause_s=chance.uniform(0.5, 2.0),
            cut_s=chance.uniform(0.4, 0.9) if kind is Kind.KILL_LEADER else 0.0,
        )
        for place, kind in enumerate(kinds)
    ]
