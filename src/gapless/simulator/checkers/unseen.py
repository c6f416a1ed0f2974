"""What was acknowledged is read by everybody who reads to the end."""

from __future__ import annotations

from gapless.simulator.checkers.checker import Checker, promise


@promise
class Unseen(Checker):
    """See the module."""

    name = "unseen"
    meaning = "a record that was acknowledged, or committed, is read by all who read to the end"

    def at_end(self) -> None:
        history = self.scene.history
        for reading in history.readings:
            if self.is_excused(reading.place) or not reading.to_the_end:
                continue
            seen = dict.fromkeys(polled.value for polled in reading.polled)
            for write in history.writes.values():
                if write.place != reading.place or not write.must_survive or write.value in seen:
                    continue
                if not any(first <= write.offset < before for first, before in reading.expired):
                    topic, partition = reading.place
                    self.fail(
                        f"{reading.consumer} has read {topic}-{partition} to its end, but not record "
                        f"{write.value}, which {write.producer} was told is at {write.offset}",
                        reading.place,
                        write.value,
                    )
