"""Profiles: how much of what happens in a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Profile:
    """How much of what happens in a run."""

    name: str
    meaning: str
    rates: Mapping[str, float]
    """How often each fault comes in a run, on average."""
    lasts_ms: int = 6_000
    records: int = 200
    """About how many are written."""
    plain: int = 1
    idempotent: int = 2
    transactional: int = 2
    newer: float = 0.5
    """How many of the transactional producers speak the newer protocol."""
    streaks: tuple[int, ...] = (1,)
    """How many transactions a producer makes at a time, each as soon as the one before it has ended."""
    batches: int = 3
    """How many batches a transaction has, at most."""
    pipelined: bool = False
    """Whether they are in flight together."""
    brokers: tuple[int, ...] = (3, 3, 3, 4, 5)
    partitions: tuple[int, ...] = (1, 2)
    """Of the topic that everybody writes to."""
    members: tuple[int, ...] = (0,)
    """How many consumers of it are in a group."""
    relays: tuple[int, ...] = (0,)
    """How many copy it to another topic."""
    flushed: float = 0.25
    """How many of the topics are flushed before anything is acknowledged."""
    unclean: float = 0.0
    """In how many runs anybody may lead one of the topics, though others have more."""
    expiring: float = 0.0
    """In how many runs records of one of the topics grow too old."""
    compacting: float = 0.0
    """In how many runs segments are so short that the coordinators' logs are compacted."""
    static: float = 0.0
    """How many of the groups have members that keep their places when they start again (KIP-345)."""
    settings: Mapping[str, str] = field(default_factory=dict)


_ALL = Profile(
    "everything",
    "all faults, all clients",
    {
        "crash": 1.2,
        "power-cut": 0.8,
        "pause": 0.7,
        "session-expiry": 0.4,
        "partition": 0.7,
        "one-way": 0.6,
        "isolate": 0.5,
        "slow-way": 0.8,
        "lose-message": 0.8,
        "lose-answer": 1.5,
        "late-request": 1.5,
        "client-partition": 0.7,
        "slow-disk": 0.4,
        "disk-error": 0.2,
        "clock": 0.3,
        "coordination-away": 0.5,
        "client-pause": 0.6,
        "wrong-clock": 0.3,
        "reassign": 0.4,
        "preferred-election": 0.2,
        "change-floor": 0.2,
        "change-flush": 0.2,
        "delete-records": 0.3,
        "double-connection": 0.8,
        "to-and-fro": 0.3,
        "change-retention": 0.2,
        "add-partition": 0.3,
        "unclean-election": 0.2,
    },
    members=(0, 0, 2, 3),
    relays=(0, 0, 1, 2),
    unclean=0.15,
    expiring=0.15,
    compacting=0.25,
    static=0.3,
)
PROFILES = {
    profile.name: profile
    for profile in (
        _ALL,
        Profile("calm", "no faults at all", {}),
        replace(
            _ALL,
            name="transactions",
            meaning="three brokers, transactional producers and all faults",
            plain=0,
            idempotent=0,
            transactional=3,
            brokers=(3,),
            members=(0,),
            relays=(0,),
        ),
        replace(
            _ALL,
            name="groups",
            meaning="members of a consumer group come and go, under all faults",
            plain=0,
            transactional=1,
            brokers=(3,),
            partitions=(2, 3),
            members=(2, 3),
            relays=(0,),
        ),
        replace(
            _ALL,
            name="relay",
            meaning="a topic is copied to another exactly once, under all faults",
            plain=0,
            idempotent=1,
            transactional=1,
            brokers=(3,),
            partitions=(2,),
            members=(0,),
            relays=(1, 2, 3),
        ),
        Profile(
            "elections",
            "one partition after another loses its leader",
            {"crash": 4, "pause": 1.5, "isolate": 1.5, "one-way": 1, "power-cut": 1, "lose-answer": 1},
            transactional=0,
            brokers=(3,),
        ),
        Profile(
            "leaders",
            "leadership goes to and fro, while some do not hear of it",
            {
                "crash": 4,
                "crash-elected": 5,
                "to-and-fro": 5,
                "preferred-election": 2,
                "coordination-away": 3,
                "slow-way": 8,
                "one-way": 4,
            },
            plain=2,
            idempotent=3,
            transactional=0,
            brokers=(3,),
            partitions=(1,),
            flushed=0,
            settings={"leader.imbalance.check.interval.seconds": "1"},
        ),
        Profile(
            "power",
            "power is cut again and again",
            {"power-cut": 5, "crash": 2, "one-way": 2, "slow-way": 1},
            plain=2,
            transactional=0,
            brokers=(3,),
            flushed=0,
        ),
        Profile(
            "late",
            "requests of transactional producers arrive when they have long been sent again",
            {"late-request": 12, "client-partition": 2, "lose-answer": 2},
            plain=0,
            idempotent=0,
            transactional=3,
            brokers=(3,),
        ),
        Profile(
            "back-to-back",
            "each transaction begins as soon as the last one has ended, with several batches in flight",
            {"slow-way": 6, "crash": 1, "to-and-fro": 1, "one-way": 0.5, "lose-answer": 1},
            plain=0,
            idempotent=0,
            transactional=2,
            newer=0.8,
            streaks=(2, 5, 10),
            batches=5,
            pipelined=True,
            brokers=(3,),
            partitions=(2, 3),
        ),
        Profile(
            "retention",
            "records are deleted while brokers are away and answers are lost",
            {"delete-records": 6, "crash": 2, "lose-answer": 6, "late-request": 2},
            plain=0,
            transactional=0,
            brokers=(3,),
        ),
    )
}
