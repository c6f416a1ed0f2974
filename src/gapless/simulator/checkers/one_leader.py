"""In each epoch of a partition one broker leads, at most."""

from __future__ import annotations

from gapless.core.partition import Partition
from gapless.simulator.checkers.checker import Checker, promise
from gapless.simulator.history import Place
from gapless.simulator.scene import Scene
from gapless.simulator.world import Host


@promise
class OneLeader(Checker):
    """See the module."""

    name = "one-leader"
    meaning = "in each epoch of a partition one broker leads, at most"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._leaders: dict[tuple[Place, int], int] = {}

    def on_change(self, host: Host, place: Place, replica: Partition) -> None:
        if replica.leader == host.node_id:
            leader = self._leaders.setdefault((place, replica.leader_epoch), host.node_id)
            if leader != host.node_id:
                self.fail(
                    f"brokers {leader} and {host.node_id} both lead {place[0]}-{place[1]} "
                    f"in epoch {replica.leader_epoch}",
                    place,
                )
