"""All programmes: which suites each has, and under which names their steps are chosen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

from benchmarks.clusters import make_cluster
from benchmarks.scenarios.cluster import (
    GAP_TARGET,
    QUICK_TO_FENCE,
    RECORDS_PER_S,
    cluster_memory,
    cluster_produce_steps,
    cluster_start,
    cluster_warm_up,
    failover_step,
)
from benchmarks.scenarios.cluster import STATED_SETTINGS as CLUSTER_SETTINGS
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


def _cluster(sizes: Sizes) -> list[Suite]:
    loaded = [cluster_start(), cluster_warm_up(sizes), *cluster_produce_steps(sizes), cluster_memory()]
    killed = f"SIGKILL of a leader at {RECORDS_PER_S} records/s"
    timeout_ms = QUICK_TO_FENCE["broker.session.timeout.ms"]
    tuned = f"{killed}, Kafka with a session timeout of {timeout_ms} ms"
    return [
        Suite(loaded, make_cluster),
        Suite([failover_step(sizes, "default", killed, GAP_TARGET)], make_cluster),
        Suite(
            [failover_step(sizes, "tuned", tuned, None)],
            partial(make_cluster, kafka_properties=QUICK_TO_FENCE),
        ),
    ]


PROGRAMMES: Sequence[Programme] = (
    Programme("broker", 5, _broker, with_log_size=True),
    Programme("coordination", 3, _coordination, notes=STATED_SETTINGS),
    Programme("cluster", 3, _cluster, notes=CLUSTER_SETTINGS),
)


def names() -> list[str]:
    """All that `--only` accepts."""
    return [name for programme in PROGRAMMES for name in (programme.name, *programme.names())]
