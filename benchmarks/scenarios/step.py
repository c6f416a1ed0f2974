"""The shape of a scenario: steps with named figures, in suites that share a broker's or cluster's life."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.brokers import Broker, make_one
from benchmarks.session import Session
from benchmarks.statistics import Target

MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a step: a row of the table."""

    key: str
    label: str
    unit: str
    higher_is_better: bool
    target: Target | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """Something that is done to a broker and measured. `measure` returns a value for each figure's key."""

    name: str
    """For `--only`; steps of one family share it and differ in their variant."""
    title: str
    figures: Sequence[Figure]
    measure: Callable[[Session], Mapping[str, float]]
    variant: str = ""

    @property
    def key(self) -> str:
        return f"{self.name}/{self.variant}" if self.variant else self.name


@dataclass(frozen=True, slots=True)
class Suite:
    """Steps on one broker or cluster, in their order."""

    steps: Sequence[Step]
    make: Callable[[str], Broker] = make_one
    """From a contender's name."""

    def only(self, names: Container[str]) -> Suite:
        """The chosen steps, and with them those that have no figures of their own but prepare the others."""
        chosen = [step for step in self.steps if step.name in names or not step.figures]
        return Suite(chosen if any(step.figures for step in chosen) else [], self.make)


def throughput_figures(rate_target: Target | None, cpu_target: Target | None) -> list[Figure]:
    """What every bulk transfer is judged by; the client's own cost tells whether the client was the limit."""
    return [
        Figure("rate", "throughput", "records/s", True, rate_target),
        Figure("broker_cpu", "broker CPU per million records", "s", False, cpu_target),
        Figure("client_cpu", "client CPU per million records", "s", False),
    ]


def throughput(answer: Mapping[str, float], records: int) -> dict[str, float]:
    """The values for `throughput_figures` from a client's answer."""
    return {
        "rate": records / answer["wall_s"],
        "broker_cpu": answer["broker_cpu_s"] / records * MILLION,
        "client_cpu": answer["client_cpu_s"] / records * MILLION,
    }
