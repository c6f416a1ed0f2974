"""The coordination service as brokers see it: a journal with compare-and-set, whose news takes its time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gapless.core.contract import CaughtUp, Committed, Propose, Refused
from gapless.core.image import Image
from gapless.core.records import MetadataRecord

if TYPE_CHECKING:
    from gapless.simulator.world.hosts import Host
    from gapless.simulator.world.world import World

AGAIN_MS = 5
PAUSED_AGAIN_MS = 10


class Journal:
    """The entries, and the way to and from them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.entries: list[list[MetadataRecord]] = []
        self.latency_ms: Callable[[], int] = lambda: 1
        self.answers_at_once = True
        """Whether who has proposed something knows that it is in the journal before anybody else does."""
        self.held: dict[int, bool] = {}
        """Nodes whose proposals do not reach the journal, nor its news them."""
        self.image = Image()
        """The cluster as the journal knows it, whoever has heard of it."""
        self.on_entry: list[Callable[[list[MetadataRecord]], None]] = []
        """Called with what enters the journal, before it counts."""

    def append(self, records: list[MetadataRecord]) -> None:
        """Records enter the journal, and everybody hears of it."""
        for look in list(self.on_entry):
            look(records)
        self.entries.append(records)
        for record in records:
            self.image.replay(record)
        for host in self._world.hosts.values():
            if host.alive:
                self._world.after(self.latency_ms(), lambda h=host, life=host.life: self.tell(h, life))  # type: ignore[misc]

    def tell(self, host: Host, life: int) -> None:
        """Bring a node up to date."""
        if not host.alive or host.life != life or host.paused or self.held.get(host.node_id):
            return
        self._answer(host)
        if host.node.image.version < len(self.entries):
            self._world.step(host.node_id, self.news(host))

    def news(self, host: Host) -> Committed:
        """All that a node has not heard of yet."""
        known = host.node.image.version
        records = [record for entry in self.entries[known:] for record in entry]
        return Committed(len(self.entries), records)

    def propose(self, host: Host, proposal: Propose) -> None:
        """A node's proposal is on its way."""
        host.proposing = proposal
        life = host.life
        self._world.after(self.latency_ms(), lambda: self._arrive(host, life, proposal))

    def _arrive(self, host: Host, life: int, proposal: Propose) -> None:
        if self.held.get(host.node_id) or host.proposing is not proposal:
            return
        if not host.alive or host.life != life:
            return
        if host.paused:
            self._world.after(PAUSED_AGAIN_MS, lambda: self._arrive(host, life, proposal))
            return
        host.proposing = None
        if proposal.expected_version == len(self.entries):
            self.append(proposal.records)
            host.answer = Committed(len(self.entries), proposal.records, own=True)
            if self.answers_at_once:
                self.tell(host, life)
        else:
            self.tell(host, life)
            self._world.step(host.node_id, Refused("the journal moved on", retry=True))

    def _answer(self, host: Host) -> None:
        """Tell a node that its proposal is in the journal, before anything that came later."""
        answer, host.answer = host.answer, None
        if answer is not None:
            self._world.step(host.node_id, answer)

    def catch_up(self, host: Host, life: int) -> None:
        """A node wants to know everything before it goes on."""
        if not host.alive or host.life != life:
            return
        if self.held.get(host.node_id):
            self._world.after(AGAIN_MS, lambda: self.catch_up(host, life))
            return
        self._answer(host)
        self._world.step(host.node_id, self.news(host))
        self._world.step(host.node_id, CaughtUp())

    def release(self, node_id: int) -> None:
        """Let a node's proposal and the news through again."""
        self.held[node_id] = False
        host = self._world.hosts[node_id]
        proposal = host.proposing
        if proposal is not None:
            self._world.after(0, lambda: self._arrive(host, host.life, proposal))
        self._world.after(0, lambda: self.tell(host, host.life))
