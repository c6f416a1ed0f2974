"""One offset, one record: for all who read it, and for the one who wrote it."""

from __future__ import annotations

from gapless.simulator.checkers.checker import Checker, promise
from gapless.simulator.history import Place


@promise
class InconsistentOffsets(Checker):
    """See the module."""

    name = "inconsistent-offsets"
    meaning = "at one offset everybody sees the same record, the one that its producer was told is there"

    def at_end(self) -> None:
        history = self.scene.history
        known: dict[tuple[Place, int], tuple[int, str]] = {}
        for write in history.writes.values():
            if write.must_survive and write.offset >= 0 and not self.is_excused(write.place):
                self._note(known, write.place, write.offset, write.value, write.producer)
        for reading in history.readings:
            for polled in self.judged(reading):
                self._note(known, reading.place, polled.offset, polled.value, reading.consumer)

    def _note(
        self, known: dict[tuple[Place, int], tuple[int, str]], place: Place, offset: int, value: int, who: str
    ) -> None:
        other, told = known.setdefault((place, offset), (value, who))
        if other != value:
            self.fail(
                f"at {offset} of {place[0]}-{place[1]} there is record {other} for {told}, "
                f"and record {value} for {who}",
                place,
                other,
                value,
            )
