"""Compaction: which batches and records of a log survive, and the pass that rewrites its closed segments.

A pass has two parts. First the dirty part is read, and for each key the offset of its last record noted, as
many keys as the plan allows. Then every segment from the log's start is copied without what is superseded;
neighbours that have become small are merged. The rules are Kafka's:

- a tombstone stays for delete.retention.ms after the pass that first met it, counted by the delete horizon
  that this pass writes into the batch;
- records of aborted transactions go at once; a marker goes, as late as a tombstone, when none of its
  transaction's records are left;
- the last batch of each producer stays, without records if need be; so does the last of each new segment.

The copy of segments replaces them all or nothing: it is written to `.cleaned` files, made durable off the
loop's thread, and renamed to `.swap`, the log last. From then on recovery completes the exchange; before, it
forgets the copy.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol, TypeVar

from gapless.core.log import AbortedTransaction, CleaningPlan, LogFailed
from gapless.storage import disk, rules
from gapless.storage.aborted import encode_aborted
from gapless.storage.disk import Disk
from gapless.storage.scan import DamagedLog, largest_timestamp
from gapless.storage.segment import ABORTED_SUFFIX, SUFFIXES, Segment
from gapless.wire.batch import BatchHeader, InvalidBatch, parse_header
from gapless.wire.errors import MalformedMessage
from gapless.wire.records import (
    Outline,
    delete_horizon_ms,
    iterate_records,
    opened_records,
    outline,
    thinned,
)
from gapless.wire.transaction_records import decode_marker

logger = logging.getLogger("gapless.storage")

SLICE_BYTES = 64 * 1024
"""How much of a log one step reads, give or take a batch: some milliseconds of work."""

PIECE_RECORDS = 500
"""The same for a batch with many records."""

_DIGEST_BYTES = 16

Buffer = bytes | bytearray | memoryview

T = TypeVar("T")
Work = Generator[None, None, T]
"""Something with a result, that pauses wherever others should have a turn."""


def at_once(work: Work[T]) -> T:
    """Do all of it without a pause; the result."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result


class Extent(Protocol):
    """A segment, as far as grouping needs it."""

    @property
    def base_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def size(self) -> int: ...


E = TypeVar("E", bound=Extent)


def groups(segments: Sequence[E], max_bytes: int) -> list[list[E]]:
    """Neighbours that are to become one segment: no larger than one may be, even if nothing goes."""
    made: list[list[E]] = []
    size = 0
    for segment in segments:
        fits = size + segment.size <= max_bytes
        if made and fits and segment.end_offset - made[-1][0].base_offset <= rules.MAX_RELATIVE:
            made[-1].append(segment)
            size += segment.size
        else:
            made.append([segment])
            size = segment.size
    return made


# ----------------------------------------------------------------------------------------------- the rules


