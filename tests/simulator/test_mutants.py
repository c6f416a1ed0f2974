"""Every famous mistake is found by a seed, by the promise that it breaks, and only because of the mistake."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gapless.simulator.cases import make_case
from gapless.simulator.mutants import MUTANTS, Mutant
from gapless.simulator.mutants.mutant import Wrong
from gapless.simulator.profiles import PROFILES
from gapless.simulator.run import Report, play

SEEDS = 60
"""How many are tried if the one that is known does not show it any more."""


def seeds(mutant: Mutant) -> Iterator[int]:
    yield mutant.seed
    yield from range(SEEDS)


def find(mutant: Mutant) -> Report:
    """The first run in which the mistake shows as what it is known for."""
    for seed in seeds(mutant):
        with mutant.applied():
            report = play(make_case(seed, PROFILES[mutant.profile]))
        if report.violation is not None and report.violation.anomaly in mutant.found_as:
            return report
    pytest.fail(f"{mutant.name} was not found by the seed {mutant.seed}, nor by {SEEDS} others")


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mistake_is_found_and_nothing_is_found_without_it(mutant: Mutant) -> None:
    assert play(find(mutant).case).violation is None


def test_every_mistake_of_the_list_is_there() -> None:
    assert [mutant.number for mutant in MUTANTS.values()] == list(range(1, 25))


def test_a_mistake_ends_with_its_run() -> None:
    rights = [(wrong.owner, wrong.rule, wrong.owner.__dict__[wrong.rule]) for wrong in all_wrong()]
    for mutant in MUTANTS.values():
        with mutant.applied():
            assert all(wrong.owner.__dict__[wrong.rule] is wrong.instead for wrong in mutant.rules)
    assert all(owner.__dict__[rule] is right for owner, rule, right in rights)


def all_wrong() -> list[Wrong]:
    return [wrong for mutant in MUTANTS.values() for wrong in mutant.rules]
