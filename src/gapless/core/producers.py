"""Idempotence (claim C4): what a partition remembers of each producer, and which batch may follow.

The next sequence is accepted, one of the last five batches again is a duplicate and answered as before,
anything else is refused. The rules and the window of five are Kafka's, so that clients may keep five
requests in flight and retry any of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gapless.core.log import ProducerEntry
from gapless.wire.batch import BatchHeader
from gapless.wire.errors import ErrorCode

WINDOW_BATCHES = 5
MAX_PRODUCERS = 100_000
"""Producers remembered per partition; past it the one silent for longest is forgotten, so that a client
which asks for ever new producer ids cannot fill the broker's memory."""
SEQUENCE_MAX = 2**31 - 1
NOT_SILENT = -1


class RefusedBatch(Exception):
    """A batch that must not be appended, with Kafka's error code for it."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class AppendedBatch(NamedTuple):
    """A batch that was stored: enough to recognise it, and to answer a retry as the first time."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp_ms: int


class Producer:
    """One producer id in one partition."""

    __slots__ = ("batches", "epoch", "silent_since_ms")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[AppendedBatch] = deque(maxlen=WINDOW_BATCHES)
        self.silent_since_ms = NOT_SILENT


class Producers:
    """All producers of one partition, the one that wrote last at the end."""

    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        self._by_id: dict[int, Producer] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[tuple[int, Producer]]:
        return iter(self._by_id.items())

    def check(self, batch: BatchHeader) -> AppendedBatch | None:
        """The earlier append if `batch` is a duplicate, None if it may be appended; raises `RefusedBatch`."""
        producer = self._by_id.get(batch.producer_id)
        if producer is None:
            # Nothing is known, perhaps because retention took all of it: any sequence may begin (KIP-360).
            return None
        if batch.producer_epoch < producer.epoch:
            raise RefusedBatch(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"epoch {batch.producer_epoch} of producer {batch.producer_id} precedes {producer.epoch}",
            )
        if batch.producer_epoch > producer.epoch:
            if batch.base_sequence != 0:
                raise self._out_of_order(batch, "a new epoch begins with 0")
            return None
        return self._check_sequence(batch, producer)

    def _check_sequence(self, batch: BatchHeader, producer: Producer) -> AppendedBatch | None:
        if not producer.batches:
            return None
        last = producer.batches[-1].last_sequence
        if batch.base_sequence == (0 if last == SEQUENCE_MAX else last + 1):
            return None
        for earlier in producer.batches:
            if earlier.first_sequence == batch.base_sequence and earlier.last_sequence == batch.last_sequence:
                return earlier
        raise self._out_of_order(batch, f"the last one stored is {last}")

    @staticmethod
    def _out_of_order(batch: BatchHeader, why: str) -> RefusedBatch:
        return RefusedBatch(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"sequence {batch.base_sequence} of producer {batch.producer_id} is out of order: {why}",
        )

    def record(self, batch: BatchHeader) -> None:
        """Remember a batch that was appended, or read back from the log."""
        producer = self._by_id.pop(batch.producer_id, None)
        if producer is None or producer.epoch != batch.producer_epoch:
            producer = Producer(batch.producer_epoch)
        self._by_id[batch.producer_id] = producer
        producer.silent_since_ms = NOT_SILENT
        producer.batches.append(
            AppendedBatch(
                batch.base_sequence,
                batch.last_sequence,
                batch.base_offset,
                batch.last_offset,
                batch.max_timestamp,
            )
        )
        if len(self._by_id) > MAX_PRODUCERS:
            del self._by_id[next(iter(self._by_id))]

    def expire(self, now_ms: int, silence_ms: int) -> None:
        """Forget producers that have been silent for longer than `silence_ms`; to be called now and then.

        Silence counts by this broker's clock from the first call after a batch. A batch's own time will not
        do: who sends old records is not silent, and would be forgotten between an append and its retry.
        """
        expired = []
        for producer_id, producer in self._by_id.items():
            if producer.silent_since_ms == NOT_SILENT:
                producer.silent_since_ms = now_ms
            elif now_ms - producer.silent_since_ms > silence_ms:
                expired.append(producer_id)
        for producer_id in expired:
            del self._by_id[producer_id]

    def snapshot(self) -> list[ProducerEntry]:
        """The last batch of every producer, as it outlives a restart."""
        return [
            ProducerEntry(
                producer_id=producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.batches[-1].last_sequence,
                last_offset=producer.batches[-1].last_offset,
                offset_delta=producer.batches[-1].last_offset - producer.batches[-1].first_offset,
                timestamp_ms=producer.batches[-1].timestamp_ms,
            )
            for producer_id, producer in self._by_id.items()
        ]

    def restore(self, entries: Iterable[ProducerEntry]) -> None:
        """Begin from a snapshot."""
        self._by_id.clear()
        for entry in entries:
            producer = Producer(entry.producer_epoch)
            if entry.last_sequence >= 0:
                producer.batches.append(_restored_batch(entry))
            self._by_id[entry.producer_id] = producer


def _restored_batch(entry: ProducerEntry) -> AppendedBatch:
    first_sequence = entry.last_sequence - entry.offset_delta
    if first_sequence < 0:  # the batch wrapped around
        first_sequence += SEQUENCE_MAX + 1
    first_offset = entry.last_offset - entry.offset_delta
    return AppendedBatch(
        first_sequence, entry.last_sequence, first_offset, entry.last_offset, entry.timestamp_ms
    )
