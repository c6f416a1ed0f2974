"""All programmes: which suites each has, and under which names their steps are chosen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from benchmarks.scenarios.coordination import (
    STATED_SETTINGS,
    commit_steps,
    coordination_warm_up,
    rebalance_steps,
    transaction_steps,
    transform_step,
)
from benchmarks.scenarios.footprint import memory_after_load, memory_idle, start
from benchmarks.scenarios.growth import connection_steps, partition_steps
from benchmarks.scenarios.step import Suite
from benchmarks.scenarios.transfer import transfer_steps, warm_up
from benchmarks.sizes import FULL, Sizes

LOG_SIZE = "log-size"
"""Measured on the storage itself, without a broker: see `log_size`."""


@dataclass(frozen=True, slots=True)
class Programme:
    """What makes one report. Its name is that of its files, and chooses all of it in `--only`."""

    name: str
    rounds: int
    suites: Callable[[Sizes], list[Suite]]
    """Each is one life of each broker in each round."""
    with_log_size: bool = False
    notes: dict[str, str | int] = field(default_factory=dict)
    """What a reader of the report must know of the clients' and brokers' settings."""

    def names(self, sizes: Sizes = FULL) -> list[str]:
        """What `--only` accepts of it, apart from its own name."""
        steps = [step.name for suite in self.suites(sizes) for step in suite.steps if step.figures]
        return [*dict.fromkeys(steps), *([LOG_SIZE] if self.with_log_size else [])]

    def chosen(self, only: Collection[str] | None) -> list[str]:
        """The names that `--only` leaves of it."""
        return [name for name in self.names() if not only or name in only or self.name in only]


def _broker(sizes: Sizes) -> list[Suite]:
    return [
        Suite([start(), memory_idle(sizes), warm_up(sizes), *transfer_steps(sizes), memory_after_load()]),
        Suite([warm_up(sizes), *partition_steps(sizes)]),
        Suite([warm_up(sizes), *connection_steps(sizes)]),
    ]


def _coordination(sizes: Sizes) -> list[Suite]:
    return [
        Suite(
            [
                coordination_warm_up(sizes),
                *transaction_steps(sizes),
                transform_step(sizes),
                *commit_steps(sizes),
                *rebalance_steps(sizes),
            ]
        )
    ]


PROGRAMMES: Sequence[Programme] = (
    Programme("broker", 5, _broker, with_log_size=True),
    Programme("coordination", 3, _coordination, notes=STATED_SETTINGS),
)


def names() -> list[str]:
    """All that `--only` accepts."""
    return [name for programme in PROGRAMMES for name in (programme.name, *programme.names())]
