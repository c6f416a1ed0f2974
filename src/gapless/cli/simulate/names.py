"""Names that a user gives: of profiles, faults and mutants."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from typing import NamedTuple

from gapless.errors import UsageError
from gapless.simulator.faults import FAULTS
from gapless.simulator.mutants import MUTANTS
from gapless.simulator.profiles import PROFILES, Profile

HIGHEST_RATE = 100.0


class Asked(NamedTuple):
    """The profile that is asked for, and which of its rates are to be others."""

    name: str
    faults: tuple[str, ...] = ()
    """Each as `NAME=RATE`."""

    def profile(self) -> Profile:
        """What is meant; refuses names that there are not."""
        _known("profile", self.name, PROFILES)
        found = PROFILES[self.name]
        return replace(found, rates={**found.rates, **dict(map(_rate, self.faults))})

    def argv(self) -> str:
        """The same as options."""
        return " ".join((f"--profile {self.name}", *(f"--fault {fault}" for fault in self.faults)))


def _rate(fault: str) -> tuple[str, float]:
    name, equals, text = fault.partition("=")
    _known("fault", name, FAULTS)
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not equals or not 0 <= rate <= HIGHEST_RATE:
        raise UsageError(f"--fault {fault}: give a rate from 0 to {HIGHEST_RATE:g}, as in --fault {name}=2")
    return name, rate


def known_mutant(name: str) -> None:
    """Refuse a name that no mutant has."""
    _known("mutant", name, MUTANTS)


def _known(what: str, name: str, names: Iterable[str]) -> None:
    names = list(names)
    if name not in names:
        near = get_close_matches(name, names, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
        raise UsageError(f"there is no {what} {name}: {hint}")
