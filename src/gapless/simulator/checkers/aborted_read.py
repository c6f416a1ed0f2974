"""Who reads what is committed never sees a record of a transaction that was aborted."""

from __future__ import annotations

from gapless.simulator.checkers.checker import Checker, promise
from gapless.simulator.history import Outcome


@promise
class AbortedRead(Checker):
    """Jepsen's G1a."""

    name = "G1a"
    meaning = "aborted read: a read_committed consumer sees no record of a transaction that did not commit"

    def at_end(self) -> None:
        history = self.scene.history
        for reading in history.readings:
            if not reading.committed_only:
                continue
            for polled in self.judged(reading):  # where a marker is lost, the next one decides instead
                attempt = history.writes[polled.value].attempt
                if attempt is not None and attempt.outcome in (Outcome.ABORTED, Outcome.OPEN):
                    topic, partition = reading.place
                    self.fail(
                        f"{reading.consumer} reads record {polled.value} at {polled.offset} of "
                        f"{topic}-{partition}, of transaction {attempt.number}, which {attempt.producer} did "
                        "not commit",
                        reading.place,
                        polled.value,
                    )
