"""Mistakes that let transactions be seen in part, or touch each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gapless.core.api import end_txn, produce
from gapless.core.contract import TopicPartition
from gapless.core.node import Node
from gapless.core.partition import Partition
from gapless.core.produce_queues import ProduceQueues, Start
from gapless.core.transactions.joining import Joined, Joining, join
from gapless.simulator.mutants.mutant import Wrong, mutant
from gapless.wire.errors import ErrorCode
from gapless.wire.transaction_records import EndMarker

mutant(
    11,
    "one-epoch-for-all",
    "KIP-890",
    """The epoch of a producer does not rise when a transaction ends. A request that comes late, when it
    has long been sent again, then belongs to the next transaction: it ends it before its time, or leaves
    records in it that nobody knows of.""",
    Wrong(end_txn, "WITH_ITS_EPOCH_FROM", 99),
    found_as=("G1a", "torn-transaction", "lost-write", "stuck"),
    profile="late",
    seed=2,
)


def _reads_on(self: Partition, committed: bool) -> int:
    return self.high_watermark


mutant(
    18,
    "past-the-last-stable-offset",
    "KIP-98",
    """A read_committed consumer is given everything below the high watermark, also what no marker has
    decided. It sees records of transactions that are aborted later.""",
    Wrong(Partition, "end_for_consumers", _reads_on),
    found_as=("G1a", "torn-transaction"),
    profile="late",
)


_append_marker = Partition.append_marker


def _every_marker_voids(
    self: Partition, producer: tuple[int, int], marker: EndMarker, now_ms: int, *, strict: bool
) -> memoryview | None:
    payload = _append_marker(self, producer, marker, now_ms, strict=strict)
    if payload is not None:
        self.producers.void_admissions(producer[0], self.log.end_offset - 1)
    return payload


def _join_by_the_first_look(node: Node, joining: Joining, then: Callable[[Joined], None]) -> None:
    looked = {
        name: partition.admission(joining.producer, begins_at_zero=joining.adds)
        for name in joining.partitions
        if (partition := node.partitions.get(name)) is not None
    }

    def joined(decisions: Joined) -> None:
        then(
            {
                name: decision if isinstance(decision, ErrorCode) else looked.get(name, decision)
                for name, decision in decisions.items()
            }
        )

    join(node, joining, joined)


mutant(
    23,
    "previous-marker-voids",
    "KAFKA-18575",
    """While a leader asks the coordinator about a transaction that begins, until the previous one is
    complete, it takes every marker of the producer for the end of the new one, also that of the previous one.
    A producer that begins the next transaction at once is told that it is not open, though nothing went
    wrong.""",
    Wrong(Partition, "append_marker", _every_marker_voids),
    Wrong(produce, "join", _join_by_the_first_look),
    found_as=("refused",),
    profile="back-to-back",
    seed=1,
)


def _at_once(
    self: ProduceQueues, transactional_id: str, partitions: Iterable[TopicPartition], start: Start
) -> None:
    start(lambda: None)


mutant(
    24,
    "in-flight-overtakes",
    "KAFKA-5494",
    """A batch that begins a transaction in a partition waits for the coordinator, and those behind it do not
    wait for it. One that is asked about when the previous transaction is complete comes to the log first, and
    its producer is told that its sequence is out of order.""",
    Wrong(ProduceQueues, "enter", _at_once),
    found_as=("refused",),
    profile="back-to-back",
    seed=5,
)
