"""One partition's log in a folder of files. All runs on one thread; only `FlushJob.run` runs elsewhere.

An append is one write of the bytes as they came. A write or sync that fails is final: what was appended
before stays readable, nothing more is accepted, and every refusal repeats the first failure's sentence.
"""

from __future__ import annotations

import logging
from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from typing import NoReturn, Protocol

from gapless.core.log import (
    AbortedTransaction,
    Cleaning,
    CleaningPlan,
    LogConfig,
    LogFailed,
    LogSlice,
    ProducerEntry,
    SegmentInfo,
    TimedOffset,
)
from gapless.storage import disk, rules, times
from gapless.storage.aborted import AbortedIndex
from gapless.storage.compaction import Copied, FileCleaning, Sweep
from gapless.storage.disk import Disk
from gapless.storage.failing import Failing
from gapless.storage.flush import EpochFile, EpochUpdate, FlushJob, SyncedFile
from gapless.storage.formats import Partition
from gapless.storage.probes import Probes
from gapless.storage.recovery import Loaded
from gapless.storage.scan import DamagedLog
from gapless.storage.segment import CLEANED_SUFFIX, SWAP_SUFFIX, OpenSegments, Segment
from gapless.storage.slices import NOTHING, FileSlice, MemorySlice
from gapless.storage.snapshots import CorruptSnapshot, decode_snapshot, encode_snapshot, snapshot_name
from gapless.wire.batch import BatchHeader

logger = logging.getLogger("gapless.storage")


class Owner(Protocol):
    """What a log asks of its store."""

    disk: Disk
    cache: OpenSegments

    def discard(self, paths: Sequence[str], delay_ms: int) -> None:
        """Delete files later."""

    def checkpoint_soon(self) -> None:
        """Something that checkpoints hold has changed."""

    def lower_recovery_point(self, partition: Partition, offset: int) -> None:
        """Make it durable that nothing at or above `offset` is promised any more. Raises `OSError`."""


