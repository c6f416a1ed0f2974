"""Mistakes in what a partition remembers of its producers."""

from __future__ import annotations

from gapless.core.partition import Partition
from gapless.core.producers import AppendedBatch, Producers, RefusedBatch
from gapless.core.records import PartitionChanged
from gapless.simulator.mutants.mutant import Wrong, mutant
from gapless.wire.batch import BatchHeader
from gapless.wire.errors import ErrorCode

_delete_records = Partition.delete_records
_assign = Partition.assign


def _forget(producers: Producers, before: int) -> None:
    """Forget whose last batch is below an offset; but not where a transaction is open."""
    gone = [
        producer_id
        for producer_id, producer in producers
        if producer_id not in producers.open_transactions
        and all(batch.last_offset < before for batch in producer.batches)
    ]
    for producer_id in gone:
        del producers._by_id[producer_id]


def _producers_go_with_records(self: Partition, offset: int) -> None:
    _delete_records(self, offset)
    _forget(self.producers, self.log.start_offset)


mutant(
    10,
    "producers-expire-with-records",
    "KIP-360",
    """When the last records of a producer are deleted, its sequence numbers are forgotten with them. A
    batch whose answer was lost comes again, is taken for the first of a new producer, and is stored
    twice.""",
    Wrong(Partition, "delete_records", _producers_go_with_records),
    found_as=("duplicate",),
    profile="retention",
)


_check = Producers.check


def _only_what_continues(
    self: Producers, batch: BatchHeader, *, settled: bool = True
) -> AppendedBatch | None:
    if batch.base_sequence > 0 and not self.is_known(batch.producer_id):
        raise RefusedBatch(ErrorCode.UNKNOWN_PRODUCER_ID, "the mutant takes a sequence from its first only")
    return _check(self, batch, settled=settled)


mutant(
    21,
    "continuing-is-refused",
    "KAFKA-7190",
    """When the last records of a producer are deleted, its sequence numbers are forgotten with them, and who
    is not known must begin with the first. A producer that writes seldom is refused though nothing was lost:
    it must begin anew, and what it had under way is given up or stored twice.""",
    Wrong(Partition, "delete_records", _producers_go_with_records),
    Wrong(Producers, "check", _only_what_continues),
    found_as=("refused",),
    profile="retention",
)


def _leads_without_memory(self: Partition, change: PartitionChanged, now_ms: int = 0) -> None:
    led = self.is_leader
    _assign(self, change, now_ms)
    if self.is_leader and not led:
        _forget(self.producers, self.log.end_offset)


mutant(
    17,
    "sequences-forgotten",
    "KIP-98",
    """A new leader begins without the sequence numbers that it copied as a follower. A batch whose answer
    was lost with the old leader comes again, and is stored twice.""",
    Wrong(Partition, "assign", _leads_without_memory),
    found_as=("duplicate",),
    profile="elections",
    seed=7,
)
