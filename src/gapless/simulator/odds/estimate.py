"""From what faults take to what a configuration loses: windows, times rates, with intervals of 95 %.

What a fault takes is known in milliseconds of a partition's stream, its *window*. A stream that loses w
seconds each time that something happens, which is once in T seconds, loses w/T of all its records, however
many come in a second.

Intervals are percentiles of a bootstrap over plays. Of what was seen in a few plays only, a bootstrap knows
too little: there the interval is that of a Poisson count, times the mean of what those plays took. Where
nothing was seen in n plays, the rule of three bounds it: fewer than 3/n batches are taken on average.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from gapless.simulator.odds.configuration import Configuration
from gapless.simulator.odds.kinds import KINDS, YEAR, Kind
from gapless.simulator.odds.measuring import Samples
from gapless.simulator.odds.model import PARTITIONS, Model
from gapless.simulator.odds.stage import Taken

RESAMPLES = 400
LOW, HIGH = 0.025, 0.975
RULE_OF_THREE = 3
FEW_HITS = 5
POISSON = (
    (0.02532, 5.5717),
    (0.24221, 7.2247),
    (0.61867, 8.7673),
    (1.08987, 10.2416),
    (1.62349, 11.6684),
)
"""The exact interval of 95 % for the mean of a count that was seen once, twice, ..."""
MILLION = 1_000_000


class Estimate(NamedTuple):
    """A mean and its interval; `mean` is 0 if nothing was seen, and then `high` is a bound."""

    mean: float
    low: float
    high: float

    def times(self, factor: float) -> Estimate:
        return Estimate(self.mean * factor, self.low * factor, self.high * factor)

    @property
    def seen(self) -> bool:
        return self.mean > 0


@dataclass(frozen=True, slots=True)
class Share:
    """What one kind of fault contributes."""

    kind: Kind
    mtbf_s: float
    plays: int
    lost_ms: Estimate
    """The window: what a partition loses while each of those that can have the fault has it once."""
    doubled_ms: Estimate
    failed_ms: float

    @property
    def per_million(self) -> float:
        """What a window of a millisecond is in records per million."""
        return MILLION / 1_000 / self.mtbf_s


@dataclass(frozen=True, slots=True)
class Odds:
    """The answer for one configuration. Lost and doubled are records per million."""

    configuration: Configuration
    shares: list[Share]
    lost: Estimate
    doubled: Estimate

    def per_year(self, what: Estimate, rate_per_s: float) -> Estimate:
        """How many records a year that is."""
        return what.times(rate_per_s * YEAR / MILLION)


def estimate(
    configuration: Configuration, samples: Samples, mtbf_s: Mapping[str, float], model: Model, seed: int
) -> Odds:
    """Multiply by the rates."""
    random = Random(seed)
    lost, doubled = (_Measure(samples, mtbf_s, model, random, what) for what in (_lost, _doubled))
    shares = [
        Share(
            KINDS[name],
            mtbf_s[name],
            len(samples[name]),
            lost.windows_ms[name],
            doubled.windows_ms[name],
            KINDS[name].count * _mean([taken.failed_ms for taken in samples[name]]),
        )
        for name in samples
    ]
    return Odds(configuration, shares, lost.total, doubled.total)


def _lost(taken: Taken) -> float:
    return taken.lost_ms


def _doubled(taken: Taken) -> float:
    return taken.doubled_ms


class _Measure:
    """Lost or doubled: windows by kind of fault, and their sum by rates."""

    def __init__(
        self,
        samples: Samples,
        mtbf_s: Mapping[str, float],
        model: Model,
        random: Random,
        what: Callable[[Taken], float],
    ) -> None:
        self.windows_ms: dict[str, Estimate] = {}
        mean, below, above = 0.0, 0.0, 0.0
        resampled = [0.0] * RESAMPLES
        for name, all_taken in samples.items():
            values = [KINDS[name].count * what(taken) for taken in all_taken]
            weight = MILLION / 1_000 / mtbf_s[name]
            if _is_seen_enough(values):
                means = [_mean(random.choices(values, k=len(values))) for _ in range(RESAMPLES)]
                resampled = [total + weight * each for total, each in zip(resampled, means, strict=True)]
                window = _interval(_mean(values), means)
            else:
                window = _few(values, KINDS[name].count * model.linger_ms / PARTITIONS)
                resampled = [total + weight * window.mean for total in resampled]
                below += weight * (window.mean - window.low)
                above += weight * (window.high - window.mean)
            self.windows_ms[name] = window
            mean += weight * window.mean
        total = _interval(mean, resampled)
        self.total = Estimate(mean, max(0.0, total.low - below), total.high + above)
        """What was seldom or never seen may come more often: that is added to the ends."""


def _hits(values: Sequence[float]) -> list[float]:
    return [value for value in values if value]


def _is_seen_enough(values: Sequence[float]) -> bool:
    """Whether plays differ enough that to draw from them again tells how they might have been."""
    hits = len(_hits(values))
    return hits > min(FEW_HITS, len(values) // 2)


def _few(values: Sequence[float], batch_ms: float) -> Estimate:
    """Of what was seen in a few plays or in none; then it is counted in batches."""
    hits, plays = _hits(values), len(values)
    if not hits:
        return Estimate(0, 0, RULE_OF_THREE / plays * batch_ms)
    low, high = POISSON[len(hits) - 1]
    return Estimate(_mean(hits) * len(hits), _mean(hits) * low, _mean(hits) * high).times(1 / plays)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _interval(mean: float, resampled: list[float]) -> Estimate:
    ordered = sorted(resampled)
    low, high = (ordered[round(part * (len(ordered) - 1))] for part in (LOW, HIGH))
    return Estimate(mean, low, high)
