"""What was acknowledged is there in the end."""

from __future__ import annotations

from gapless.simulator.checkers.checker import Checker, promise
from gapless.simulator.history import Write
from gapless.simulator.looking import values_in


@promise
class LostWrite(Checker):
    """See the module."""

    name = "lost-write"
    meaning = "a record that was acknowledged by all in sync, or committed, stays"

    def is_judged(self, write: Write) -> bool:
        """Whether it must be there: it was promised, and nothing took it by rights."""
        if not write.must_survive or self.is_excused(write.place):
            return False
        return write.offset >= self.scene.history.begins_at(write.place)

    def at_end(self) -> None:
        held = {place: dict.fromkeys(values_in(self.scene, place)) for place in self.scene.places()}
        for write in self.scene.history.writes.values():
            if self.is_judged(write) and write.value not in held[write.place]:
                topic, partition = write.place
                self.fail(
                    f"record {write.value}, acknowledged to {write.producer} in {topic}-{partition} "
                    f"at {write.offset}, is gone",
                    write.place,
                    write.value,
                )
