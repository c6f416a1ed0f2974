"""A consumer passes over nothing: between two polls no offset is left out."""

from __future__ import annotations

from gapless.simulator.checkers.checker import Checker, promise


@promise
class PollSkip(Checker):
    """In excused topics, too: a log that has lost its end has no gaps either."""

    name = "poll-skip"
    meaning = "a consumer that goes on reading leaves out no offset that the log still has"

    def at_end(self) -> None:
        for reading in self.scene.history.readings:
            for first, before in reading.skipped:
                topic, partition = reading.place
                self.fail(
                    f"{reading.consumer} goes from {first} to {before} in {topic}-{partition}, "
                    "over offsets that were never taken away",
                    reading.place,
                )
