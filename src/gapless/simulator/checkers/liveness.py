"""Once faults stop, everything works again: every partition has a leader and all its replicas in sync."""

from __future__ import annotations

from gapless.simulator.checkers.checker import Checker, promise

MAX_LINES = 4


@promise
class Stuck(Checker):
    """See the module."""

    name = "stuck"
    meaning = "no partition, transaction or client is stuck once faults have stopped"

    def at_end(self) -> None:
        if not self.scene.settled:
            self.fail("; ".join(list(self.scene.what_is_left())[:MAX_LINES]))
