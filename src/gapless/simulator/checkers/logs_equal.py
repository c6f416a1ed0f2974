"""Below their high watermarks all replicas hold the same, for ever; and offsets ascend in every log."""

from __future__ import annotations

from gapless.core.coordinators import INTERNAL_TOPICS
from gapless.core.partition import Partition
from gapless.simulator.checkers.checker import Checker, promise
from gapless.simulator.history import Place
from gapless.simulator.scene import Scene
from gapless.simulator.world import Host

Committed = tuple[int, int, int]
"""A batch: its checksum, its epoch and the offset after it."""


@promise
class LogsEqual(Checker):
    """Keeps the one true log of each partition: what was committed first."""

    name = "logs-differ"
    meaning = "all replicas hold the same below their high watermarks, and never lose it again"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._truth: dict[Place, dict[int, Committed]] = {}
        self._compared: dict[tuple[int, int, Place], tuple[Partition, int]] = {}

    def on_change(self, host: Host, place: Place, replica: Partition) -> None:
        if place[0] in INTERNAL_TOPICS or self.is_excused(place):
            return  # compaction changes those; and what was lost by rights is not compared
        key = (host.node_id, host.life, place)
        compared, done = self._compared.get(key, (replica, 0))
        watermark = replica.high_watermark
        if compared is not replica:
            done = 0  # it was moved to other brokers, and back: it begins anew
        if replica.log.end_offset < done:
            self.fail(
                f"broker {host.node_id} gave up {place[0]}-{place[1]} from {replica.log.end_offset} on, "
                f"though everything below {done} was committed",
                place,
            )
        if watermark > done:
            self._compare(host, place, replica, done)
            self._compared[key] = (replica, watermark)

    def _compare(self, host: Host, place: Place, replica: Partition, done: int) -> None:
        truth = self._truth.setdefault(place, {})
        where = f"{place[0]}-{place[1]} on broker {host.node_id}"
        next_offset = -1
        for batch in replica.log.batches_from(max(done, replica.log.start_offset)):
            if batch.next_offset > replica.high_watermark:
                break
            if batch.base_offset < next_offset:
                self.fail(f"offsets of {where} go back from {next_offset} to {batch.base_offset}", place)
            next_offset = batch.next_offset
            held = (batch.crc, batch.leader_epoch, next_offset)
            if truth.setdefault(batch.base_offset, held) != held:
                epoch = truth[batch.base_offset][1]
                self.fail(
                    f"{where} has a batch of epoch {batch.leader_epoch} at {batch.base_offset}, where "
                    f"another of epoch {epoch} was committed",
                    place,
                )
