"""One segment of a log: a file of batches and its two indexes.

The last segment of a log grows, the others only serve reads. Indexes are never believed blindly: an entry is
compared with the batch that it points to, and one that lies makes the segment rebuild its indexes from the
log. The newest batches are remembered, so that readers at the tail cost no read before the one of their
data.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

from gapless.storage import disk
from gapless.storage.disk import OpenFile
from gapless.storage.index import GROUP, OFFSET_ENTRY, TIME_ENTRY, CorruptIndex, Index
from gapless.storage.probes import Probes
from gapless.storage.scan import DamagedLog, Skimmed, headers, skim
from gapless.wire.batch import BatchHeader

logger = logging.getLogger("gapless.storage")

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
ABORTED_SUFFIX = ".txnindex"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, ABORTED_SUFFIX)

_RECENT = 64
# A healthy index has an entry at every interval; one that leaves us walking much further has lost some.
_LONG_WALK_BYTES = 256 * 1024

T = TypeVar("T")


class OpenSegments:
    """Bounds how many segments hold a descriptor and index tables; the longest open gives way first."""

    def __init__(self, capacity: int = 256) -> None:
        self._capacity = capacity
        self._queue: deque[Segment] = deque()

    def add(self, segment: Segment) -> None:
        """A segment was opened."""
        self._queue.append(segment)
        if len(self._queue) > self._capacity:
            self._queue.popleft().release()


class Segment:
    """Batches from `base_offset` up to (not including) `end_offset`."""

    __slots__ = (
        "_cache", "_indexes_loaded", "_indexes_stuck", "_probes", "_recent_floor", "_recent_last",
        "_recent_positions", "_stem", "_suffix", "_unindexed_bytes", "base_offset", "end_offset", "file",
        "first_timestamp", "interval_bytes", "max_timestamp", "max_timestamp_offset", "offsets", "pinned",
        "size", "synced_bytes", "times",
    )  # fmt: skip

    def __init__(
        self,
        directory: str,
        base_offset: int,
        interval_bytes: int,
        cache: OpenSegments,
        probes: Probes,
        suffix: str = "",
    ) -> None:
        self._stem = f"{directory}/{base_offset:020d}"
        self._suffix = suffix
        self._cache = cache
        self._probes = probes
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.interval_bytes = interval_bytes
        self.size = 0
        self.synced_bytes = 0
        self.file: OpenFile | None = None
        self.pinned = False
        """Whether the descriptor must stay open: it has been written to and not been synced."""
        self.offsets = Index(self._stem + INDEX_SUFFIX + suffix, OFFSET_ENTRY, probes)
        self.times = Index(self._stem + TIME_INDEX_SUFFIX + suffix, TIME_ENTRY, probes)
        self._indexes_loaded = True
        self._indexes_stuck = False
        self.max_timestamp = -1
        self.max_timestamp_offset = -1
        self.first_timestamp: int | None = None
        self._unindexed_bytes = 0
        self._recent_last: list[int] = []
        self._recent_positions: list[int] = []
        self._recent_floor = 0

    @property
    def path(self) -> str:
        """The log file's name."""
        return self._stem + LOG_SUFFIX + self._suffix

    def name(self, kind: str) -> str:
        """The name of one of its files in their folder."""
        return self._stem.rpartition("/")[2] + kind + self._suffix

    # ------------------------------------------------------------------------------- coming and going

    def create(self) -> None:
        """Make the empty files of a new segment."""
        self.file = disk.create_file(self.path)
        self.pinned = True
        disk.create_file(self.offsets.path)
        disk.create_file(self.times.path)

    def adopt(self, size: int, end_offset: int) -> None:
        """Take over a closed segment as it lies on disk. Its indexes are looked at when they are needed."""
        self.size = self.synced_bytes = size
        self.end_offset = end_offset
        self._indexes_loaded = False

    def open(self) -> OpenFile:
        """The log file, opened if it is not."""
        file = self.file
        if file is None:
            file = self.file = OpenFile(self.path)
            self._cache.add(self)
        return file

    def pin(self) -> OpenFile:
        """The log file, to be written; its descriptor stays open until `unpin`."""
        file = self.open()
        self.pinned = True
        return file

    def unpin(self) -> None:
        """All that was written is durable: the descriptor may go."""
        if self.pinned:
            self.pinned = False
            self._cache.add(self)

    def release(self) -> None:
        """Give back the descriptor and memory, unless the segment is being written."""
        if not self.pinned:
            self.file = None
            self._recent_last.clear()
            self._recent_positions.clear()
            self.offsets.forget()
            self.times.forget()

    def close(self) -> None:
        """Give back the descriptor. Slices that were handed out keep theirs."""
        self.pinned = False
        self.release()

    def move_to(self, suffix: str) -> None:
        """Give all files another suffix, the log last: it is what counts for whoever finds them."""
        for kind in reversed(SUFFIXES):
            disk.rename(self._stem + kind + self._suffix, self._stem + kind + suffix)
        self.close()
        self._suffix = suffix
        self.offsets.path = self._stem + INDEX_SUFFIX + suffix
        self.times.path = self._stem + TIME_INDEX_SUFFIX + suffix

    def remove(self) -> None:
        """Delete the files of a segment that never became part of the log."""
        self.close()
        for kind in SUFFIXES:
            disk.remove_file(self._stem + kind + self._suffix)

    def retire(self) -> list[str]:
        """Take the files out of the log by renaming them; returns what is to be deleted later."""
        retired = []
        for suffix in SUFFIXES:
            name = self._stem + suffix
            if disk.rename_if_there(name, name + DELETED_SUFFIX):
                retired.append(name + DELETED_SUFFIX)
        self.close()
        return retired

    # ---------------------------------------------------------------------------------------- growing

    def note(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """A batch lies at `position`: remember it, and index it if the last entry is an interval away."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self._unindexed_bytes > self.interval_bytes:
            # The time first: whatever a crash leaves of them, the time index is never behind the other.
            self.note_time()
            self.offsets.add(last_offset - self.base_offset, position)
            self._unindexed_bytes = 0
        self._unindexed_bytes += size
        recent = self._recent_last
        if not recent:
            self._recent_floor = self.end_offset - 1
        recent.append(last_offset)
        self._recent_positions.append(position)
        if len(recent) > _RECENT:
            dropped = _RECENT // 2
            self._recent_floor = recent[dropped - 1]
            del recent[:dropped], self._recent_positions[:dropped]
        self.size = position + size
        self.end_offset = last_offset + 1

    def note_found(self, batch: Skimmed) -> None:
        """`note` a batch that was found on disk."""
        if not self._recent_last:
            self.end_offset = batch.base_offset
        self.note(batch.position, batch.size, batch.last_offset, batch.max_timestamp)
        if self.group_is_due:
            self.keep_indexes()

    def note_time(self) -> None:
        """Index the largest timestamp so far, if it is not."""
        last = self.times.last
        if self.max_timestamp > (last[0] if last else -1):
            self.times.add(self.max_timestamp, self.max_timestamp_offset - self.base_offset)

    @property
    def group_is_due(self) -> bool:
        """Whether enough index entries wait to be worth a write."""
        return self.offsets.pending >= GROUP

    def write_indexes(self) -> None:
        """Write the index entries that wait."""
        self.times.write_pending()
        self.offsets.write_pending()

    def keep_indexes(self) -> None:
        """Write what was found anew; on a full disk it stays in memory: a log must be readable even there."""
        if self._indexes_stuck:
            return
        try:
            self.write_indexes()
        except OSError as error:
            self._indexes_stuck = True
            logger.warning(
                "%s stays incomplete, its entries in memory: %s", self.offsets.path, error.strerror
            )

    def seal(self) -> None:
        """Complete the indexes: the last entry for the time is then the largest timestamp of all."""
        if self._indexes_loaded:
            self.note_time()
            self.write_indexes()

    @property
    def is_dirty(self) -> bool:
        """Whether anything of the segment may be in the page cache only."""
        return self.synced_bytes != self.size or self.offsets.unsynced or self.times.unsynced

    def take_unsynced_indexes(self) -> list[str]:
        """The names of the index files that were written; whoever takes them must sync them."""
        names = [index.path.rpartition("/")[2] for index in (self.offsets, self.times) if index.unsynced]
        self.offsets.unsynced = self.times.unsynced = False
        return names

    def first_batch_timestamp(self) -> int:
        """The largest timestamp of the first batch, from which the segment's age counts; -1 for none."""
        if self.first_timestamp is None and self.size:
            batch = next(skim(self.open(), 0, self.size, self._probes))
            self.first_timestamp = batch.max_timestamp
        return -1 if self.first_timestamp is None else self.first_timestamp

    # ---------------------------------------------------------------------------------------- finding

    def locate(self, offset: int) -> tuple[int, int, int]:
        """The first batch that ends at or after `offset` (which the segment holds): position, size, end."""
        recent = self._recent_last
        if recent and offset > self._recent_floor:
            positions = self._recent_positions
            i = bisect_left(recent, offset)
            following = positions[i + 1] if i + 1 < len(positions) else self.size
            return positions[i], following - positions[i], recent[i] + 1
        batch = self.find(offset)
        return batch.position, batch.size, batch.last_offset + 1

    def start_of(self, offset: int) -> tuple[int, int]:
        """Where the batch that holds `offset` begins: its position, and its first offset."""
        recent = self._recent_last
        if recent and offset > self._recent_floor:
            i = bisect_left(recent, offset)
            return self._recent_positions[i], self._recent_start(i)
        batch = self.find(offset)
        return batch.position, batch.base_offset

    def _recent_start(self, index: int) -> int:
        return (self._recent_last[index - 1] if index else self._recent_floor) + 1

    def find(self, offset: int) -> Skimmed:
        """`locate` by the index and the log: the batch as it is in the file."""
        return self._by_index(lambda: self._walk_to_offset(offset))

    def _walk_to_offset(self, offset: int) -> Skimmed:
        for batch in self._walk(self.offsets.floor(0, offset - self.base_offset)):
            if batch.last_offset >= offset:
                return batch
        raise DamagedLog(self.path, self.size, f"it ends before offset {offset}")

    def boundary(self, limit: int, start: int) -> tuple[int, int]:
        """The last boundary of batches at or below position `limit`, and the offset there.

        `start` is such a boundary, too.
        """
        if limit >= self.size:
            return self.size, self.end_offset
        positions = self._recent_positions
        if positions and limit >= positions[0]:
            i = bisect_right(positions, limit) - 1
            return positions[i], self._recent_start(i)
        return self._by_index(lambda: self._walk_to_position(limit, start))

    def offset_bound(self, position: int) -> int:
        """An offset that no batch before `position` (a boundary) reaches, as near as needs no reading."""
        if position >= self.size:
            return self.end_offset
        positions = self._recent_positions
        if positions and position >= positions[0]:
            i = bisect_left(positions, position)
            return (self._recent_last[i - 1] if i else self._recent_floor) + 1
        slot = self._by_index(lambda: self.offsets.floor(1, position - 1)) + 1
        if slot >= len(self.offsets):
            return self.end_offset
        return self.base_offset + self.offsets.entry(slot)[0] + 1

    def _walk_to_position(self, limit: int, start: int) -> tuple[int, int]:
        slot = self.offsets.floor(1, limit)
        if slot >= 0 and self.offsets.entry(slot)[1] > start:
            walk = self._walk(slot)
        else:
            walk = skim(self.open(), start, self.size, self._probes)
        for batch in walk:
            if batch.position + batch.size > limit:
                return batch.position, batch.base_offset
        return self.size, self.end_offset

    def _walk(self, slot: int) -> Iterator[Skimmed]:
        """Batches from the one that an index slot names (-1: the first), which must be there as it says."""
        last_offset, start = self.offsets.entry(slot) if slot >= 0 else (-1, 0)
        previous = -1
        try:
            for batch in skim(self.open(), start, self.size, self._probes):
                if previous < 0 <= slot and batch.last_offset != self.base_offset + last_offset:
                    break
                if previous - start > max(_LONG_WALK_BYTES, 2 * self.interval_bytes):
                    raise CorruptIndex(f"it has no entry for {previous - start} bytes after byte {start}")
                previous = batch.position
                yield batch
        except DamagedLog:
            if previous >= 0 or slot < 0:
                raise
        if previous < 0 <= slot:
            raise CorruptIndex(f"its entry {slot} names a batch that is not there")

    def _by_index(self, look_up: Callable[[], T]) -> T:
        """Do something with the indexes; rebuild them and do it again if they turn out to be wrong."""
        try:
            self.load_indexes()
            return look_up()
        except (CorruptIndex, FileNotFoundError) as error:
            if isinstance(error, FileNotFoundError) and error.filename == self.path:
                raise
            self.rebuild(str(error))
        try:
            return look_up()
        except CorruptIndex as error:
            raise DamagedLog(self.path, 0, f"its rebuilt index still contradicts it: {error}") from error

    # --------------------------------------------------------------------------------------- by time

    def latest(self) -> tuple[int, int]:
        """The largest timestamp, and the last offset of the first batch that has it; -1 for none."""
        if not self._indexes_loaded:
            self._by_index(lambda: None)
        return self.max_timestamp, self.max_timestamp_offset

    def latest_before(self, offset: int) -> Iterator[Skimmed]:
        """Batches among which is the one that, below `offset`, is the first with the largest timestamp."""
        return self._by_index(lambda: self._latest_before(offset))

    def _latest_before(self, offset: int) -> Iterator[Skimmed]:
        candidates = []
        time_slot = self.times.floor(1, offset - 1 - self.base_offset)
        if time_slot >= 0:
            candidates.append(self._batch_of_time(time_slot))
        for batch in self._walk(self.offsets.floor(0, offset - 1 - self.base_offset)):
            if batch.base_offset >= offset:
                break
            candidates.append(batch)
        return iter(candidates)

    def not_before(self, timestamp_ms: int, start_offset: int) -> Iterator[Skimmed]:
        """Batches from `start_offset` on, beginning near below the first that reaches the timestamp."""
        position = self._by_index(lambda: self._position_by_time(timestamp_ms, start_offset))
        return self.skim(position)

    def _position_by_time(self, timestamp_ms: int, start_offset: int) -> int:
        """From where to walk to the first batch at or after `start_offset` that reaches the timestamp.

        The entry after the last one below the timestamp names a batch that reaches it. Entries of both
        indexes are made at the same moments, so up to the last offset entry before that batch nothing
        reached it.
        """
        following = self.times.floor(0, timestamp_ms - 1) + 1
        if following < len(self.times):
            offset = max(start_offset, self._batch_of_time(following).last_offset - 1)
        else:
            offset = max(start_offset, self.end_offset - 1)
        return next(self._walk(self.offsets.floor(0, offset - self.base_offset))).position

    def _batch_of_time(self, slot: int) -> Skimmed:
        """The batch that a slot of the time index names, which must be there as it says."""
        timestamp_ms, relative = self.times.entry(slot)
        offset = self.base_offset + relative
        batch = self._walk_to_offset(offset) if relative < self.end_offset - self.base_offset else None
        if batch is None or batch.last_offset != offset or batch.max_timestamp != timestamp_ms:
            raise CorruptIndex(f"entry {slot} of its time index names a batch that is not there")
        return batch

    def skim(self, position: int) -> Iterator[Skimmed]:
        """All batches from a position on."""
        return skim(self.open(), position, self.size, self._probes)

    def headers_from(self, offset: int) -> Iterator[BatchHeader]:
        """The headers of all batches whose last offset is at or after `offset`."""
        if offset >= self.end_offset:
            return iter(())
        start = self.locate(offset)[0] if offset > self.base_offset else 0
        return headers(self.open(), start, self.size, self._probes)

    def read_batch(self, batch: Skimmed) -> memoryview:
        """A whole batch."""
        self._probes.log_reads += 1
        self._probes.log_bytes += batch.size
        return memoryview(disk.read_exactly(self.open().fd, batch.size, batch.position))

    # --------------------------------------------------------------------------------------- indexes

    def load_indexes(self) -> None:
        """Look at the index files of a closed segment, if that was not done."""
        if self._indexes_loaded:
            return
        self.offsets.load(disk.file_size(self.offsets.path))
        self.times.load(disk.file_size(self.times.path))
        self._take_largest_time()
        self._check_last_time()
        for batch in self._walk(len(self.offsets) - 1):
            self.check_time(batch)
        self._indexes_loaded = True

    def _check_last_time(self) -> None:
        if self.times.last is not None:
            self._batch_of_time(len(self.times) - 1)

    def check_time(self, batch: Skimmed) -> None:
        """A sealed time index ends with the largest timestamp of all, so nothing may lie above it."""
        if batch.max_timestamp > self.max_timestamp:
            raise CorruptIndex(f"its time index ends below the timestamp of offset {batch.last_offset}")

    def resume_indexes(self, offset: int, clean: bool) -> int:
        """Take over what can be believed of the indexes below an offset; the position to walk on from.

        After a clean stop they are complete. After any other, what lies beyond the last sync may be
        anything, and up to `GROUP` entries are missing: they are noted again while walking.
        """
        sizes = disk.file_size(self.offsets.path), disk.file_size(self.times.path)
        relative = offset - self.base_offset
        if clean:
            self.offsets.load(sizes[0])
            self.times.load(sizes[1])
        if (
            not clean
            or (self.offsets.last or (0,))[0] >= relative
            or (self.times.last or (0, 0))[1] >= relative
        ):
            self.offsets.load_trusted(sizes[0], 0, relative)
            self.times.load_trusted(sizes[1], 1, self.offsets.last[0] + 1 if self.offsets.last else 0)
        self._take_largest_time()
        self._indexes_loaded = True
        self.end_offset = offset
        self._check_last_time()
        batch = next(self._walk(len(self.offsets) - 1), None)
        return batch.position if batch else 0

    def has_empty_indexes(self) -> bool:
        """Whether both index files are there and empty, as those of an empty segment should be."""
        try:
            empty = not disk.file_size(self.offsets.path) and not disk.file_size(self.times.path)
        except FileNotFoundError:
            return False
        self._indexes_loaded |= empty
        return empty

    def _take_largest_time(self) -> None:
        if self.times.last is not None:
            self.max_timestamp, relative = self.times.last
            self.max_timestamp_offset = self.base_offset + relative

    def reset_indexes(self) -> None:
        """Forget all entries."""
        self.offsets.clear()
        self.times.clear()
        self.max_timestamp = self.max_timestamp_offset = -1
        self._unindexed_bytes = 0
        self._recent_last.clear()
        self._recent_positions.clear()
        self._indexes_loaded = True

    def rebuild(self, reason: str) -> None:
        """Make both indexes anew from the log."""
        logger.warning("rebuilding the indexes of %s: %s", self.path, reason)
        size, end_offset = self.size, self.end_offset
        self.reset_indexes()
        self.end_offset = self.base_offset
        for batch in skim(self.open(), 0, size, self._probes, far=True):
            self.note_found(batch)
        self.note_time()
        self.keep_indexes()
        if self.end_offset != end_offset:
            raise DamagedLog(self.path, size, f"it ends at offset {self.end_offset} instead of {end_offset}")

    def truncate(self, position: int) -> None:
        """Cut the log and its indexes at a batch boundary."""
        keep, keep_times = self._by_index(lambda: self._entries_below(position))
        last = self.offsets.entry(keep - 1) if keep else (-1, 0)
        disk.resize(self.pin().fd, position)
        self.synced_bytes = min(self.synced_bytes, position)
        self.offsets.cut(keep)
        self.times.cut(keep_times)
        self.max_timestamp = self.max_timestamp_offset = -1
        self._take_largest_time()
        self._walk_again(last[1], position)

    def cut_tail(self, position: int) -> None:
        """Cut what follows the last batch that was noted."""
        disk.resize(self.pin().fd, position)
        self.size = position

    def _entries_below(self, position: int) -> tuple[int, int]:
        """How many offset entries lie below a position, and how many time entries were made by then."""
        slot = self.offsets.floor(1, position - 1)
        return slot + 1, self.times.floor(1, self.offsets.entry(slot)[0]) + 1 if slot >= 0 else 0

    def _walk_again(self, start: int, size: int) -> None:
        """Note the batches after the last index entry anew."""
        self._unindexed_bytes = 0
        self._recent_last.clear()
        self._recent_positions.clear()
        if size == 0:
            self.size = 0
            self.first_timestamp = None
            self.end_offset = self.base_offset
        for batch in skim(self.open(), start, size, self._probes):
            self.note_found(batch)
