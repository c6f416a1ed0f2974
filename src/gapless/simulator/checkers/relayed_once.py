"""Relays copy each committed record exactly once, as far as read_committed consumers can see."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.simulator.checkers.checker import Checker, promise
from gapless.simulator.clients.relay import Relay
from gapless.simulator.history import Place, Reading


@promise
class RelayedOnce(Checker):
    """See the module."""

    name = "relayed-once"
    meaning = "of each committed record that relays read, one committed record is made: no more, no less"

    def at_end(self) -> None:
        for group, (topic, target) in self._jobs().items():
            if topic in self.scene.excused or target in self.scene.excused:
                continue
            for consumer in {reading.consumer: None for reading in self._readings(topic)}:
                self._check(group, consumer, topic, target)

    def _jobs(self) -> dict[str, tuple[str, str]]:
        relays = [client for client in self.scene.clients.values() if isinstance(client, Relay)]
        return {relay.group: (relay.membership.topic, relay.target) for relay in relays}

    def _readings(self, topic: str) -> Iterator[Reading]:
        """All that read_committed consumers have read of a topic, to its end."""
        for reading in self.scene.history.readings:
            if reading.committed_only and reading.to_the_end and reading.place[0] == topic:
                yield reading

    def _check(self, group: str, consumer: str, topic: str, target: str) -> None:
        copies = self._copies(consumer, target)
        if not self.scene.settled:
            return  # it might still have come
        if any(self.scene.history.begins_at(reading.place) for reading in self._readings(target)):
            return  # what is missing may have been deleted before anybody read it
        expired = [
            (reading.place, *gone)
            for reading in self.scene.history.readings
            if reading.group == group
            for gone in reading.expired
        ]
        for reading in self._readings(topic):
            if reading.consumer != consumer:
                continue
            for polled in reading.polled:
                source = (reading.place, polled.offset)
                is_gone = any(
                    place == reading.place and first <= polled.offset < before
                    for place, first, before in expired
                )
                if source not in copies and not is_gone:
                    self.fail(
                        f"record {polled.value} at {polled.offset} of {topic}-{reading.place[1]} was never "
                        f"copied to {target}",
                        reading.place,
                        polled.value,
                    )

    def _copies(self, consumer: str, target: str) -> dict[tuple[Place, int], int]:
        """Which record was made of which, by where the first one lies."""
        copies: dict[tuple[Place, int], int] = {}
        for reading in self._readings(target):
            if reading.consumer != consumer:
                continue
            for polled in reading.polled:
                source = self.scene.history.writes[polled.value].source
                if source is None:
                    continue
                first = copies.setdefault(source, polled.value)
                if first != polled.value:
                    (topic, partition), offset = source
                    self.fail(
                        f"{consumer} reads two copies of what lies at {offset} of {topic}-{partition}: "
                        f"records {first} and {polled.value}",
                        reading.place,
                        first,
                        polled.value,
                    )
        return copies
