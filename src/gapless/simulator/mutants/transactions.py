"""Mistakes that let transactions be seen in part, or touch each other."""

from __future__ import annotations

from gapless.core.log import LogSlice
from gapless.core.partition import Admission, Partition
from gapless.simulator.mutants.mutant import Wrong, mutant
from gapless.wire.batch import BatchHeader

_read = Partition.read


def _anything_joins(self: Partition, batch: BatchHeader, admission: Admission | None) -> None:
    pass


mutant(
    11,
    "late-produce",
    "KIP-890",
    """A partition takes a transactional batch without asking the coordinator whether it is part of a
    transaction. One that comes late, after its transaction was given up, joins the next one, or hangs
    there for ever with all that follows it.""",
    Wrong(Partition, "_check_transaction", _anything_joins),
    found_as=("stuck", "G1a", "torn-transaction"),
    profile="transactions",
)


def _reads_on(self: Partition, offset: int, max_bytes: int, at_least_one: bool, committed: bool) -> LogSlice:
    return _read(self, offset, max_bytes, at_least_one, False)


mutant(
    18,
    "past-the-last-stable-offset",
    "KIP-98",
    """A read_committed consumer is given everything below the high watermark, also what no marker has
    decided. It sees records of transactions that are aborted later.""",
    Wrong(Partition, "read", _reads_on),
    found_as=("G1a", "torn-transaction"),
    profile="transactions",
)
