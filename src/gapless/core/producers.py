"""Idempotence (claim C4): what a partition remembers of each producer, and which batch may follow.

The next sequence is accepted, one of the last five batches again is a duplicate and answered as before,
anything else is refused. The rules and the window of five are Kafka's, so that clients may keep five
requests in flight and retry any of them.

Transactions (claim C8): a producer's first transactional batch opens one here, a marker ends it. Until the
marker is below the high watermark, whoever reads only what is committed must stop where it began.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gapless.core.log import ProducerEntry
from gapless.wire.batch import NO_SEQUENCE, BatchHeader
from gapless.wire.errors import ErrorCode
from gapless.wire.transaction_records import EndMarker

WINDOW_BATCHES = 5
MAX_PRODUCERS = 100_000
"""Producers remembered per partition; past it the one silent for longest is forgotten, so that a client
which asks for ever new producer ids cannot fill the broker's memory. One with an open transaction stays:
their number is bounded by that of transactional ids."""
MAX_HELD_BACK = 1000
"""Producers remembered per partition because a batch of theirs was refused for a time."""
SETTLING_MS = 65_000
"""How long a new leader takes a gap for batches on their way: clients wait 60 s for a hung broker."""
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


class HeldBack(NamedTuple):
    """The first batch of a producer that was refused for a reason that passes."""

    epoch: int
    sequence: int
    code: ErrorCode


class Producer:
    """One producer id in one partition."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_timestamp_ms",
        "silent_since_ms",
        "transaction_began_at",
        "voided_at",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[AppendedBatch] = deque(maxlen=WINDOW_BATCHES)
        self.last_timestamp_ms = -1
        self.silent_since_ms = NOT_SILENT
        self.coordinator_epoch = -1
        """Of the coordinator that wrote the last marker."""
        self.transaction_began_at: int | None = None
        """The first offset of the transaction that is open."""
        self.voided_at = -1
        """Offset of the last marker that may have ended a transaction of this epoch (`void_admissions`)."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


class EndedTransaction(NamedTuple):
    """A transaction of this partition that a marker has ended."""

    producer_id: int
    first_offset: int
    marker_offset: int


class Producers:
    """All producers of one partition, the one that wrote last at the end."""

    __slots__ = ("_by_id", "_held_back", "_unsettled", "open_transactions")

    def __init__(self) -> None:
        self._by_id: dict[int, Producer] = {}
        self.open_transactions: dict[int, int] = {}
        """By producer, the first offset of each transaction that no marker has ended; in ascending order."""
        self._unsettled: deque[EndedTransaction] = deque()
        """Transactions whose marker may still be above the high watermark."""
        self._held_back: dict[int, HeldBack] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[tuple[int, Producer]]:
        return iter(self._by_id.items())

    # ------------------------------------------------------------------------------------------ checking

    def check(self, batch: BatchHeader, *, settled: bool = True) -> AppendedBatch | None:
        """The earlier append if `batch` is a duplicate, None if it may be appended; raises `RefusedBatch`.

        Not `settled` is a leader that is so new that producers may not yet have heard all that the one before
        has refused: librdkafka sends what comes next here already, and what was refused right after it.
        """
        if not settled and self._is_ahead(batch):
            raise RefusedBatch(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"the leader is new, and what precedes sequence {batch.base_sequence} may be on its way",
            )
        producer = self._by_id.get(batch.producer_id)
        if self._held_back:
            self._check_overtaking(batch)
        if producer is None:
            # Nothing is known, perhaps because retention took all of it: any sequence may begin (KIP-360).
            return None
        if batch.producer_epoch == producer.epoch:
            return self._check_sequence(batch, producer)
        self._check_epoch(batch, producer)
        if batch.base_sequence != 0:
            raise self._out_of_order(batch, "a new epoch begins with 0")
        return None

    def _is_ahead(self, batch: BatchHeader) -> bool:
        """Whether batches are missing between what is stored of this producer and this one."""
        producer = self._by_id.get(batch.producer_id)
        if producer is None:
            return batch.base_sequence > 0
        same = batch.producer_epoch == producer.epoch
        return same and _distance(producer.last_sequence, batch.base_sequence) > 1

    def hold_back(self, batch: BatchHeader, code: ErrorCode) -> None:
        """A batch was refused for a reason that passes: what was sent right behind it must not overtake it.

        That would be out of order, of which librdkafka concludes that it has to number everything anew, also
        what may be stored already, and stores it twice. Refused like the first, they come again in order.
        """
        if batch.producer_id < 0 or batch.base_sequence == NO_SEQUENCE:
            return
        if self._is_stored(batch.producer_id, batch.producer_epoch, batch.base_sequence):
            return  # it came again: what waits for it need not, and what waits for another must
        known = self._held_back.get(batch.producer_id)
        if (
            known is not None
            and known.epoch == batch.producer_epoch
            and _distance(known.sequence, batch.base_sequence) >= 0
        ):
            return
        self._held_back[batch.producer_id] = HeldBack(batch.producer_epoch, batch.base_sequence, code)
        if len(self._held_back) > MAX_HELD_BACK:
            del self._held_back[next(iter(self._held_back))]

    def forget_refused(self) -> None:
        """A leader that is new waits for whatever is missing; what it has refused, another may have taken.

        If that was lost with the other, it never comes: what follows it would be refused for ever.
        """
        self._held_back.clear()

    def _check_overtaking(self, batch: BatchHeader) -> None:
        first = self._held_back.get(batch.producer_id)
        if first is None:
            return
        is_awaited = first.epoch == batch.producer_epoch and not self._is_stored(
            batch.producer_id, first.epoch, first.sequence
        )
        ahead = _distance(first.sequence, batch.base_sequence)
        if is_awaited and ahead > 0:
            raise RefusedBatch(
                first.code,
                f"sequence {first.sequence} of producer {batch.producer_id} was refused: it comes first",
            )
        if not (is_awaited and ahead < 0):
            del self._held_back[batch.producer_id]

    def _is_stored(self, producer_id: int, epoch: int, sequence: int) -> bool:
        producer = self._by_id.get(producer_id)
        return (
            producer is not None
            and producer.epoch == epoch
            and _distance(sequence, producer.last_sequence) >= 0
        )

    def check_epoch(self, batch: BatchHeader) -> None:
        """All that is asked of a batch that a coordinator wrote for a producer: there are no sequences."""
        producer = self._by_id.get(batch.producer_id)
        if producer is not None:
            self._check_epoch(batch, producer)

    @staticmethod
    def _check_epoch(batch: BatchHeader, producer: Producer) -> None:
        if batch.producer_epoch < producer.epoch:
            raise RefusedBatch(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"epoch {batch.producer_epoch} of producer {batch.producer_id} precedes {producer.epoch}",
            )

    def _check_sequence(self, batch: BatchHeader, producer: Producer) -> AppendedBatch | None:
        last = producer.last_sequence
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

    def check_marker(self, producer: tuple[int, int], marker: EndMarker, strict: bool) -> bool:
        """Whether a marker must be appended; False if it is there already; raises `RefusedBatch`.

        With `strict` (each transaction has an epoch of its own, and its marker the next one) a marker that
        comes late cannot end the transaction that followed.
        """
        producer_id, epoch = producer
        known = self._by_id.get(producer_id)
        if known is None:
            return True
        is_open = known.transaction_began_at is not None
        if epoch < known.epoch or (strict and epoch == known.epoch and is_open):
            raise RefusedBatch(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"a marker of epoch {epoch} of producer {producer_id} comes after epoch {known.epoch} began",
            )
        if marker.coordinator_epoch < known.coordinator_epoch:
            raise RefusedBatch(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {marker.coordinator_epoch} precedes {known.coordinator_epoch}",
            )
        return not (strict and epoch == known.epoch)

    def is_known(self, producer_id: int) -> bool:
        """Whether anything is remembered of a producer."""
        return producer_id in self._by_id

    def has_open(self, producer_id: int, epoch: int) -> bool:
        """Whether this very producer has a transaction open here."""
        producer = self._by_id.get(producer_id)
        return producer is not None and producer.epoch == epoch and producer.transaction_began_at is not None

    def void_admissions(self, producer_id: int, marker_offset: int) -> None:
        """Note that this leader wrote a marker which may have ended a transaction of the marker's own epoch.

        That is so in the older protocol, where a producer keeps its epoch: what the coordinator said of the
        epoch before the marker may be about the transaction that has ended.

        In the newer one a marker has the epoch of the *next* transaction. It says nothing against a batch of
        that epoch, which may have arrived before it: the coordinator answers EndTxn when the end is decided,
        and the producer sends the next records while the markers are being written. A batch of the ended
        transaction has an older epoch than the marker, and is refused for that.
        """
        producer = self._by_id.get(producer_id)
        if producer is not None:
            producer.voided_at = marker_offset

    def voided_at(self, producer_id: int, epoch: int) -> int:
        """Return the offset of the marker that voids earlier admissions of this epoch; -1: there is none."""
        producer = self._by_id.get(producer_id)
        return -1 if producer is None or producer.epoch != epoch else producer.voided_at

    # ----------------------------------------------------------------------------------------- recording

    def record(self, batch: BatchHeader) -> None:
        """Remember a batch that was appended, or read back from the log."""
        producer = self._renewed(batch)
        producer.last_timestamp_ms = batch.max_timestamp
        if batch.base_sequence != NO_SEQUENCE:
            producer.batches.append(
                AppendedBatch(
                    batch.base_sequence,
                    batch.last_sequence,
                    batch.base_offset,
                    batch.last_offset,
                    batch.max_timestamp,
                )
            )
        if batch.is_transactional and producer.transaction_began_at is None:
            producer.transaction_began_at = self.open_transactions[batch.producer_id] = batch.base_offset
        if len(self._by_id) > MAX_PRODUCERS:
            self._forget_one()

    def record_marker(self, batch: BatchHeader, marker: EndMarker) -> EndedTransaction | None:
        """Remember a marker; the transaction that it ended, if one was open here."""
        producer = self._renewed(batch)
        producer.last_timestamp_ms = batch.max_timestamp
        producer.coordinator_epoch = marker.coordinator_epoch
        first_offset = producer.transaction_began_at
        if first_offset is None:
            return None
        producer.transaction_began_at = None
        del self.open_transactions[batch.producer_id]
        ended = EndedTransaction(batch.producer_id, first_offset, batch.base_offset)
        self._unsettled.append(ended)
        return ended

    def _renewed(self, batch: BatchHeader) -> Producer:
        """The producer of a batch, as the one that wrote last; with a new epoch its sequences begin anew."""
        producer = self._by_id.pop(batch.producer_id, None)
        if producer is None:
            producer = Producer(batch.producer_epoch)
        elif producer.epoch != batch.producer_epoch:
            producer.epoch = batch.producer_epoch
            producer.batches.clear()
            producer.voided_at = -1
        self._by_id[batch.producer_id] = producer
        producer.silent_since_ms = NOT_SILENT
        return producer

    def _forget_one(self) -> None:
        """Forget the producer that was silent for longest, but none with an open transaction."""
        for producer_id in self._by_id:
            if producer_id not in self.open_transactions:
                del self._by_id[producer_id]
                return

    def expire(self, now_ms: int, silence_ms: int) -> None:
        """Forget producers that have been silent for longer than `silence_ms`; to be called now and then.

        Silence counts by this broker's clock from the first call after a batch. A batch's own time will not
        do: who sends old records is not silent, and would be forgotten between an append and its retry.
        """
        expired = []
        for producer_id, producer in self._by_id.items():
            if producer.silent_since_ms == NOT_SILENT:
                producer.silent_since_ms = now_ms
            elif now_ms - producer.silent_since_ms > silence_ms and producer_id not in self.open_transactions:
                expired.append(producer_id)
        for producer_id in expired:
            del self._by_id[producer_id]

    # ----------------------------------------------------------------------------------------- stability

    def settle(self, high_watermark: int) -> None:
        """What a marker below the high watermark has ended is decided."""
        unsettled = self._unsettled
        while unsettled and unsettled[0].marker_offset < high_watermark:
            unsettled.popleft()

    def first_unstable_offset(self) -> int | None:
        """Where the first transaction begins that is not decided, if there is one."""
        first = next(iter(self.open_transactions.values()), None)
        if self._unsettled:
            earliest = min(ended.first_offset for ended in self._unsettled)
            return earliest if first is None else min(first, earliest)
        return first

    # ----------------------------------------------------------------------------------------- snapshots

    def snapshot(self) -> list[ProducerEntry]:
        """The last batch of every producer, and its open transaction, as they outlive a restart."""
        return [_entry(producer_id, producer) for producer_id, producer in self._by_id.items()]

    def restore(self, entries: Iterable[ProducerEntry]) -> None:
        """Begin from a snapshot."""
        self._by_id.clear()
        self._unsettled.clear()
        began: list[tuple[int, int]] = []
        for entry in entries:
            producer = Producer(entry.producer_epoch)
            producer.last_timestamp_ms = entry.timestamp_ms
            producer.coordinator_epoch = entry.coordinator_epoch
            if entry.last_sequence >= 0:
                producer.batches.append(_restored_batch(entry))
            if entry.txn_first_offset >= 0:
                producer.transaction_began_at = entry.txn_first_offset
                began.append((entry.txn_first_offset, entry.producer_id))
            self._by_id[entry.producer_id] = producer
        self.open_transactions = {producer_id: first_offset for first_offset, producer_id in sorted(began)}


def _distance(before: int, after: int) -> int:
    """How far one sequence number is behind another; they wrap around."""
    ahead = (after - before) & SEQUENCE_MAX
    return ahead if ahead <= SEQUENCE_MAX // 2 else ahead - SEQUENCE_MAX - 1


def _entry(producer_id: int, producer: Producer) -> ProducerEntry:
    last = producer.batches[-1] if producer.batches else None
    began_at = producer.transaction_began_at
    return ProducerEntry(
        producer_id=producer_id,
        producer_epoch=producer.epoch,
        last_sequence=producer.last_sequence,
        last_offset=-1 if last is None else last.last_offset,
        offset_delta=0 if last is None else last.last_offset - last.first_offset,
        timestamp_ms=producer.last_timestamp_ms,
        coordinator_epoch=producer.coordinator_epoch,
        txn_first_offset=-1 if began_at is None else began_at,
    )


def _restored_batch(entry: ProducerEntry) -> AppendedBatch:
    first_sequence = entry.last_sequence - entry.offset_delta
    if first_sequence < 0:  # the batch wrapped around
        first_sequence += SEQUENCE_MAX + 1
    first_offset = entry.last_offset - entry.offset_delta
    return AppendedBatch(
        first_sequence, entry.last_sequence, first_offset, entry.last_offset, entry.timestamp_ms
    )
