"""The high watermark: never back within an epoch, always within the log, never above the in-sync minimum.

The last one is judged from outside: whoever is in the in-sync set by the journal's word may be elected the
next moment, so it must have everything below the watermark now, in its log and not in the leader's opinion.
"""

from __future__ import annotations

from typing import Never

from gapless.core.partition import Partition
from gapless.simulator.checkers.checker import Checker, promise
from gapless.simulator.history import Place
from gapless.simulator.scene import Scene
from gapless.simulator.world import Host


@promise
class HighWatermark(Checker):
    """See the module."""

    name = "high-watermark"
    meaning = (
        "the high watermark never goes back within an epoch, nor above what all in sync have, "
        "and lies within the log"
    )

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._last: dict[tuple[Partition, int], int] = {}

    def on_change(self, host: Host, place: Place, replica: Partition) -> None:
        watermark, log = replica.high_watermark, replica.log
        if watermark > log.end_offset:
            self._is_wrong(host, place, replica, f", and its log ends at {log.end_offset}")
        if watermark < log.start_offset:
            self._is_wrong(host, place, replica, f", and its log begins at {log.start_offset}")
        if replica.leader != host.node_id:
            return
        key = (replica, replica.leader_epoch)
        before = self._last.get(key, 0)
        if watermark < before:
            self._is_wrong(host, place, replica, f": it went back from {before} to {watermark}")
        if watermark > before:
            self._last[key] = watermark
            if not self.is_excused(place):
                self._compare(host, place, replica)

    def _is_wrong(self, host: Host, place: Place, replica: Partition, why: str) -> Never:
        where = f"{place[0]}-{place[1]} on broker {host.node_id}"
        self.fail(f"the watermark of {where} is {replica.high_watermark}{why}", place)

    def _compare(self, host: Host, place: Place, replica: Partition) -> None:
        assignment = self.scene.assignment(place)
        if assignment.leader != host.node_id or assignment.leader_epoch != replica.leader_epoch:
            return  # it leads no more, and does not know it yet
        for node_id in assignment.isr:
            member = self.scene.world.hosts[node_id]
            log = member.store.logs.get(place)
            if log is not None and member.alive and log.end_offset < replica.high_watermark:
                why = f", though broker {node_id}, which is in sync, has only {log.end_offset}"
                self._is_wrong(host, place, replica, why)
