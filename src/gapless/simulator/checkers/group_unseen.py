"""What was acknowledged is dealt with by a group, whoever of its members does it."""

from __future__ import annotations

from gapless.simulator.checkers.checker import Checker, promise
from gapless.simulator.history import Place, Reading


@promise
class GroupUnseen(Checker):
    """Process, then commit: every record at least once."""

    name = "group-unseen"
    meaning = "a group passes over no record: all that was acknowledged is dealt with by some member"

    def at_end(self) -> None:
        if not self.scene.settled:
            return  # it might still have come
        groups: dict[tuple[str, Place], list[Reading]] = {}
        for reading in self.scene.history.readings:
            if reading.group is not None and not self.is_excused(reading.place):
                groups.setdefault((reading.group, reading.place), []).append(reading)
        for (group, place), readings in groups.items():
            self._check(group, place, readings)

    def _check(self, group: str, place: Place, readings: list[Reading]) -> None:
        seen = {
            polled.value: None
            for reading in readings
            for polled in reading.polled
            if polled.offset < reading.processed
        }
        expired = [gone for reading in readings for gone in reading.expired]
        for write in self.scene.history.writes.values():
            if write.place != place or not write.must_survive or write.value in seen:
                continue
            if not any(first <= write.offset < before for first, before in expired):
                self.fail(
                    f"nobody in {group} has dealt with record {write.value}, which {write.producer} was told "
                    f"is in {place[0]}-{place[1]} at {write.offset}",
                    place,
                    write.value,
                )
