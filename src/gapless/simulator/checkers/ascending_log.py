"""Offsets ascend in every log, whatever was lost."""

from __future__ import annotations

from gapless.core.partition import Partition
from gapless.simulator.checkers.checker import Checker, promise
from gapless.simulator.history import Place
from gapless.simulator.scene import Scene
from gapless.simulator.world import Host


@promise
class AscendingLog(Checker):
    """Looks at each batch when it is appended."""

    name = "nonmonotonic-log"
    meaning = "in every log the offsets of a batch lie above those of the batch before it"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._ends: dict[tuple[int, Place], tuple[int, int]] = {}

    def on_change(self, host: Host, place: Place, replica: Partition) -> None:
        log, key = replica.log, (host.node_id, place)
        began, before = self._ends.get(key, (0, 0))
        self._ends[key] = (log.start_offset, log.end_offset)
        if began == before or not log.start_offset < before < log.end_offset:
            return  # nothing was appended to anything: an empty log may begin anew, before where it ended
        for batch in log.batches_from(before):
            if batch.base_offset < before:
                self.fail(
                    f"{place[0]}-{place[1]} on broker {host.node_id} ended at {before}, and now a batch "
                    f"follows that begins at {batch.base_offset}",
                    place,
                )
            return