class _Transactions:
    """Which transactional batches belong to aborted transactions, and which markers are still needed."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._ahead = deque(sorted(aborted, key=lambda entry: entry.first_offset))
        self._aborted: dict[int, AbortedTransaction] = {}
        self._seen: dict[int, None] = {}
        """Producers of whose transaction, whatever its end, a batch was met."""
        self.kept: list[AbortedTransaction] = []
        """Those whose marker was met after some of their batches: readers must still be told of them."""

    def _begin_up_to(self, offset: int) -> None:
        while self._ahead and self._ahead[0].first_offset <= offset:
            entry = self._ahead.popleft()
            self._aborted[entry.producer_id] = entry

    def is_aborted(self, batch: BatchHeader) -> bool:
        """Whether a batch of data belongs to an aborted transaction."""
        self._begin_up_to(batch.last_offset)
        if not batch.is_transactional:
            return False
        self._seen[batch.producer_id] = None
        return batch.producer_id in self._aborted

    def is_spent(self, batch: BatchHeader, payload: Buffer) -> bool:
        """Whether a marker has nothing left to say: no batch of its transaction was met."""
        self._begin_up_to(batch.last_offset)
        marker = decode_marker(iterate_records(payload, batch))
        if marker is None:
            return not batch.record_count
        seen = batch.producer_id in self._seen
        self._seen.pop(batch.producer_id, None)
        if not marker.committed:
            entry = self._aborted.pop(batch.producer_id, None)
            if entry is not None and seen:
                self.kept.append(entry)
        return not seen


class Sweep:
    """The rules of one pass, without any files."""

    def __init__(self, plan: CleaningPlan, first_dirty: int, aborted: Sequence[AbortedTransaction]) -> None:
        self._plan = plan
        self._last_offsets: dict[bytes, int] = {}
        self._noting = _Transactions(aborted)
        self._sweeping = _Transactions(aborted)
        self._producers = {entry.producer_id: entry for entry in plan.producers}
        self.covered = first_dirty
        """Up to where the last record of each key is known."""

    def note(self, batch: BatchHeader, payload: Buffer) -> Work[bool]:
        """Note the keys of a batch of the dirty part; False if there is no room for them in this pass."""
        try:
            _, records = yield from _outlined(batch, payload)
            if batch.is_control:
                self._noting.is_spent(batch, payload)
            elif not self._noting.is_aborted(batch):
                known = self._last_offsets
                if known and len(known) + len(records) > self._plan.max_keys:
                    return False
                for record in records:
                    if record.key is not None:
                        known[_digest(record.key)] = record.offset
        except (InvalidBatch, MalformedMessage) as error:
            logger.warning("the batch at offset %d is kept as it is: %s", batch.base_offset, error)
        self.covered = batch.next_offset
        return True

    def survivor(self, batch: BatchHeader, payload: Buffer, is_last: bool) -> Work[Buffer | None]:
        """What is left of a batch; None if nothing. `is_last`: its segment's, which then ends with it."""
        try:
            data, records = yield from _outlined(batch, payload)
            discarded, spent = self._judge(batch, payload)
        except (InvalidBatch, MalformedMessage):
            return payload
        if discarded:
            kept = []
        elif batch.is_control:
            kept = records
        else:
            kept = self._kept(batch, records)
            if len(records) >= PIECE_RECORDS:
                yield
        if not kept:
            if not is_last and not self._is_last_of_producer(batch):
                return None
            return payload if not records else thinned(batch, data, ())
        wants_horizon = spent or (not batch.is_control and not all(record.has_value for record in kept))
        if wants_horizon and delete_horizon_ms(batch) is None:
            return thinned(batch, data, kept, self._plan.now_ms + self._plan.delete_retention_ms)
        return payload if len(kept) == len(records) else thinned(batch, data, kept)

    def _judge(self, batch: BatchHeader, payload: Buffer) -> tuple[bool, bool]:
        """Whether all records of a batch go, and whether it is a marker that is not needed any more."""
        if not batch.is_control:
            return self._sweeping.is_aborted(batch), False
        spent = self._sweeping.is_spent(batch, payload)
        horizon_ms = delete_horizon_ms(batch)
        return spent and horizon_ms is not None and horizon_ms <= self._plan.now_ms, spent

    def _kept(self, batch: BatchHeader, records: Sequence[Outline]) -> list[Outline]:
        horizon_ms = delete_horizon_ms(batch)
        keeps_tombstones = horizon_ms is None or self._plan.now_ms < horizon_ms
        return [record for record in records if self._is_kept(record, keeps_tombstones)]

    def _is_kept(self, record: Outline, keeps_tombstones: bool) -> bool:
        if record.offset >= self.covered:
            return True
        if record.key is None or record.offset < self._last_offsets.get(_digest(record.key), -1):
            return False
        return record.has_value or keeps_tombstones

    def _is_last_of_producer(self, batch: BatchHeader) -> bool:
        entry = self._producers.get(batch.producer_id) if batch.has_producer_id else None
        if entry is None:
            return False
        if entry.last_sequence >= 0:
            return batch.last_offset == entry.last_offset
        return batch.is_control and batch.producer_epoch == entry.producer_epoch

    def take_aborted(self) -> list[AbortedTransaction]:
        """The aborted transactions that readers of what was copied since the last call must know of."""
        kept, self._sweeping.kept = self._sweeping.kept, []
        return kept


def _outlined(batch: BatchHeader, payload: Buffer) -> Work[tuple[bytes, list[Outline]]]:
    """The opened records of a batch, and what they are; a large batch takes several pieces of work."""
    data = opened_records(payload, batch)
    records: list[Outline] = []
    for record in outline(data, batch):
        records.append(record)
        if len(records) % PIECE_RECORDS == 0:
            yield
    return data, records


def _digest(key: bytes) -> bytes:
    """Something short that stands for a key: short keys are shorter than any digest."""
    return key if len(key) < _DIGEST_BYTES else blake2b(key, digest_size=_DIGEST_BYTES).digest()


# ----------------------------------------------------------------------------------------------- the files


class Copied(NamedTuple):
    """A cleaned copy of neighbouring segments, durable and ready to take their place."""

    sources: list[Segment]
    segment: Segment
    aborted: list[AbortedTransaction]


class CleanedLog(Protocol):
    """What a pass asks of the log that it cleans."""

    def new_copy(self, base_offset: int) -> Segment:
        """A segment under construction, its files not yet made."""

    def exchange(self, copied: Copied) -> None:
        """Put a copy in the place of its sources. Raises `LogFailed`."""

    def cleaning_ended(self, covered: int | None) -> None:
        """The pass is over; what it covered, if it came to its end."""


