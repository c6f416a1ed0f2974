"""The log's twin in memory: the same answers as `FileLog`, proven by the same tests, without a disk.

For the core's tests and the simulator. It survives closing and opening again; `MemoryLogStore.power_cut`
takes away what was not flushed, and setting `MemoryLog.failure` makes a log refuse like one on a broken
disk.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple
from uuid import UUID

from gapless.core.log import (
    AbortedTransaction,
    CleaningPlan,
    LogConfig,
    LogFailed,
    LogSlice,
    ProducerEntry,
    SegmentInfo,
    TimedOffset,
)
from gapless.storage import rules, times
from gapless.storage.compaction import Sweep, at_once, groups
from gapless.storage.epochs import EpochHistory
from gapless.storage.formats import Partition
from gapless.storage.scan import largest_timestamp
from gapless.storage.slices import NOTHING, MemorySlice
from gapless.wire.batch import BatchHeader, parse_header

_base_offset = attrgetter("base_offset")
_last_offset = attrgetter("last_offset")


class Stored(NamedTuple):
    """A batch and what its header says."""

    header: BatchHeader
    data: bytes
    last_offset: int


@dataclass(slots=True)
class MemorySegment:
    """Batches from `base_offset` on."""

    base_offset: int
    batches: list[Stored] = field(default_factory=list)
    size: int = 0
    max_timestamp: int = -1

    @property
    def end_offset(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else self.base_offset

    def add(self, batch: Stored) -> None:
        """Put a batch at the end."""
        self.batches.append(batch)
        self.size += len(batch.data)
        self.max_timestamp = max(self.max_timestamp, largest_timestamp(batch.header))

    def cut(self, index: int) -> None:
        """Drop all batches from one on."""
        del self.batches[index:]
        self.size = sum(len(batch.data) for batch in self.batches)
        self.max_timestamp = max((largest_timestamp(batch.header) for batch in self.batches), default=-1)

    def find(self, offset: int) -> int:
        """Which batch is the first whose last offset is at or after `offset`."""
        batches = self.batches
        if not batches or batches[-1].last_offset < offset:
            return len(batches)
        return bisect_left(batches, offset, key=_last_offset)


@dataclass(slots=True)
class Contents:
    """What the medium holds of one log."""

    topic_id: UUID
    segments: list[MemorySegment]
    epochs: EpochHistory = field(default_factory=EpochHistory)
    snapshots: dict[int, list[ProducerEntry]] = field(default_factory=dict)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    start_offset: int = 0
    flushed_offset: int = 0
    cleaned_offset: int = 0


@dataclass(slots=True)
class MemoryFlushJob:
    """The twin of `FlushJob`."""

    offset: int

    def run(self) -> None:
        """Memory is as durable as it will ever be."""


class MemoryCleaning:
    """The twin of `FileCleaning`: all of it is one step."""

    def __init__(self, clean: Callable[[], None]) -> None:
        self._clean: Callable[[], None] | None = clean

    def step(self) -> bool:
        """See `core.log.Cleaning`."""
        if self._clean is not None:
            self._clean()
        return True

    def abandon(self) -> None:
        """See `core.log.Cleaning`."""
        self._clean = None


class MemoryLog:
    """`core.log.Log` in memory."""

    def __init__(self, contents: Contents, config: LogConfig) -> None:
        self.config = config
        self.failure: str | None = None
        self._contents = contents
        self._segments = contents.segments
        self._epochs = contents.epochs
        self._job: MemoryFlushJob | None = None
        # Asked for all the time, and changed now and then: kept beside the contents.
        self.start_offset = contents.start_offset
        self.end_offset = contents.segments[-1].end_offset

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def flushed_offset(self) -> int:
        return self._contents.flushed_offset

    @property
    def latest_epoch(self) -> int:
        return self._epochs.latest

    @property
    def cleaned_offset(self) -> int:
        return self._contents.cleaned_offset

    def _refuse_if_failed(self) -> None:
        if self.failure is not None:
            raise LogFailed(self.failure)

    # -------------------------------------------------------------------------------------- appending

    def roll_if_needed(self, incoming_bytes: int, max_timestamp_ms: int) -> bool:
        """See `core.log.Log`."""
        active = self._segments[-1]
        if not active.batches:
            return False
        full = rules.is_full(self.config, active.size, self.end_offset - active.base_offset, incoming_bytes)
        first_timestamp = active.batches[0].header.max_timestamp
        if not full and not rules.is_too_old(self.config, first_timestamp, max_timestamp_ms):
            return False
        self._refuse_if_failed()
        self._segments.append(MemorySegment(self.end_offset))
        return True

    def append(self, batches: Sequence[BatchHeader], payload: memoryview) -> None:
        """See `core.log.Log`."""
        self._refuse_if_failed()
        active = self._segments[-1]
        rules.check_chain(batches, len(payload), self.end_offset, active.base_offset)
        position = 0
        for batch in batches:
            data = bytes(payload[position : position + batch.size_bytes])
            header = batch._replace(position=0) if batch.position else batch
            last_offset = batch.last_offset
            active.add(Stored(header, data, last_offset))
            position += batch.size_bytes
            self._epochs.begin(batch.leader_epoch, batch.base_offset)
            self.end_offset = last_offset + 1

    # ---------------------------------------------------------------------------------------- reading

    def read(self, offset: int, max_bytes: int, before: int, at_least_one: bool) -> MemorySlice:
        """See `core.log.Log`."""
        if offset < self.start_offset:
            raise ValueError(f"offset {offset} lies before the log's start {self.start_offset}")
        return self._slice(offset, max_bytes, before, at_least_one)

    def _slice(self, offset: int, max_bytes: int, before: int, at_least_one: bool) -> MemorySlice:
        if offset >= before or offset >= self.end_offset:
            return NOTHING
        segment = self._segments[self._segment_index(offset)]
        taken: list[bytes] = []
        size = 0
        end_offset = -1
        for _, data, last_offset in segment.batches[segment.find(offset) :]:
            first_may_exceed = at_least_one and not taken
            if last_offset >= before or (size + len(data) > max_bytes and not first_may_exceed):
                break
            taken.append(data)
            size += len(data)
            end_offset = last_offset + 1
        return MemorySlice(b"".join(taken), end_offset) if taken else NOTHING

    def _segment_index(self, offset: int) -> int:
        if len(self._segments) == 1:
            return 0
        return max(0, bisect_right(self._segments, offset, key=_base_offset) - 1)

    def bytes_from(self, offset: int, max_bytes: int) -> bytes | memoryview:
        """See `core.log.Log`."""
        found = self._slice(offset, max_bytes, self.end_offset, at_least_one=True)
        return found.read(0, found.size)

    def batches_from(self, offset: int) -> Iterator[BatchHeader]:
        """See `core.log.Log`."""
        for segment in self._segments[self._segment_index(offset) :]:
            for stored in segment.batches[segment.find(offset) :]:
                yield stored.header

    def segments(self) -> Sequence[SegmentInfo]:
        """See `core.log.Log`."""
        return [
            SegmentInfo(segment.base_offset, segment.end_offset, segment.size, segment.max_timestamp)
            for segment in self._segments
        ]

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """See `core.log.Log`."""
        return self._epochs.end_of(epoch, self.end_offset)

    def offset_at_time(self, timestamp_ms: int, before: int) -> TimedOffset | None:
        """See `core.log.Log`."""
        for batch in self._in_range(before):
            if batch.header.max_timestamp >= timestamp_ms:
                found = times.first_reaching(memoryview(batch.data), timestamp_ms, self.start_offset, before)
                if found is not None:
                    return found
        return None

    def latest_timestamp(self, before: int) -> TimedOffset | None:
        """See `core.log.Log`."""
        best: TimedOffset | None = None
        for batch in self._in_range(before):
            if batch.header.max_timestamp > (best.timestamp_ms if best else -1):
                found = times.latest(memoryview(batch.data), self.start_offset, before)
                if found is not None and found.timestamp_ms > (best.timestamp_ms if best else -1):
                    best = found
        return best

    def _in_range(self, before: int) -> Iterator[Stored]:
        for segment in self._segments[self._segment_index(self.start_offset) :]:
            for batch in segment.batches[segment.find(self.start_offset) :]:
                if batch.header.base_offset >= before:
                    return
                yield batch

    # ---------------------------------------------------------------------------------------- cutting

    def truncate_to(self, offset: int) -> None:
        """See `core.log.Log`."""
        if offset >= self.end_offset:
            return
        self._refuse_if_failed()
        if offset <= self.start_offset:
            self._restart_at(offset)
            return
        index = self._segment_index(offset)
        segment = self._segments[index]
        cut = segment.find(offset)
        end_offset = segment.batches[cut].header.base_offset
        if end_offset <= self.start_offset:
            self._restart_at(self.start_offset)
            return
        del self._segments[index + 1 :]
        segment.cut(cut)
        self._cut_done(end_offset)

    def _restart_at(self, offset: int) -> None:
        self._segments[:] = [MemorySegment(offset)]
        self._begin_at(offset)
        self._cut_done(offset)

    def _begin_at(self, offset: int) -> None:
        self.start_offset = self._contents.start_offset = offset

    def _cut_done(self, end_offset: int) -> None:
        contents = self._contents
        self.end_offset = end_offset
        contents.flushed_offset = min(contents.flushed_offset, end_offset)
        contents.cleaned_offset = min(contents.cleaned_offset, end_offset)
        if self._job is not None:
            self._job.offset = min(self._job.offset, end_offset)
        self._epochs.cut_end(end_offset)
        for offset in [offset for offset in contents.snapshots if offset > end_offset]:
            del contents.snapshots[offset]
        self._forget_aborted(end_offset)

    def advance_start(self, offset: int) -> bool:
        """See `core.log.Log`."""
        if offset <= self.start_offset:
            return False
        self._refuse_if_failed()
        contents = self._contents
        if offset > self.end_offset:
            self._restart_at(offset)
            self._epochs.clear()
            contents.flushed_offset = offset
            return True
        self._begin_at(offset)
        self._epochs.cut_start(offset)
        rolled = offset == self.end_offset and bool(self._segments[-1].batches)
        if rolled:
            self._segments.append(MemorySegment(offset))
        while len(self._segments) > 1 and self._segments[0].end_offset <= offset:
            del self._segments[0]
        first = self._segments[0].base_offset
        contents.flushed_offset = max(contents.flushed_offset, first)
        contents.aborted = [aborted for aborted in contents.aborted if aborted.last_offset >= first]
        self._prune_snapshots()
        return rolled

    # -------------------------------------------------------------------------------------- producers

    def save_producers(self, entries: Sequence[ProducerEntry]) -> None:
        """See `core.log.Log`."""
        self._refuse_if_failed()
        self._contents.snapshots[self.end_offset] = [replace(entry) for entry in entries]
        self._prune_snapshots()

    def load_producers(self) -> tuple[int, list[ProducerEntry]]:
        """See `core.log.Log`."""
        snapshots = self._contents.snapshots
        offset = max(snapshots, default=self._segments[0].base_offset)
        self._forget_aborted(offset)
        return offset, [replace(entry) for entry in snapshots.get(offset, ())]

    def _prune_snapshots(self) -> None:
        snapshots = self._contents.snapshots
        bases = {segment.base_offset for segment in self._segments}
        for offset in sorted(snapshots)[:-1]:
            if offset not in bases:
                del snapshots[offset]

    # ----------------------------------------------------------------------------------- transactions

    def note_aborted(self, aborted: AbortedTransaction) -> None:
        """See `core.log.Log`."""
        self._refuse_if_failed()
        self._contents.aborted.append(aborted)

    def aborted_in(self, offset: int, records: LogSlice, before: int) -> list[AbortedTransaction]:
        """See `core.log.Log`."""
        end, left = offset, records.size
        for batch in self.batches_from(offset):
            if left <= 0:
                break
            end = min(batch.next_offset, before)
            left -= batch.size_bytes
        return [
            aborted
            for aborted in self._contents.aborted
            if aborted.last_offset >= offset and aborted.first_offset < end
        ]

    def _forget_aborted(self, offset: int) -> None:
        """Forget what ends at or above an offset."""
        aborted = self._contents.aborted
        del aborted[bisect_left(aborted, offset, key=attrgetter("last_offset")) :]

    # ------------------------------------------------------------------------------------- compaction

    def begin_cleaning(self, plan: CleaningPlan) -> MemoryCleaning | None:
        """See `core.log.Log`."""
        sources = [segment for segment in self._segments[:-1] if segment.end_offset <= plan.end_offset]
        first_dirty = max(self.cleaned_offset, self.start_offset)
        if self.failure is not None or not sources or sources[-1].end_offset <= first_dirty:
            return None
        return MemoryCleaning(lambda: self._clean(plan, first_dirty, sources))

    def _clean(self, plan: CleaningPlan, first_dirty: int, sources: list[MemorySegment]) -> None:
        if sources != self._segments[: len(sources)]:
            return  # the log was cut meanwhile
        contents = self._contents
        sweep = Sweep(plan, first_dirty, contents.aborted)
        dirty = (batch for segment in sources for batch in segment.batches[segment.find(first_dirty) :])
        if all(at_once(sweep.note(batch.header, batch.data)) for batch in dirty):
            sweep.covered = sources[-1].end_offset
        covered = [segment for segment in sources if segment.base_offset < sweep.covered]
        swept = [_swept(group, sweep) for group in groups(covered, self.config.segment_bytes)]
        kept, end = sweep.take_aborted(), covered[-1].end_offset
        contents.aborted = kept + [entry for entry in contents.aborted if entry.last_offset >= end]
        self._segments[: len(covered)] = swept
        contents.cleaned_offset = sweep.covered
        self._prune_snapshots()

    # ------------------------------------------------------------------------------------------ other

    def prepare_flush(self) -> MemoryFlushJob | None:
        """The twin of `FileLog.prepare_flush`."""
        self._refuse_if_failed()
        if self.end_offset <= self.flushed_offset:
            return None
        self._job = MemoryFlushJob(self.end_offset)
        return self._job

    def flushed(self, job: MemoryFlushJob) -> None:
        """The twin of `FileLog.flushed`."""
        self._job = None
        self._contents.flushed_offset = max(self.flushed_offset, job.offset)

    def configure(self, config: LogConfig) -> None:
        """See `core.log.Log`."""
        self.config = config

    def close(self) -> None:
        """See `core.log.Log`."""
        self.failure = self.failure or "the log is closed"


def _swept(group: list[MemorySegment], sweep: Sweep) -> MemorySegment:
    """One segment of what is left of some."""
    made = MemorySegment(group[0].base_offset)
    end_offset = group[-1].end_offset
    for segment in group:
        for header, data, _ in segment.batches:
            left = at_once(sweep.survivor(header, data, header.next_offset == end_offset))
            if left is not None:
                kept = parse_header(left, 0)
                made.add(Stored(kept, bytes(left), kept.last_offset))
    return made


class MemoryLogStore:
    """`core.log.LogStore` in memory. Logs outlive `close`: opening one again is a restart of the broker."""

    location = "memory"

    def __init__(self) -> None:
        self.logs: dict[Partition, MemoryLog] = {}
        self._contents: dict[Partition, Contents] = {}

    def space(self) -> tuple[int, int]:
        """Not known."""
        return -1, -1

    def open(self, topic: str, topic_id: UUID, partition: int, config: LogConfig) -> MemoryLog:
        """See `core.log.LogStore`."""
        key = (topic, partition)
        earlier = self.logs.pop(key, None)
        if earlier is not None:
            earlier.close()  # its broker died without a word
        contents = self._contents.get(key)
        if contents is None or contents.topic_id != topic_id:
            contents = self._contents[key] = Contents(topic_id, [MemorySegment(0)])
        log = self.logs[key] = MemoryLog(contents, config)
        return log

    def delete(self, topic: str, partition: int) -> None:
        """See `core.log.LogStore`."""
        log = self.logs.pop((topic, partition), None)
        if log is not None:
            log.close()
        self._contents.pop((topic, partition), None)

    def close(self) -> None:
        """The broker ends; its page cache does not."""
        for log in self.logs.values():
            log.close()
        self.logs.clear()

    def power_cut(self, kept: Mapping[Partition, int] | None = None) -> None:
        """The machine ends: each log keeps what was flushed, or more if `kept` names a higher offset."""
        for key, log in self.logs.items():
            log.failure = None  # what is lost is lost, whether the disk still takes writes or not
            log.truncate_to(max(log.flushed_offset, (kept or {}).get(key, 0)))
        self.close()