class FileLog(Failing):
    """`core.log.Log` on files, and what the shell needs beyond it: flushing."""

    def __init__(
        self,
        partition: Partition,
        directory: str,
        config: LogConfig,
        loaded: Loaded,
        owner: Owner,
        probes: Probes,
    ) -> None:
        super().__init__(partition, directory)
        self.probes = probes
        self.recovery = loaded.recovery
        self.start_offset = loaded.start_offset
        self.end_offset = loaded.segments[-1].end_offset
        self.size_bytes = sum(segment.size for segment in loaded.segments)
        self.flushed_offset = loaded.flushed_offset
        """Everything below it is known to be on disk: the recovery point."""
        self.config = config
        self._owner = owner
        self._pwrite = owner.disk.pwrite
        self._segments = loaded.segments
        self._bases = [segment.base_offset for segment in loaded.segments]
        self._active = loaded.segments[-1]
        self._epochs = loaded.epochs
        self._epoch_file = EpochFile()
        self._snapshots = loaded.snapshots
        self._aborted = AbortedIndex(directory, loaded.aborted_sizes)
        self._unsynced_aborted: set[str] = set()
        self.cleaned_offset = loaded.cleaned_offset
        self._cleaning: FileCleaning | None = None
        self._job: FlushJob | None = None
        self._unsynced_names: set[str] = set()
        self._directory_changed = loaded.directory_changed
        self._is_new = False
        self._prune_snapshots()

    @property
    def latest_epoch(self) -> int:
        return self._epochs.latest

    @property
    def first_base_offset(self) -> int:
        """The offset at which the oldest segment begins; the start may lie within it."""
        return self._bases[0]

    # -------------------------------------------------------------------------------------- appending

    def roll_if_needed(self, incoming_bytes: int, max_timestamp_ms: int) -> bool:
        """See `core.log.Log`."""
        active = self._active
        if not active.size:
            return False
        offsets = self.end_offset - active.base_offset
        if not rules.is_full(self.config, active.size, offsets, incoming_bytes):
            first = active.first_timestamp
            if first is None:
                with self._reading():
                    first = active.first_batch_timestamp()
            if not rules.is_too_old(self.config, first, max_timestamp_ms):
                return False
        with self._changing("begin a new segment in"):
            self._begin_segment(self.end_offset)
        return True

    def _begin_segment(self, base_offset: int) -> None:
        """Seal the active segment and go on in a new one."""
        self._active.seal()
        segment = Segment(
            self.directory, base_offset, self.config.index_interval_bytes, self._owner.cache, self.probes
        )
        segment.create()
        self._segments.append(segment)
        self._bases.append(base_offset)
        self._active = segment
        self._directory_changed = True

    def append(self, batches: Sequence[BatchHeader], payload: memoryview) -> None:
        """See `core.log.Log`."""
        if self.failure is not None:
            raise LogFailed(self.failure)
        size = len(payload)
        active = self._active
        rules.check_chain(batches, size, self.end_offset, active.base_offset)
        file = active.file if active.pinned and active.file is not None else self._pin_active()
        position = active.size
        try:
            written = self._pwrite(file.fd, payload, position)
            if written != size:
                disk.write_fully(self._pwrite, file.fd, payload[written:], position + written)
        except OSError as error:
            self._undo_append(file.fd, position, error)
        if not position:
            active.first_timestamp = batches[0].max_timestamp
        epochs = self._epochs
        for batch in batches:
            size_bytes = batch.size_bytes
            active.note(
                position, size_bytes, batch.base_offset + batch.last_offset_delta, batch.max_timestamp
            )
            position += size_bytes
            if batch.leader_epoch > epochs.latest:
                epochs.begin(batch.leader_epoch, batch.base_offset)
        self.end_offset = active.end_offset
        self.size_bytes += size
        if active.group_is_due:
            self._write_indexes(active)

    def _pin_active(self) -> disk.OpenFile:
        with self._changing("open"):
            return self._active.pin()

    def _undo_append(self, fd: int, position: int, error: OSError) -> NoReturn:
        """Take back what part of an append was written, so that the file ends with the last whole one."""
        failed = disk.failure("append to", self._active.path, error)
        try:
            disk.resize(fd, position)
        except OSError as second:
            logger.warning("%s keeps a torn tail until the next start: %s", self._active.path, second)
        self._fail(str(failed))
        raise failed from error

    def _write_indexes(self, segment: Segment) -> None:
        """Write waiting index entries. If that fails, this append is done and the next one is refused."""
        try:
            segment.write_indexes()
        except OSError as error:
            self._fail(str(disk.failure("write the index", segment.offsets.path, error)))

    # ---------------------------------------------------------------------------------------- reading

    def read(self, offset: int, max_bytes: int, before: int, at_least_one: bool) -> FileSlice | MemorySlice:
        """See `core.log.Log`."""
        if offset < self.start_offset:
            raise ValueError(f"offset {offset} lies before the log's start {self.start_offset}")
        return self._slice(offset, max_bytes, before, at_least_one)

    def _slice(self, offset: int, max_bytes: int, before: int, at_least_one: bool) -> FileSlice | MemorySlice:
        if offset >= before or offset >= self.end_offset:
            return NOTHING
        active = self._active
        segment = active if offset >= active.base_offset else self._segment_of(offset)
        try:
            position, size, next_offset = segment.locate(offset)
            end, end_offset = segment.size, segment.end_offset
            if before < end_offset:
                end, end_offset = segment.start_of(before)
            if end - position > max_bytes:
                if size <= max_bytes:
                    end, end_offset = segment.boundary(position + max_bytes, position + size)
                elif at_least_one:
                    end, end_offset = position + size, next_offset
                else:
                    return NOTHING
            if end <= position:
                return NOTHING
            return FileSlice(segment.open(), position, end - position, end_offset)
        except (OSError, DamagedLog) as error:
            raise self._read_failed(error) from error

    def _segment_of(self, offset: int) -> Segment:
        return self._segments[bisect_right(self._bases, offset) - 1]

    def bytes_from(self, offset: int, max_bytes: int) -> bytes | memoryview:
        """See `core.log.Log`."""
        found = self._slice(offset, max_bytes, self.end_offset, at_least_one=True)
        return found.read(0, found.size)

    def batches_from(self, offset: int) -> Iterator[BatchHeader]:
        """See `core.log.Log`."""
        if offset >= self.end_offset:
            return
        for segment in self._segments[max(0, bisect_right(self._bases, offset) - 1) :]:
            with self._reading():
                yield from segment.headers_from(offset)

    def segments(self) -> Sequence[SegmentInfo]:
        """See `core.log.Log`."""
        return [
            SegmentInfo(segment.base_offset, segment.end_offset, segment.size, self._largest_time(segment))
            for segment in self._segments
        ]

    def _largest_time(self, segment: Segment) -> int:
        """A segment that cannot be read counts as old as its file, lest it keep retention from its work."""
        try:
            return segment.latest()[0]
        except (OSError, DamagedLog) as error:
            logger.warning("retention goes by the age of the file: %s", self._read_failed(error))
        with self._reading():
            return disk.modified_ms(segment.path)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """See `core.log.Log`."""
        return self._epochs.end_of(epoch, self.end_offset)

    def offset_at_time(self, timestamp_ms: int, before: int) -> TimedOffset | None:
        """See `core.log.Log`."""
        with self._reading():
            for segment in self._segments:
                if segment.base_offset >= before:
                    break
                found = times.first_reaching_in(segment, timestamp_ms, self.start_offset, before)
                if found is not None:
                    return found
        return None

    def latest_timestamp(self, before: int) -> TimedOffset | None:
        """See `core.log.Log`."""
        best: TimedOffset | None = None
        with self._reading():
            for segment in self._segments:
                if segment.base_offset >= before:
                    break
                if segment.latest()[0] > (best.timestamp_ms if best else -1):
                    found = times.latest_in(segment, self.start_offset, before)
                    if found is not None and (best is None or found.timestamp_ms > best.timestamp_ms):
                        best = found
        return best

    # ---------------------------------------------------------------------------------------- cutting

    def truncate_to(self, offset: int) -> None:
        """See `core.log.Log`."""
        if offset >= self.end_offset:
            return
        with self._changing("cut"):
            if offset <= self.start_offset:
                self._restart_at(offset)
                return
            segment = self._segment_of(offset)
            batch = segment.find(offset)
            if batch.base_offset <= self.start_offset:
                self._restart_at(self.start_offset)
                return
            self._lower_flushed(batch.base_offset)
            for later in reversed(self._segments[bisect_right(self._bases, segment.base_offset) :]):
                self._retire(later)
            self._truncate(segment, batch.position)
            self._cut_done(segment, batch.base_offset)

    def _restart_at(self, offset: int) -> None:
        """Empty the log; it goes on at `offset`."""
        self._lower_flushed(offset)
        keep = self._segment_of(offset) if offset in self._bases else None
        if keep is None:
            self._begin_segment(offset)
            keep = self._active
        for segment in reversed(self._segments[:]):
            if segment is not keep:
                self._retire(segment)
        self._truncate(keep, 0)
        self.start_offset = offset
        self._cut_done(keep, offset)

    def _truncate(self, segment: Segment, position: int) -> None:
        self._abandon_cleaning()
        segment.truncate(position)
        if self._job is not None:
            for item in self._job.files:
                if item.segment is segment:
                    item.size = min(item.size, position)

    def _cut_done(self, last: Segment, end_offset: int) -> None:
        self._active = last
        self.end_offset = end_offset
        self.cleaned_offset = min(self.cleaned_offset, end_offset)
        self.size_bytes = sum(segment.size for segment in self._segments)
        self._epochs.cut_end(end_offset)
        self._write_epochs()
        self._aborted.cut(last.base_offset, end_offset)
        while self._snapshots and self._snapshots[-1] > end_offset:
            self._remove_snapshot(self._snapshots.pop())
        self._directory_changed = True
        self._owner.checkpoint_soon()

    def _write_epochs(self) -> None:
        """Keep the file from naming epochs whose batches are gone; the next flush makes it durable."""
        number = self._epoch_file.take_number()
        self._epoch_file.write(disk.open_directory(self.directory), number, self._epochs.entries, None)

    def _lower_flushed(self, offset: int) -> None:
        """Before bytes go, take back the promise that they are there."""
        if self._job is not None:
            self._job.offset = min(self._job.offset, offset)
        self.flushed_offset = min(self.flushed_offset, offset)
        self._owner.lower_recovery_point(self.partition, offset)

    def _retire(self, segment: Segment) -> None:
        self._abandon_cleaning()
        self._take_out(segment)

    def _take_out(self, segment: Segment) -> None:
        index = self._segments.index(segment)
        del self._segments[index], self._bases[index]
        self._aborted.forget(segment.base_offset)
        self._owner.discard(segment.retire(), self.config.file_delete_delay_ms)

    def advance_start(self, offset: int) -> bool:
        """See `core.log.Log`."""
        if offset <= self.start_offset:
            return False
        with self._changing("drop old segments of"):
            if offset > self.end_offset:
                self._restart_at(offset)
                self._epochs.clear()
                self._write_epochs()
                self.flushed_offset = offset
                return True
            self.start_offset = offset
            self._epochs.cut_start(offset)
            rolled = offset == self.end_offset and self._active.size > 0
            if rolled:
                self._begin_segment(offset)
            if self._epochs.changed:
                self._write_epochs()  # before the batches go from which they could be found again
            while len(self._segments) > 1 and self._segments[0].end_offset <= offset:
                self._retire(self._segments[0])
            self.size_bytes = sum(segment.size for segment in self._segments)
            self.flushed_offset = max(self.flushed_offset, self._bases[0])
            self._prune_snapshots()
        self._owner.checkpoint_soon()
        return rolled

    # -------------------------------------------------------------------------------------- producers

    def save_producers(self, entries: Sequence[ProducerEntry]) -> None:
        """See `core.log.Log`."""
        name = snapshot_name(self.end_offset)
        with self._changing("write the producers' state to"):
            self._sync_aborted()
            disk.replace_file(disk.open_directory(self.directory), name, encode_snapshot(entries), None)
        self._unsynced_names.add(name)
        self._directory_changed = True
        if self.end_offset not in self._snapshots:
            insort(self._snapshots, self.end_offset)
        self._prune_snapshots()

    def load_producers(self) -> tuple[int, list[ProducerEntry]]:
        """See `core.log.Log`."""
        while self._snapshots:
            offset = self._snapshots[-1]
            path = f"{self.directory}/{snapshot_name(offset)}"
            try:
                with self._reading():
                    entries = decode_snapshot(disk.read_file(path) or b"")
                self._forget_aborted(offset)
                return offset, entries
            except CorruptSnapshot as error:
                logger.warning("%s is not used: %s", path, error)
                self._snapshots.pop()
                self._remove_snapshot(offset)
        self._forget_aborted(self._bases[0])
        return self._bases[0], []

    def _prune_snapshots(self) -> None:
        """Keep those at which a segment begins, for truncation, and the newest in any case."""
        bases = set(self._bases)
        for offset in self._snapshots[:-1]:
            if offset not in bases:
                self._snapshots.remove(offset)
                self._remove_snapshot(offset)

    def _remove_snapshot(self, offset: int) -> None:
        name = snapshot_name(offset)
        self._unsynced_names.discard(name)
        disk.remove_file(f"{self.directory}/{name}")

    # ----------------------------------------------------------------------------------- transactions

    def note_aborted(self, aborted: AbortedTransaction) -> None:
        """See `core.log.Log`."""
        base = self._segment_of(aborted.last_offset).base_offset
        with self._changing("note an aborted transaction in"):
            if self._aborted.add(base, aborted):
                self._directory_changed = True
        self._unsynced_aborted.add(self._aborted.name(base))

    def aborted_in(self, offset: int, records: LogSlice, before: int) -> list[AbortedTransaction]:
        """See `core.log.Log`."""
        if not self._aborted or not isinstance(records, FileSlice):
            return []
        with self._reading():
            first = bisect_right(self._bases, offset) - 1
            bound = self._segments[first].offset_bound(records.position + records.size)
            return self._aborted.find_all(self._bases[first:], offset, min(bound, before))

    def _forget_aborted(self, offset: int) -> None:
        """Forget what ends at or above an offset, from which on the log is replayed."""
        with self._changing("cut the index of aborted transactions of"):
            for base in self._bases[max(0, bisect_right(self._bases, offset) - 1) :]:
                self._aborted.cut(base, offset)

    def _sync_aborted(self) -> None:
        """Before a snapshot: whoever starts from it does not see the markers before it again."""
        if self._unsynced_aborted:
            directory = disk.open_directory(self.directory)
            for name in sorted(self._unsynced_aborted):
                disk.sync_file(directory, name, self._owner.disk)
            self._owner.disk.fsync(directory.fd)
            self._unsynced_aborted.clear()

    # ------------------------------------------------------------------------------------- compaction

    def begin_cleaning(self, plan: CleaningPlan) -> Cleaning | None:
        """See `core.log.Log`. Only what is known to be on disk is cleaned: recovery checks nothing of it."""
        if self._cleaning is not None or self.failure is not None:
            return None
        limit = min(plan.end_offset, self.flushed_offset)
        sources = [segment for segment in self._segments[:-1] if segment.end_offset <= limit]
        first_dirty = max(self.cleaned_offset, self.start_offset)
        if not sources or sources[-1].end_offset <= first_dirty:
            return None
        sweep = Sweep(plan, first_dirty, self._aborted_below(sources[-1].end_offset))
        self._cleaning = FileCleaning(self, sources, sweep, self._owner.disk, self.config.segment_bytes)
        return self._cleaning

    def _aborted_below(self, offset: int) -> list[AbortedTransaction]:
        with self._reading():
            return self._aborted.find_all(self._bases, self._bases[0], offset)

    def new_copy(self, base_offset: int) -> Segment:
        """See `CleanedLog`."""
        interval, owner = self.config.index_interval_bytes, self._owner
        return Segment(self.directory, base_offset, interval, owner.cache, self.probes, CLEANED_SUFFIX)

    def exchange(self, copied: Copied) -> None:
        """See `CleanedLog`."""
        with self._changing("put compacted segments into"):
            copied.segment.move_to(SWAP_SUFFIX)
            index = self._segments.index(copied.sources[0])
            for source in reversed(copied.sources):
                self._take_out(source)
            copied.segment.move_to("")
            self._segments.insert(index, copied.segment)
            self._bases.insert(index, copied.segment.base_offset)
            self._aborted.replaced(copied.segment.base_offset, len(copied.aborted))
            self.size_bytes = sum(segment.size for segment in self._segments)
            self._directory_changed = True
            self._prune_snapshots()

    def cleaning_ended(self, covered: int | None) -> None:
        """See `CleanedLog`."""
        self._cleaning = None
        if covered is not None:
            self.cleaned_offset = covered
            self._owner.checkpoint_soon()

    def _abandon_cleaning(self) -> None:
        if self._cleaning is not None:
            self._cleaning.abandon()

    # --------------------------------------------------------------------------------------- flushing

    @property
    def has_unflushed_closed_segments(self) -> bool:
        """Whether a segment was rolled that is not known to be on disk: flush it in the background."""
        return self._active.base_offset > self.flushed_offset

    def prepare_flush(self, closed_only: bool = False) -> FlushJob | None:
        """A job that makes the log durable as it is now (with `closed_only`, without the active segment).

        None if it is durable already. One job at a time: `flushed` must follow before the next.
        """
        self._refuse_if_failed()
        if self._job is not None:
            raise ValueError("a flush of this log is under way")
        dirty = []
        for segment in reversed(self._segments):
            if segment.end_offset <= self.flushed_offset and not segment.is_dirty:
                break
            if segment.is_dirty and not (closed_only and segment is self._active):
                dirty.append(segment)
        names = self._unsynced_names
        changed = bool(names) or self._directory_changed or self._epochs.changed
        offset = self._active.base_offset if closed_only else self.end_offset
        if not dirty and offset <= self.flushed_offset and (closed_only or not changed):
            return None
        with self._changing("flush"):
            job = FlushJob(offset, disk.open_directory(self.directory), self._owner.disk, self._fail)
            for segment in reversed(dirty):
                if segment.synced_bytes != segment.size:
                    job.files.append(SyncedFile(segment, segment.pin(), segment.size))
                job.names += segment.take_unsynced_indexes()
            if self._directory_changed:
                job.directories.append(job.directory)
            if self._is_new:
                job.directories.append(disk.open_directory(self.directory.rpartition("/")[0]))
        job.names += sorted(names)
        if self._epochs.changed:
            number = self._epoch_file.take_number()
            job.epochs = EpochUpdate(self._epoch_file, number, list(self._epochs.entries))
        self._unsynced_names = set()
        self._directory_changed = self._is_new = self._epochs.changed = False
        self._job = job
        return job

    def flushed(self, job: FlushJob) -> None:
        """A job has run without an error: what it covers is durable."""
        if job is not self._job:
            raise ValueError("this flush was not prepared by this log, or was reported before")
        self._job = None
        for item in job.files:
            segment = item.segment
            segment.synced_bytes = min(item.size, segment.size)
            if segment is not self._active:
                segment.unpin()
        if job.offset > self.flushed_offset:
            self.flushed_offset = job.offset
            self._owner.checkpoint_soon()

    # ------------------------------------------------------------------------------------------ other

    def configure(self, config: LogConfig) -> None:
        """See `core.log.Log`."""
        self.config = config
        for segment in self._segments:
            segment.interval_bytes = config.index_interval_bytes

    def note_created(self, name: str) -> None:
        """The folder is new, and has a file of that name: the next flush makes both durable."""
        self._unsynced_names.add(name)
        self._directory_changed = self._is_new = self._epochs.changed = True

    def write_indexes(self) -> None:
        """Complete the index files, so that a flush makes all of them durable. Raises `LogFailed`."""
        with self._changing("write the index of"):
            self._active.seal()

    def close(self) -> None:
        """See `core.log.Log`."""
        self._abandon_cleaning()
        if self.failure is None:
            try:
                self.write_indexes()
            except LogFailed as error:
                logger.warning("an index is not complete and will be rebuilt: %s", error)
        self.failure = self.failure or "the log is closed"
        for segment in self._segments:
            segment.close()
