"""Retention takes nothing before its time: by the clock of the broker that takes it, right or wrong."""

from __future__ import annotations

from gapless.core.coordinators import INTERNAL_TOPICS
from gapless.core.partition import Partition
from gapless.simulator.case import RETENTION_MS
from gapless.simulator.checkers.checker import Checker, promise
from gapless.simulator.history import Place
from gapless.simulator.scene import Scene
from gapless.simulator.world import Host


@promise
class ExpiredEarly(Checker):
    """Looks when a log begins later than any replica of it has begun so far."""

    name = "expired-early"
    meaning = "a log gives up its first records only if somebody asked for that, or if they are too old"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._begins: dict[Place, int] = {}

    def on_change(self, host: Host, place: Place, replica: Partition) -> None:
        start = replica.log.start_offset
        if not start or place[0] in INTERNAL_TOPICS or self.is_excused(place):
            return
        known = max(self.scene.history.deleted.get(place, 0), self._begins.get(place, 0))
        if start > known:
            self._begins[place] = start
            self._check(host, place, known, start)

    def _check(self, host: Host, place: Place, known: int, start: int) -> None:
        least_ms = self.scene.topics[place[0]].configs.get(RETENTION_MS)
        clock_ms = self.scene.world.now_ms + host.clock_ahead_ms
        for write in self.scene.history.writes.values():
            if write.place == place and known <= write.offset < start:
                age_ms = clock_ms - write.stamp_ms
                if least_ms is None or age_ms <= int(least_ms):
                    self.fail(
                        f"broker {host.node_id} has deleted record {write.value} of {place[0]}-{place[1]} at "
                        f"{write.offset}, which was {age_ms} ms old",
                        place,
                        write.value,
                    )
