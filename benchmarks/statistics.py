"""The few statistics that the figures need: medians with their spread, percentiles, targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Summary:
    """The rounds of one cell."""

    median: float
    lowest: float
    highest: float
    rounds: tuple[float, ...]

    @classmethod
    def of(cls, rounds: Sequence[float]) -> Summary:
        return cls(median(rounds), min(rounds), max(rounds), tuple(rounds))


@dataclass(frozen=True, slots=True)
class Target:
    """What a ratio to Apache Kafka must reach."""

    bound: float
    at_least: bool

    def met_by(self, ratio: float) -> bool:
        return ratio >= self.bound if self.at_least else ratio <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:g}"


def at_least(bound: float) -> Target:
    return Target(bound, at_least=True)


def at_most(bound: float) -> Target:
    return Target(bound, at_least=False)


def percentile(ascending: Sequence[int], percent: float) -> int:
    """The smallest value that at least so many percent of all do not exceed."""
    return ascending[max(0, -int(-len(ascending) * percent // 100) - 1)]
