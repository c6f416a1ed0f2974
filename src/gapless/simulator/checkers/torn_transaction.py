"""A transaction is visible as a whole or not at all."""

from __future__ import annotations

from gapless.simulator.checkers.checker import Checker, promise
from gapless.simulator.history import Place


@promise
class TornTransaction(Checker):
    """See the module."""

    name = "torn-transaction"
    meaning = "of a transaction, a read_committed consumer sees everything or nothing, over all partitions"

    def at_end(self) -> None:
        history = self.scene.history
        seen: dict[str, dict[int, None]] = {}
        read: dict[str, dict[Place, None]] = {}
        for reading in history.readings:
            if reading.committed_only and reading.to_the_end and not reading.expired:
                read.setdefault(reading.consumer, {})[reading.place] = None
                values = seen.setdefault(reading.consumer, {})
                values.update(dict.fromkeys(polled.value for polled in reading.polled))
        for consumer, values in seen.items():
            for attempt in history.attempts:
                awaited = [
                    value
                    for value in attempt.values
                    if (place := history.writes[value].place) in read[consumer] and not self.is_excused(place)
                ]
                shown = [value for value in awaited if value in values]
                if shown and len(shown) < len(awaited):
                    missing = [value for value in awaited if value not in values]
                    self.fail(
                        f"of transaction {attempt.number} of {attempt.producer}, {consumer} sees {shown} "
                        f"and not {missing}",
                        None,
                        *awaited,
                    )
