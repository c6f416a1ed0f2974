"""Producer ids: taken from a block that is reserved in the journal, so that none is ever given twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gapless.core.changes import Change, Decision
from gapless.core.records import ProducerIdsReserved

if TYPE_CHECKING:
    from gapless.core.node import Node

BLOCK_SIZE = 1000


def take_producer_id(node: Node, then: Callable[[int], None], failed: Callable[[], None]) -> None:
    """Go on with an id that nobody has had: at once, or when a new block is reserved."""
    if node.producer_ids:
        then(_take(node))
        return
    block = range(0)

    def decide() -> Decision:
        nonlocal block
        if node.producer_ids:  # an earlier one in the queue fetched a block for all
            return Decision([], lambda: None)
        block = range(node.image.next_producer_id, node.image.next_producer_id + BLOCK_SIZE)
        return Decision([ProducerIdsReserved(block.stop)], reserved)

    def reserved() -> None:
        node.producer_ids = block

    node.propose(Change(decide, done=lambda _answer: then(_take(node)), failed=lambda _reason: failed()))


def _take(node: Node) -> int:
    producer_id, node.producer_ids = node.producer_ids[0], node.producer_ids[1:]
    return producer_id
