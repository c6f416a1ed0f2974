"""One broker's place in the world: its disk and its clock outlive its processes."""

from __future__ import annotations

from gapless.core.contract import Committed, Event, Propose
from gapless.core.node import Node
from gapless.storage.memory import MemoryLogStore

NEVER_MS = 2**63


class Host:
    """A machine with one broker. `life` counts the broker's processes."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.store = MemoryLogStore()
        self.alive = False
        self.paused = False
        self.stopped = False
        """Whether the node has said that its process may end."""
        self.keeps_all = True
        """False from a power cut on until the journal knows of it."""
        self.keeps_flushed = True
        """False from the loss of the disk on until the journal knows of it."""
        self.clock_ahead_ms = 0
        """How much its clock is ahead of the world's. Within a life it must not go back."""
        self.node: Node
        self.life = 0
        self.due_ms = NEVER_MS
        """When the node wants to be woken, in the world's time."""
        self.told: list[str] = []
        self.held: list[Event] = []
        """What has happened while the process was paused."""
        self.proposing: Propose | None = None
        self.answer: Committed | None = None
        """That its proposal is in the journal, on its way."""

    @property
    def serves(self) -> bool:
        """Whether requests are answered here."""
        return self.alive and not self.paused and self.node.serving
