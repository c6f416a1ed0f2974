"""What must hold, one file per promise. Names are Jepsen's where it has one.

A checker may look at every replica that a step has changed (`on_change`), and at the end, when all faults are
over and all is settled (`at_end`). What it finds it raises as `Violation`.
"""

from gapless.simulator.checkers.checker import CHECKERS, Checker, Violation, promise

__all__ = ["CHECKERS", "Checker", "Violation", "promise"]
