"""What an idempotent or transactional producer sends is stored once, however often it was sent."""

from __future__ import annotations

from gapless.simulator.checkers.checker import Checker, promise
from gapless.simulator.history import Polled


@promise
class Duplicate(Checker):
    """See the module."""

    name = "duplicate"
    meaning = "a record of an idempotent or transactional producer is delivered at one offset only"

    def at_end(self) -> None:
        history = self.scene.history
        for reading in history.readings:
            seen: dict[int, Polled] = {}
            for polled in self.judged(reading):  # what was lost may be sent once more
                first = seen.setdefault(polled.value, polled)
                if first.offset != polled.offset and history.writes[polled.value].once:
                    topic, partition = reading.place
                    self.fail(
                        f"{reading.consumer} reads record {polled.value} at {first.offset} and again at "
                        f"{polled.offset} of {topic}-{partition}",
                        reading.place,
                        polled.value,
                    )
