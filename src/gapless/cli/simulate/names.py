"""Names that a user gives: of profiles and mutants."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from gapless.errors import UsageError
from gapless.simulator.mutants import MUTANTS
from gapless.simulator.profiles import PROFILES


def known_profile(name: str) -> None:
    """Refuse a name that no profile has."""
    _known("profile", name, PROFILES)


def known_mutant(name: str) -> None:
    """Refuse a name that no mutant has."""
    _known("mutant", name, MUTANTS)


def _known(what: str, name: str, names: Iterable[str]) -> None:
    names = list(names)
    if name not in names:
        near = get_close_matches(name, names, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
        raise UsageError(f"there is no {what} {name}: {hint}")
