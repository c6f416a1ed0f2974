"""The whole programme: which suites there are, and under which names their steps are chosen."""

from __future__ import annotations

from benchmarks.scenarios.footprint import memory_after_load, memory_idle, start
from benchmarks.scenarios.growth import connection_steps, partition_steps
from benchmarks.scenarios.step import Suite
from benchmarks.scenarios.transfer import transfer_steps, warm_up
from benchmarks.sizes import Sizes

LOG_SIZE = "log-size"
"""Measured on the storage itself, without a broker: see `log_size`."""


def suites(sizes: Sizes) -> list[Suite]:
    """Each is one life of each broker in each round."""
    return [
        Suite([start(), memory_idle(sizes), warm_up(sizes), *transfer_steps(sizes), memory_after_load()]),
        Suite([warm_up(sizes), *partition_steps(sizes)]),
        Suite([warm_up(sizes), *connection_steps(sizes)]),
    ]


def names(sizes: Sizes) -> list[str]:
    """What `--only` accepts."""
    steps = [step.name for suite in suites(sizes) for step in suite.steps if step.figures]
    return [*dict.fromkeys(steps), LOG_SIZE]
