"""From a seed to a case: which cluster, which clients, what they do, and what goes wrong meanwhile.

A profile says how much there is of each (`profiles.py`). Everything is drawn from the seed alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from gapless.simulator.case import RETENTION_MS, UNCLEAN, Case, ClientPlan, Step, TopicPlan
from gapless.simulator.faults import FAULTS, a_while
from gapless.simulator.profiles import Profile

FAULTS_BEGIN_MS = 300
RETENTION = {"log.retention.check.interval.ms": "500"}
COMPACTION = {"log.cleaner.backoff.ms": "300"}
SHORT_SEGMENTS = {"segment.bytes": "1024"}
OUT = "out"
"""Where relays write to, and nobody else."""


def make_case(seed: int, profile: Profile, *, harm_only: bool = False) -> Case:
    """The case of a seed."""
    random = Random(seed)
    brokers = random.choice(profile.brokers)
    members, relays = random.choice(profile.members), random.choice(profile.relays)
    topics = _topics(random, brokers, profile, relays)
    clients = (*_clients(random, profile), *_members(random, profile, members), *_relays(random, relays))
    settings, internal = dict(profile.settings), {}
    if _chance(random, profile.compacting):
        settings |= COMPACTION
        internal = {**SHORT_SEGMENTS, "min.cleanable.dirty.ratio": "0.01"}
    if any(RETENTION_MS in topic.configs for topic in topics) or profile.rates.get("change-retention"):
        settings |= RETENTION
    shape = Case(
        seed,
        profile.name,
        brokers,
        topics,
        clients,
        (),
        settings=settings,
        internal=internal,
        harm_only=harm_only,
    )
    steps = [
        *_work(random, shape, profile),
        *_comings_and_goings(random, shape, profile),
        *_faults(random, shape, profile),
    ]
    steps.sort(key=lambda step: step.at_ms)
    return shape.with_steps(tuple(steps))


def _chance(random: Random, chance: float) -> bool:
    """Whether it comes so; where it cannot, nothing is drawn."""
    return chance > 0 and random.random() < chance


def _one_of(random: Random, counts: Sequence[int]) -> int:
    """Draw one of several numbers; where there is only one, nothing is drawn."""
    return counts[0] if len(counts) == 1 else random.choice(counts)


def _topics(random: Random, brokers: int, profile: Profile, relays: int) -> tuple[TopicPlan, ...]:
    def configs(floor: int) -> dict[str, str]:
        flushed = {"flush.messages": "1"} if random.random() < profile.flushed else {}
        return {"min.insync.replicas": str(floor), **flushed}

    replicas = min(3, brokers)
    out = [TopicPlan(OUT, random.choice((1, 2)), replicas, configs(2))] if relays else []
    other_replicas = random.randint(1, min(3, brokers))
    t = TopicPlan("t", random.choice(profile.partitions), replicas, configs(2))
    u = TopicPlan("u", 1, other_replicas, configs(random.randint(1, other_replicas)))
    if _chance(random, profile.unclean):
        u.configs[UNCLEAN] = "true"
    if _chance(random, profile.expiring):
        u.configs.update({RETENTION_MS: str(random.randint(1_000, 4_000)), **SHORT_SEGMENTS})
    return (t, u, *out)


def _clients(random: Random, profile: Profile) -> tuple[ClientPlan, ...]:
    plain = [
        ClientPlan(f"plain-{n}", "producer", {"acks": random.choice((0, 1, -1)), "idempotent": False})
        for n in range(profile.plain)
    ]
    idempotent = [
        ClientPlan(f"idempotent-{n}", "producer", {"acks": -1, "idempotent": True})
        for n in range(profile.idempotent)
    ]
    pipelined = {"pipelined": True} if profile.pipelined else {}
    transactional = [
        ClientPlan(
            f"transactional-{n}",
            "transactional",
            {"transactional_id": f"id-{n}", "newer": random.random() < profile.newer} | pipelined,
        )
        for n in range(profile.transactional)
    ]
    consumers = [
        ClientPlan("reader", "consumer", {"committed_only": False}),
        ClientPlan("committed-reader", "consumer", {"committed_only": True}),
    ]
    return (*plain, *idempotent, *transactional, *consumers)


def _members(random: Random, profile: Profile, count: int) -> list[ClientPlan]:
    options: dict[str, Any] = {
        "group": "readers",
        "topic": "t",
        "protocol": random.choice(("classic", "newer")),
        "committed_only": random.random() < 0.5,
    }
    if count and _chance(random, profile.static):
        options["static"] = True
    return [ClientPlan(f"member-{n}", "member", options) for n in range(count)]


def _relays(random: Random, count: int) -> list[ClientPlan]:
    """Several share the work as a group; one alone may also take all partitions by hand."""
    protocols = ("classic", "newer") if count > 1 else ("classic", "newer", "by-hand", "by-hand")
    protocol = random.choice(protocols)
    return [
        ClientPlan(
            f"relay-{n}",
            "relay",
            {
                "group": "relays",
                "topic": "t",
                "target": OUT,
                "protocol": protocol,
                "newer": random.random() < 0.5,
            },
        )
        for n in range(count)
    ]


def _comings_and_goings(random: Random, case: Case, profile: Profile) -> list[Step]:
    """What becomes of members of groups: they stand still, leave, die, or are replaced."""
    steps: list[Step] = []
    for client in case.clients:
        if client.kind not in ("member", "relay"):
            continue
        by_hand = client.options["protocol"] == "by-hand"
        for _ in range(random.randint(0, 3)):
            what = random.choice(("succeed", "die") if by_hand else ("doze", "doze", "leave", "die"))
            at_ms = random.randrange(FAULTS_BEGIN_MS, profile.lasts_ms)
            steps.append(Step(at_ms, what, (client.name, a_while(random))))
    return steps


def _work(random: Random, case: Case, profile: Profile) -> list[Step]:
    steps: list[Step] = []
    writers = [client for client in case.clients if client.kind in ("producer", "transactional")]
    copied = any(client.kind == "relay" for client in case.clients)
    left = profile.records * 2 // 3 if copied else profile.records
    while left > 0 and writers:
        client = random.choice(writers)
        at_ms = random.randrange(profile.lasts_ms)
        if client.kind == "transactional":
            for _ in range(_one_of(random, profile.streaks)):
                writes = [_batch(random, case) for _ in range(random.randint(1, profile.batches))]
                left -= sum(count for _, _, count in writes)
                steps.append(Step(at_ms, "transact", (client.name, tuple(writes), random.random() < 0.75)))
            if random.random() < 0.08:
                steps.append(Step(at_ms + random.randrange(500), "succeed", (client.name,)))
        else:
            batch = _batch(random, case)
            left -= batch[2]
            steps.append(Step(at_ms, "send", (client.name, *batch)))
    return steps


def _batch(random: Random, case: Case) -> tuple[str, int, int]:
    topic: Any = random.choice([topic for topic in case.topics if topic.name != OUT])
    return topic.name, random.randrange(topic.partitions), random.randint(1, 5)


def _faults(random: Random, case: Case, profile: Profile) -> list[Step]:
    steps: list[Step] = []
    for name, rate in profile.rates.items():
        count = int(rate) + (random.random() < rate % 1)
        count = sum(random.random() < 0.5 for _ in range(2 * count))
        for _ in range(count):
            at_ms = random.randrange(FAULTS_BEGIN_MS, profile.lasts_ms)
            steps.append(Step(at_ms, name, FAULTS[name].choose(random, case)))
    return steps
