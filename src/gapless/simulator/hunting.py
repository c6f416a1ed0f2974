"""Looking for a mutant: the first seed that finds it, and the shortest case that shows it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from gapless.simulator.campaign import Failure, campaign, mistaken
from gapless.simulator.case import Case
from gapless.simulator.cases import make_case
from gapless.simulator.mutants import MUTANTS
from gapless.simulator.profiles import PROFILES
from gapless.simulator.run import play
from gapless.simulator.shrinking import MAX_RUNS, shrink

MAX_SEEDS = 2_000
OnPlayed = Callable[[int], object]
"""Called with how many seeds have been played."""


@dataclass(frozen=True, slots=True)
class Hunted:
    """What came of looking for a mutant."""

    mutant: str
    played: int
    """Seeds, up to the one that found it."""
    failure: Failure | None
    shrunk: Case | None = None
    runs: int = 0
    """How many runs it took to shrink the case."""


def find(
    name: str,
    seeds: range,
    *,
    workers: int = 1,
    harm_only: bool = False,
    on_played: OnPlayed = lambda played: None,
) -> Hunted:
    """The first seed that breaks a promise that a mutant is known to break; or does any harm to clients."""
    mutant = MUTANTS[name]
    played = 0
    tallies = campaign(PROFILES[mutant.profile], seeds, workers=workers, mutant=name, harm_only=harm_only)
    with closing(tallies):
        for tally in tallies:
            for failure in tally.failures:
                if harm_only or failure.anomaly in mutant.found_as:
                    return Hunted(name, seeds.index(failure.seed) + 1, failure)
            played += tally.seeds
            on_played(played)
    return Hunted(name, played, None)


def hunt(name: str, seeds: range = range(MAX_SEEDS), max_runs: int = MAX_RUNS) -> Hunted:
    """Find a mutant and shrink its case, in this process."""
    found = find(name, seeds)
    return found if found.failure is None else shrunk(found, max_runs=max_runs)


def shrunk(
    found: Hunted,
    *,
    max_runs: int = MAX_RUNS,
    on_progress: Callable[[int, Case], object] = lambda runs, case: None,
) -> Hunted:
    """Shrink the case by which a mutant was found."""
    failure = found.failure
    if failure is None:
        raise ValueError("nothing was found")
    case = make_case(failure.seed, PROFILES[MUTANTS[found.mutant].profile])
    with mistaken(found.mutant):
        violation = play(case).violation
        if violation is None:
            raise ValueError(f"seed {failure.seed} does not fail any more")
        result = shrink(case, violation, max_runs=max_runs, on_progress=on_progress)
    return Hunted(found.mutant, found.played, failure, result.case, result.runs)
