"""From a seed to a case: which cluster, which clients, what they do, and what goes wrong meanwhile.

A profile says how much there is of each (`profiles.py`). Everything is drawn from the seed alone.
"""

from __future__ import annotations

from random import Random
from typing import Any

import gapless.simulator.admin_faults  # noqa: F401  they register themselves
from gapless.simulator.case import Case, ClientPlan, Step, TopicPlan
from gapless.simulator.faults import FAULTS
from gapless.simulator.profiles import Profile

FAULTS_BEGIN_MS = 300


def make_case(seed: int, profile: Profile) -> Case:
    """The case of a seed."""
    random = Random(seed)
    brokers = random.choice(profile.brokers)
    topics = _topics(random, brokers, profile)
    clients = _clients(random, profile)
    shape = Case(seed, profile.name, brokers, topics, clients, (), settings=dict(profile.settings))
    steps = [*_work(random, shape, profile), *_faults(random, shape, profile)]
    steps.sort(key=lambda step: step.at_ms)
    return shape.with_steps(tuple(steps))


def _topics(random: Random, brokers: int, profile: Profile) -> tuple[TopicPlan, ...]:
    def configs(floor: int) -> dict[str, str]:
        flushed = {"flush.messages": "1"} if random.random() < profile.flushed else {}
        return {"min.insync.replicas": str(floor), **flushed}

    other_replicas = random.randint(1, min(3, brokers))
    return (
        TopicPlan("t", random.choice((1, 2)), min(3, brokers), configs(2)),
        TopicPlan("u", 1, other_replicas, configs(random.randint(1, other_replicas))),
    )


def _clients(random: Random, profile: Profile) -> tuple[ClientPlan, ...]:
    plain = [
        ClientPlan(f"plain-{n}", "producer", {"acks": random.choice((0, 1, -1)), "idempotent": False})
        for n in range(profile.plain)
    ]
    idempotent = [
        ClientPlan(f"idempotent-{n}", "producer", {"acks": -1, "idempotent": True})
        for n in range(profile.idempotent)
    ]
    transactional = [
        ClientPlan(
            f"transactional-{n}",
            "transactional",
            {"transactional_id": f"id-{n}", "newer": random.random() < 0.5},
        )
        for n in range(profile.transactional)
    ]
    consumers = [
        ClientPlan("reader", "consumer", {"committed_only": False}),
        ClientPlan("committed-reader", "consumer", {"committed_only": True}),
    ]
    return (*plain, *idempotent, *transactional, *consumers)


def _work(random: Random, case: Case, profile: Profile) -> list[Step]:
    steps: list[Step] = []
    left = profile.records
    writers = [client for client in case.clients if client.kind != "consumer"]
    while left > 0 and writers:
        client = random.choice(writers)
        at_ms = random.randrange(profile.lasts_ms)
        if client.kind == "transactional":
            writes = [_batch(random, case) for _ in range(random.randint(1, 3))]
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
    topic: Any = random.choice(case.topics)
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
