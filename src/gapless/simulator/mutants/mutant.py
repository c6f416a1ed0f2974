"""What a mutant is: a rule of the core, exchanged for a wrong one while a run lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest.mock import patch


class Wrong(NamedTuple):
    """A wrong rule in the place of a right one."""

    owner: Any
    """The class or module whose rule is replaced."""
    rule: str
    instead: Any


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake."""

    number: int
    name: str
    ticket: str
    """The KIP or ticket that knows it."""
    story: str
    """What the rule does wrong, and what that costs."""
    found_as: tuple[str, ...]
    """The promises that it breaks, by the names of their checkers; any of them tells it."""
    profile: str
    """The profile in which it shows soonest."""
    seed: int
    """A seed by which it was found, to look there first."""
    rules: tuple[Wrong, ...]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Make the mistake for a while."""
        with ExitStack() as stack:
            for owner, rule, instead in self.rules:
                stack.enter_context(patch.object(owner, rule, instead))
            yield


MUTANTS: dict[str, Mutant] = {}


def mutant(
    number: int,
    name: str,
    ticket: str,
    story: str,
    *rules: Wrong,
    found_as: tuple[str, ...],
    profile: str = "everything",
    seed: int = 0,
) -> None:
    """Register a mistake: more than one rule if a second one would prevent what the first one lets happen."""
    MUTANTS[name] = Mutant(number, name, ticket, " ".join(story.split()), found_as, profile, seed, rules)
