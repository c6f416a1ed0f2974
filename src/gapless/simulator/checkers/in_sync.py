"""Whoever comes to be in sync has all that was ever committed: it may be elected the next moment."""

from __future__ import annotations

from gapless.core.partition import Partition
from gapless.core.records import MetadataRecord, PartitionChanged
from gapless.simulator.checkers.checker import Checker, promise
from gapless.simulator.history import Place
from gapless.simulator.scene import Scene
from gapless.simulator.world import Host


@promise
class InSync(Checker):
    """Looks when a replica enters an in-sync set. What leaders do later is the high watermark's checker's."""

    name = "in-sync"
    meaning = "a replica enters the in-sync set only with all that was committed"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._committed: dict[Place, int] = {}
        scene.world.journal.on_entry.append(self._on_entry)

    def on_change(self, host: Host, place: Place, replica: Partition) -> None:
        if replica.leader == host.node_id and replica.high_watermark > self._committed.get(place, 0):
            self._committed[place] = replica.high_watermark

    def _on_entry(self, records: list[MetadataRecord]) -> None:
        for record in records:
            if isinstance(record, PartitionChanged):
                topic = self.scene.world.journal.image.topics_by_id[record.topic_id]
                place = (topic.name, record.partition)
                if place in self._committed and not self.is_excused(place):
                    members = topic.partitions[record.partition].isr
                    for node_id in record.isr:
                        if node_id not in members:
                            self._look(place, node_id)

    def _look(self, place: Place, node_id: int) -> None:
        member = self.scene.world.hosts[node_id]
        log, committed = member.store.logs.get(place), self._committed.get(place, 0)
        if member.alive and log is not None and log.end_offset < committed:
            self.fail(
                f"broker {node_id} is in sync again with {place[0]}-{place[1]} up to {log.end_offset} only, "
                f"though everything below {committed} was committed",
                place,
            )
