"""Famous mistakes of replicated logs, each a replacement of one rule. The core has none of this."""

from gapless.simulator.mutants import (  # noqa: F401  each registers its own
    clients,
    elections,
    producers,
    replication,
    transactions,
    watermarks,
)
from gapless.simulator.mutants.mutant import MUTANTS as _MUTANTS
from gapless.simulator.mutants.mutant import Mutant

MUTANTS: dict[str, Mutant] = dict(sorted(_MUTANTS.items(), key=lambda named: named[1].number))

__all__ = ["MUTANTS", "Mutant"]
