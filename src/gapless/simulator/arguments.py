"""What the arguments of a step mean: by the names that they have where the step is carried out."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from inspect import signature
from typing import Any

from gapless.simulator.actions import ACTIONS
from gapless.simulator.case import Step
from gapless.simulator.faults import FAULTS

BROKER_NAMES = frozenset({"who", "node_id", "one", "other", "source", "target"})


@cache
def names_of(what: str) -> tuple[str, ...]:
    """The names of a step's arguments, in their order."""
    carry_out = ACTIONS[what] if what in ACTIONS else FAULTS[what].inject
    return tuple(signature(carry_out).parameters)[1:]


def named(step: Step) -> dict[str, Any]:
    """A step's arguments by name."""
    return dict(zip(names_of(step.what), step.arguments, strict=False))


def with_argument(step: Step, name: str, value: Any) -> Step:
    """The step with another argument."""
    given = named(step) | {name: value}
    return replace(step, arguments=tuple(given.values()))


def brokers_of(step: Step) -> dict[str, str | int]:
    """The brokers that a step names, by number or role."""
    return {name: value for name, value in named(step).items() if name in BROKER_NAMES}


def durations_of(step: Step) -> dict[str, int]:
    """How long, or by how much."""
    return {name: value for name, value in named(step).items() if name == "ms" or name.endswith("_ms")}
