"""What one producer sends to one partition lies there in that order."""

from __future__ import annotations

from gapless.simulator.checkers.checker import Checker, promise
from gapless.simulator.history import Place, Write


@promise
class NonmonotonicSend(Checker):
    """Only producers that promise it: plain ones may be overtaken by their own retries."""

    name = "nonmonotonic-send"
    meaning = "records of an idempotent or transactional producer lie in a partition in the order of sending"

    def at_end(self) -> None:
        for reading in self.scene.history.readings:
            last: dict[tuple[str, Place], Write] = {}
            for polled in self.judged(reading):
                write = self.scene.history.writes[polled.value]
                if not write.once:
                    continue
                before = last.get((write.producer, write.place))
                if before is not None and write.order < before.order:
                    topic, partition = write.place
                    self.fail(
                        f"{write.producer} sent record {write.value} before {before.value}, and in "
                        f"{topic}-{partition} it comes after it",
                        write.place,
                        write.value,
                        before.value,
                    )
                last[write.producer, write.place] = write
