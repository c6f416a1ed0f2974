"""Small cases by hand, for tests of what is on stage."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gapless.simulator.case import Case, ClientPlan, Step, TopicPlan
from gapless.simulator.run import Report, play_scene
from gapless.simulator.scene import Scene

FLOOR = {"min.insync.replicas": "2"}
READERS = {"group": "readers", "topic": "t", "committed_only": True}
RELAYS = {"group": "relays", "topic": "t", "target": "out"}


def stage(
    clients: list[ClientPlan],
    *steps: Step,
    seed: int = 1,
    partitions: int = 2,
    configs: Mapping[str, str] = MappingProxyType({}),
    **more: Any,
) -> Scene:
    """A scene with three brokers, an idempotent producer `p`, both kinds of readers, and these clients.

    `configs` are further ones of topic `t`; `more` is what else a case has.
    """
    topics = (TopicPlan("t", partitions, 3, {**FLOOR, **configs}), TopicPlan("out", 1, 3, FLOOR))
    always = (
        ClientPlan("p", "producer"),
        ClientPlan("reader", "consumer", {"committed_only": False}),
        ClientPlan("committed-reader", "consumer", {"committed_only": True}),
    )
    ordered = tuple(sorted(steps, key=lambda step: step.at_ms))
    return Scene(Case(seed, "by hand", 3, topics, (*always, *clients), ordered, jitter=False, **more))


def sends(partitions: int = 2, *, every_ms: int = 200, until_ms: int = 4_000) -> list[Step]:
    """Two records to each partition of `t`, again and again."""
    return [
        Step(at_ms, "send", ("p", "t", partition, 2))
        for at_ms in range(100, until_ms, every_ms)
        for partition in range(partitions)
    ]


def members(count: int, protocol: str, **options: Any) -> list[ClientPlan]:
    """Members of one group."""
    plan = {**READERS, "protocol": protocol, **options}
    return [ClientPlan(f"member-{n}", "member", plan) for n in range(count)]


def relays(count: int, protocol: str, **options: Any) -> list[ClientPlan]:
    """Relays from `t` to `out`."""
    newer = options.get("newer", True)
    plan = {**RELAYS, "protocol": protocol, "newer": newer}
    return [ClientPlan(f"relay-{n}", "relay", plan) for n in range(count)]


def played(scene: Scene) -> Report:
    """Play it; every promise must be kept."""
    report = play_scene(scene)
    assert report.violation is None, report.violation
    return report
