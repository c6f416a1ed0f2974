"""What a fault is, and how those whom it hits are chosen and found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from gapless.core.coordinators import CONSUMER_OFFSETS, TRANSACTION_STATE
from gapless.simulator.case import Case
from gapless.simulator.scene import Scene

Arguments = tuple[Any, ...]
COORDINATED = {"coordinator": (TRANSACTION_STATE, 0), "group-coordinator": (CONSUMER_OFFSETS, 0)}
"""Roles of brokers, by what one leads that has them."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault: how it is chosen, and what it does."""

    name: str
    meaning: str
    choose: Callable[[Random, Case], Arguments]
    inject: Callable[..., bool]
    """Called with the scene and the arguments; whether it came to pass. One that waits for its moment says so
    when that has come (`Scene.arm`, `Scene.strikes`)."""


FAULTS: dict[str, Fault] = {}


def fault(
    name: str, meaning: str, choose: Callable[[Random, Case], Arguments]
) -> Callable[[Callable[..., bool]], Callable[..., bool]]:
    """Register a fault."""

    def register(inject: Callable[..., bool]) -> Callable[..., bool]:
        FAULTS[name] = Fault(name, meaning, choose, inject)
        return inject

    return register


# ------------------------------------------------------------------------------------------- choosing


def some_broker(random: Random, case: Case) -> str | int:
    """A number or a role: those who lead are hit more often than chance would have it."""
    chance = random.random()
    if chance < 0.4:
        return random.randint(1, case.brokers)
    topic = random.choice(case.topics)
    place = f"{topic.name} {random.randrange(topic.partitions)}"
    if chance < 0.75:
        return f"leader {place}"
    return f"follower {place}" if chance < 0.9 else random.choice(("controller", *COORDINATED))


def some_place(random: Random, case: Case) -> tuple[str, int]:
    """A partition."""
    topic = random.choice(case.topics)
    return topic.name, random.randrange(topic.partitions)


def two_brokers(random: Random, case: Case) -> tuple[int, int]:
    """Two different ones."""
    first, second = random.sample(range(1, case.brokers + 1), 2)
    return first, second


def a_while(random: Random, longest_ms: int = 3_000) -> int:
    """Short times are as likely as long ones."""
    return int(10 * (longest_ms / 10) ** random.random())


def some_client(random: Random, case: Case) -> str:
    return random.choice(case.clients).name


def resolve(scene: Scene, who: str | int) -> int | None:
    """The broker that is meant; None if there is none now."""
    if isinstance(who, int):
        return who if who in scene.world.hosts else None
    role, *place = who.split()
    if role == "controller":
        controller = scene.world.journal.image.controller.node_id
        return controller if controller > 0 else None
    where = COORDINATED.get(role) or (place[0], int(place[1]))
    assignment = scene.assignment(where)
    if role != "follower":
        return assignment.leader if assignment.leader > 0 else None
    followers = [node_id for node_id in assignment.replicas if node_id != assignment.leader]
    return followers[0] if followers else None


def later(scene: Scene, ms: int, undo: Callable[[], object]) -> None:
    """Do something in so many milliseconds."""
    scene.world.after(ms, undo)
