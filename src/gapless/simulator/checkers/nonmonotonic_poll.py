"""A consumer that does not seek never reads an offset at or before one that it has read."""

from __future__ import annotations

from gapless.simulator.checkers.checker import Checker, promise


@promise
class NonmonotonicPoll(Checker):
    """See the module."""

    name = "nonmonotonic-poll"
    meaning = "a consumer's offsets only ascend, and what it has read is never taken back"

    def at_end(self) -> None:
        for reading in self.scene.history.readings:
            where = f"{reading.place[0]}-{reading.place[1]}"
            for end, position in () if self.is_excused(reading.place) else reading.cut_off:
                self.fail(
                    f"{reading.consumer} had read {where} below {position}, and then it ended at {end}",
                    reading.place,
                )
            last = -1
            for polled in self.judged(reading):
                if polled.offset <= last:
                    self.fail(
                        f"{reading.consumer} reads {where} at {polled.offset} after {last}",
                        reading.place,
                        polled.value,
                    )
                last = polled.offset
