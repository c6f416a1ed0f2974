"""Mistakes that let transactions be seen in part, or touch each other."""

from __future__ import annotations

from gapless.core.api import end_txn
from gapless.core.partition import Partition
from gapless.simulator.mutants.mutant import Wrong, mutant

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