class FileCleaning:
    """`core.log.Cleaning` on files."""

    def __init__(
        self, log: CleanedLog, sources: Sequence[Segment], sweep: Sweep, calls: Disk, max_bytes: int
    ) -> None:
        self._log = log
        self._sources = sources
        self._sweep = sweep
        self._disk = calls
        self._max_bytes = max_bytes
        self._copy: Segment | None = None
        self._is_over = False
        self._budget = 0
        self._work = self._run()

    def step(self) -> bool:
        """See `core.log.Cleaning`. What fails before an exchange harms nobody: the pass is given up."""
        if self._is_over:
            return True
        self._budget = SLICE_BYTES
        try:
            next(self._work)
        except StopIteration:
            self._is_over = True
            self._log.cleaning_ended(self._sweep.covered)
        except (OSError, DamagedLog) as error:
            logger.warning("compaction is given up for now: %s", error)
            self.abandon()
        except LogFailed:
            self.abandon()
            raise
        return self._is_over

    def abandon(self) -> None:
        """See `core.log.Cleaning`."""
        if not self._is_over:
            self._is_over = True
            self._drop_copy()
            self._log.cleaning_ended(None)

    def _drop_copy(self) -> None:
        if self._copy is not None:
            try:
                self._copy.remove()
            except OSError as error:
                logger.warning("%s stays until the next start: %s", self._copy.path, error)
            self._copy = None

    def _run(self) -> Iterator[None]:
        yield from self._note_keys()
        covered = [source for source in self._sources if source.base_offset < self._sweep.covered]
        for group in groups(covered, self._max_bytes):
            yield from self._copy_group(group)

    def _note_keys(self) -> Iterator[None]:
        sweep = self._sweep
        for source in self._sources:
            if source.end_offset <= sweep.covered:
                continue
            for batch, payload in _batches(source, sweep.covered):
                if not (yield from sweep.note(batch, payload)):
                    return
                if self._spend(batch.size_bytes):
                    yield
        sweep.covered = self._sources[-1].end_offset

    def _copy_group(self, group: list[Segment]) -> Iterator[None]:
        copy = self._copy = self._log.new_copy(group[0].base_offset)
        copy.create()
        changed = len(group) > 1
        end_offset = group[-1].end_offset
        for source in group:
            for batch, payload in _batches(source, source.base_offset):
                is_last = batch.next_offset == end_offset
                survivor = yield from self._sweep.survivor(batch, payload, is_last)
                if survivor is not None:
                    self._write(copy, survivor)
                changed |= survivor is not payload
                if self._spend(batch.size_bytes):
                    yield
        aborted = self._sweep.take_aborted()
        if not changed:
            self._drop_copy()
            return
        copy.seal()
        yield from self._make_durable(copy, aborted)
        self._copy = None
        self._log.exchange(Copied(group, copy, aborted))
        yield

    def _write(self, copy: Segment, payload: Buffer) -> None:
        batch = parse_header(payload, 0)
        position = copy.size
        disk.write_fully(self._disk.pwrite, copy.open().fd, payload, position)
        copy.note(position, batch.size_bytes, batch.last_offset, largest_timestamp(batch))
        if copy.group_is_due:
            copy.write_indexes()

    def _spend(self, size_bytes: int) -> bool:
        """Whether a step has done enough."""
        self._budget -= size_bytes
        return self._budget <= 0

    def _make_durable(self, copy: Segment, aborted: Sequence[AbortedTransaction]) -> Iterator[None]:
        """Sync the files of a copy on a thread of its own; nobody relies on them before."""
        directory = disk.open_directory(copy.path.rpartition("/")[0])
        name = copy.name(ABORTED_SUFFIX)
        disk.write_file(directory, name, encode_aborted(aborted), None)
        names = [copy.name(kind) for kind in SUFFIXES]
        problems: list[OSError] = []

        def sync() -> None:
            try:
                for name in names:
                    disk.sync_file(directory, name, self._disk)
                self._disk.fsync(directory.fd)
            except OSError as error:
                problems.append(error)

        thread = threading.Thread(target=sync, name="compaction", daemon=True)
        thread.start()
        while thread.is_alive():
            yield
        if problems:
            raise problems[0]
        copy.synced_bytes = copy.size
        copy.take_unsynced_indexes()


def _batches(source: Segment, offset: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The batches of a segment that end at or after an offset, each as a whole."""
    start = source.locate(offset)[0] if offset > source.base_offset else 0
    for found in source.skim(start):
        payload = source.read_batch(found)
        if len(payload) != found.size:
            raise DamagedLog(source.path, found.position, "it was cut short while it was compacted")
        yield parse_header(payload, 0), payload
