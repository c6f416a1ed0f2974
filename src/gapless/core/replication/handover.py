"""A leader whose disk fails lets somebody lead who can write.

The log can still be read, so followers and consumers lose nothing by the time that it takes. What nobody else
has in sync stays here: refused for writers, open for readers. A replica that has failed stays a follower that
copies nothing, and so out of the in-sync set, until its broker starts again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gapless.core.changes import Change, Decision
from gapless.core.membership.decisions import hand_over

if TYPE_CHECKING:
    from gapless.core.node import Node
    from gapless.core.partition import Partition

REST_MS = 10_000
"""How long to wait when the journal cannot be written either."""
MAX_NAMES = 5


class HandOver:
    """What one broker leads and cannot write."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._under_way = False
        self._rests_until_ms = 0

    def consider(self, partition: Partition) -> None:
        """A write has failed: if others are in sync, let one of them lead."""
        if partition.offline is not None and partition.is_leader and len(partition.isr) > 1:
            self._propose()

    def look(self) -> None:
        """Find what has failed unnoticed, or had nobody to be handed to."""
        if not self._under_way and self._decide().records:
            self._propose()

    def _propose(self) -> None:
        if not self._under_way and self._rests_until_ms <= self._node.now_ms:
            self._under_way = True
            self._node.propose(Change(self._decide, self._done, self._failed))

    def _decide(self) -> Decision:
        node = self._node
        failed = [name for name, partition in node.partitions.items() if partition.offline is not None]
        failed += node.failed_partitions
        outcome = hand_over(node.image, node.membership.policy, node.node_id, failed)
        return Decision(outcome.records, lambda: self._tell(outcome.problems))

    def _tell(self, moved: list[str]) -> None:
        if moved:
            names = ", ".join(moved[:MAX_NAMES])
            more = f" and {len(moved) - MAX_NAMES} more" if len(moved) > MAX_NAMES else ""
            self._node.tell(f"others lead what cannot be written here: {names}{more}", is_problem=True)

    def _done(self, _answer: Any) -> None:
        self._under_way = False
        self.look()  # what has failed since the decision could not be proposed then

    def _failed(self, _reason: str) -> None:
        self._under_way = False
        self._rests_until_ms = self._node.now_ms + REST_MS
