"""A failing case becomes a short one that fails in the same way."""

from __future__ import annotations

import pytest

from gapless.simulator.campaign import mistaken
from gapless.simulator.case import Case
from gapless.simulator.cases import make_case
from gapless.simulator.checkers import Violation
from gapless.simulator.hunting import find
from gapless.simulator.mutants import MUTANTS
from gapless.simulator.profiles import PROFILES
from gapless.simulator.run import play
from gapless.simulator.shrinking import Shrunk, shrink

pytestmark = pytest.mark.timeout(300)  # some hundred runs each

CLASSIC = ("truncate-to-hw", "compare-ends-only", "early-acknowledgement")


def failing(mutant: str) -> tuple[Case, Violation]:
    """A case that finds a mutant. To be called while the mistake is made."""
    profile = MUTANTS[mutant].profile
    failure = find(mutant, range(MUTANTS[mutant].seed, 2_000)).failure
    assert failure is not None
    case = make_case(failure.seed, PROFILES[profile])
    violation = play(case).violation
    assert violation is not None
    return case, violation


def shrunk(mutant: str, max_runs: int = 300) -> Shrunk:
    with mistaken(mutant):
        return shrink(*failing(mutant), max_runs=max_runs)


@pytest.mark.parametrize("mutant", CLASSIC)
def test_the_classic_mistakes_are_shown_in_few_steps(mutant: str) -> None:
    result = shrunk(mutant)
    assert len(result.case.steps) <= 30  # what was asked for; today it is about five
    assert result.violation.anomaly in MUTANTS[mutant].found_as
    with mistaken(mutant):
        again = play(result.case).violation
    assert str(again) == str(result.violation)
    assert play(result.case).violation is None, "without the mistake the same case keeps every promise"


def test_the_same_case_shrinks_to_the_same_case() -> None:
    first, second = (shrunk("early-acknowledgement", max_runs=30) for _ in range(2))
    assert first.case == second.case
    assert first.runs == second.runs


def test_a_budget_is_kept_and_what_was_reached_by_then_fails() -> None:
    with mistaken("early-acknowledgement"):
        case, violation = failing("early-acknowledgement")
        result = shrink(case, violation, max_runs=10)
        assert result.runs == 10
        assert len(result.case.steps) < len(case.steps)
        again = play(result.case).violation
    assert again is not None
    assert again.anomaly == violation.anomaly
