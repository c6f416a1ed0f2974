"""What a mutant is: a rule of the core, exchanged for a wrong one while a run lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake."""

    name: str
    ticket: str
    """The KIP or ticket that knows it."""
    story: str
    profile: str
    """The profile in which it shows soonest."""
    owner: Any
    """The class or module whose rule is replaced."""
    rule: str
    wrong: Any

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Make the mistake for a while."""
        with patch.object(self.owner, self.rule, self.wrong):
            yield


MUTANTS: dict[str, Mutant] = {}


def mutant(
    name: str, ticket: str, story: str, *, owner: Any, rule: str, profile: str = "everything"
) -> Callable[[Any], Any]:
    """Register a wrong rule."""

    def register(wrong: Any) -> Any:
        MUTANTS[name] = Mutant(name, ticket, story, profile, owner, rule, wrong)
        return wrong

    return register
