"""Opening a log: what is known to be on disk is believed, what lies above the recovery point is checked.

One way for every kind of stop. Below the recovery point nothing is read but the few headers between the last
index entry and the point; above it every batch must be whole, follow its predecessor and match its checksum.
The first that is not so ends the log: it and all behind it are cut, and `Recovery` says how much and why.
After a clean stop the recovery point is the end, so nothing is checked.

Damage *below* the recovery point is another matter: it was on disk, and is not any more. Cutting would lose
what may have been acknowledged long ago, so the log is refused with a sentence that says how to accept the
loss.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_right
from dataclasses import dataclass

from gapless.core.log import LogConfig, LogFailed
from gapless.storage import disk
from gapless.storage.disk import OpenFile
from gapless.storage.epochs import EpochHistory
from gapless.storage.formats import EPOCHS_FILE, RECOVERY_POINTS_FILE, Malformed, decode_epochs
from gapless.storage.index import CorruptIndex
from gapless.storage.probes import Probes
from gapless.storage.scan import DamagedLog, Verifier, headers, skim
from gapless.storage.segment import (
    ABORTED_SUFFIX,
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SUFFIXES,
    SWAP_SUFFIX,
    OpenSegments,
    Segment,
)
from gapless.storage.snapshots import SUFFIX as SNAPSHOT_SUFFIX

logger = logging.getLogger("gapless.storage")

_NUMBERED = re.compile(r"(\d{20})(\.\w+)", re.ASCII)
_COPY = re.compile(rf"\d{{20}}{re.escape(LOG_SUFFIX + SWAP_SUFFIX)}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Recovery:
    """What opening a log had to check and to cut. `reason` is None if nothing was cut."""

    scanned_bytes: int = 0
    truncated_bytes: int = 0
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was known of a log when its checkpoint was last written."""

    recovery_point: int = 0
    start_offset: int = 0
    clean: bool = False
    """Whether the broker stopped cleanly: then indexes are complete."""
    cleaned_offset: int = 0
    """Up to where the log was compacted."""


@dataclass(slots=True)
class Loaded:
    """A log that is ready for use."""

    segments: list[Segment]
    epochs: EpochHistory
    snapshots: list[int]
    start_offset: int
    flushed_offset: int
    recovery: Recovery
    garbage: list[str]
    directory_changed: bool
    aborted_sizes: dict[int, int]
    """The size of each segment's index of aborted transactions, where there is one."""
    cleaned_offset: int = 0


class Loader:
    """Loads one log from its folder."""

    def __init__(
        self, directory: str, config: LogConfig, checkpoint: Checkpoint, cache: OpenSegments, probes: Probes
    ) -> None:
        self._directory = directory
        self._config = config
        self._checkpoint = checkpoint
        self._cache = cache
        self._probes = probes
        self._garbage: list[str] = []
        self._scanned_bytes = 0
        self._truncated_bytes = 0
        self._reason: str | None = None
        self._directory_changed = False

    def load(self) -> Loaded:
        """Bring the folder into order and hand over what is in it. Raises `LogFailed` or `OSError`."""
        if self._finish_exchanges(disk.list_files(self._directory)):
            self._directory_changed = True
        files = disk.list_files(self._directory)
        self._sweep(files)
        bases = sorted(
            int(name[:20]) for name in files if name.endswith(LOG_SUFFIX) and _NUMBERED.fullmatch(name)
        )
        if not bases:
            return self._begin()
        segments = [self._segment(base) for base in bases]
        ends = [*bases[1:], bases[-1]]
        for segment, end in zip(segments, ends, strict=True):
            segment.adopt(files[f"{segment.base_offset:020d}{LOG_SUFFIX}"], end)
        point = max(self._checkpoint.recovery_point, bases[0])
        stored = self._read_epochs()
        known = self._find_epochs(segments, point) if stored is None else stored
        epochs = EpochHistory(known)
        epochs.cut_end(point)
        self._recover(segments, point, epochs)
        start = max(self._checkpoint.start_offset, segments[0].base_offset)
        end = segments[-1].end_offset
        if start > end:
            segments, epochs = self._begin_above(segments, start), EpochHistory()
            end = start
        if start == end:  # an empty log still knows the epoch of the last batch it had
            epochs = EpochHistory(entry for entry in known if entry[1] <= end)
        epochs.cut_start(start)
        epochs.changed = epochs.entries != stored
        snapshots = self._snapshots(files, end)
        self._report()
        changed = self._reason is not None or self._directory_changed
        cleaned = self._checkpoint.cleaned_offset
        return Loaded(
            segments,
            epochs,
            snapshots,
            start,
            min(point, end),
            self._recovery(),
            self._garbage,
            changed,
            self._aborted_sizes(files, segments),
            cleaned if cleaned <= segments[-1].base_offset else start,
        )

    def _aborted_sizes(self, files: dict[str, int], segments: list[Segment]) -> dict[int, int]:
        names = ((segment.base_offset, f"{segment.base_offset:020d}{ABORTED_SUFFIX}") for segment in segments)
        return {base: files[name] for base, name in names if files.get(name)}

    def _segment(self, base_offset: int) -> Segment:
        return Segment(
            self._directory, base_offset, self._config.index_interval_bytes, self._cache, self._probes
        )

    def _begin(self) -> Loaded:
        """An empty log. That there is none where one was on disk is refused."""
        start = self._checkpoint.start_offset
        if self._checkpoint.recovery_point > start:
            raise self._refusal(f"{self._directory} holds no log", start)
        segment = self._segment(start)
        segment.create()
        return Loaded([segment], EpochHistory(), [], start, start, Recovery(), self._garbage, True, {})

    def _begin_above(self, segments: list[Segment], start: int) -> list[Segment]:
        """Everything that is left lies below the log's start: nothing of it may be read again."""
        lost = sum(segment.size for segment in segments)
        self._cut(lost, f"the log ends at offset {segments[-1].end_offset}, below its start {start}")
        segment = self._segment(start)
        segment.create()
        for old in reversed(segments):
            self._garbage += old.retire()
        return [segment]

    def _finish_exchanges(self, files: dict[str, int]) -> bool:
        """Put copies that compaction had completed in the place of their sources; whether there were any."""
        copies = [name for name in files if _COPY.fullmatch(name)]
        for name in copies:
            base = int(name[:20])
            copy = Segment(self._directory, base, 0, self._cache, self._probes, SWAP_SUFFIX)
            end = base
            for batch in skim(OpenFile(copy.path), 0, files[name], self._probes, far=True):
                end = batch.last_offset + 1
            for other in sorted(files):
                numbered = _NUMBERED.fullmatch(other)
                if numbered and numbered[2] in SUFFIXES and base < int(numbered[1]) < end:
                    disk.remove_file(f"{self._directory}/{other}")
            for kind in reversed(SUFFIXES):
                path = f"{self._directory}/{base:020d}{kind}"
                disk.rename_if_there(path + SWAP_SUFFIX, path)
        return bool(copies)

    def _sweep(self, files: dict[str, int]) -> None:
        """Remove what an interrupted operation left behind."""
        for name in sorted(files):
            path = f"{self._directory}/{name}"
            numbered = _NUMBERED.fullmatch(name)
            if name.endswith(DELETED_SUFFIX):
                self._garbage.append(path)
            elif name.endswith((".tmp", CLEANED_SUFFIX, SWAP_SUFFIX)):
                disk.remove_file(path)
            elif numbered and numbered[2] in SUFFIXES and f"{numbered[1]}{LOG_SUFFIX}" not in files:
                logger.warning("removing %s: there is no log file that it belongs to", path)
                disk.remove_file(path)

    # --------------------------------------------------------------------------------------- checking

    def _recover(self, segments: list[Segment], point: int, epochs: EpochHistory) -> None:
        """Check everything from the recovery point on; on return `segments` are those that remain."""
        first = bisect_right([segment.base_offset for segment in segments], point) - 1
        expected = segments[first].base_offset
        for i in range(first, len(segments)):
            segment = segments[i]
            if segment.base_offset != expected:
                self._cut(0, f"offset {expected} should follow, but {segment.path} is next")
                self._drop(segments, i)
                return
            is_closed = i + 1 < len(segments)
            gaps_below = segments[i + 1].base_offset if is_closed else self._checkpoint.cleaned_offset
            sound = self._recover_segment(segment, point if i == first else expected, gaps_below, epochs)
            expected = segment.end_offset
            if not sound:
                self._drop(segments, i + 1)
                return
            if is_closed:
                segment.note_time()
                segment.keep_indexes()

    def _drop(self, segments: list[Segment], first: int) -> None:
        for segment in reversed(segments[first:]):
            self._truncated_bytes += segment.size
            self._garbage += segment.retire()
        del segments[first:]

    def _recover_segment(self, segment: Segment, point: int, gaps_below: int, epochs: EpochHistory) -> bool:
        """Check one segment from the recovery point on. Whether all of it is sound."""
        size = segment.size
        segment.end_offset = segment.base_offset
        position, offset = self._walk_to(segment, point)
        if position == size:
            return True
        segment.synced_bytes = 0  # what follows is in the page cache at best
        verifier = Verifier(segment.open(), position, size, offset, self._probes, gaps_below)
        for batch, leader_epoch in verifier:
            segment.note_found(batch)
            epochs.begin(leader_epoch, batch.base_offset)
        segment.keep_indexes()
        segment.size, segment.end_offset = verifier.position, verifier.next_offset
        self._scanned_bytes += size - position
        if verifier.problem is None:
            return True
        beyond = verifier.sound_batches_beyond()
        also = f"; {beyond} sound batches behind it went with it" if beyond else ""
        self._cut(
            size - verifier.position, f"{verifier.problem} ({segment.path} at byte {verifier.position}){also}"
        )
        segment.cut_tail(verifier.position)
        return False

    def _walk_to(self, segment: Segment, point: int) -> tuple[int, int]:
        """Note what lies between the last index entry and the recovery point; where the point is."""
        try:
            try:
                return self._walk_indexed(segment, point)
            except (CorruptIndex, FileNotFoundError) as error:
                logger.warning("rebuilding the indexes of %s: %s", segment.path, error)
                segment.reset_indexes()
                return self._walk_from(segment, 0, point, complete=False)
        except DamagedLog as damage:
            raise self._refusal(str(damage), segment.end_offset) from damage

    def _walk_indexed(self, segment: Segment, point: int) -> tuple[int, int]:
        if point > segment.base_offset:
            start = segment.resume_indexes(point, self._checkpoint.clean)
            return self._walk_from(segment, start, point, complete=self._checkpoint.clean)
        if segment.size or not segment.has_empty_indexes():
            segment.reset_indexes()
        return 0, segment.base_offset

    def _walk_from(self, segment: Segment, position: int, point: int, complete: bool) -> tuple[int, int]:
        size = segment.size
        offset = segment.base_offset
        try:
            for batch in segment.skim(position):
                if batch.last_offset >= point:
                    return batch.position, offset
                if complete:
                    segment.check_time(batch)
                segment.note_found(batch)
                position, offset = batch.position + batch.size, batch.last_offset + 1
                if offset >= point:
                    break  # what follows may be garbage, and no batch to look at
        finally:
            segment.size = size
        if offset < point:
            raise self._refusal(f"{segment.path} ends at offset {offset}", offset)
        if position == size:
            segment.synced_bytes = size
        return position, offset

    # -------------------------------------------------------------------------------------- reporting

    def _cut(self, lost_bytes: int, reason: str) -> None:
        self._truncated_bytes += lost_bytes
        self._reason = reason

    def _recovery(self) -> Recovery:
        return Recovery(self._scanned_bytes, self._truncated_bytes, self._reason)

    def _report(self) -> None:
        if self._reason is not None:
            logger.warning("%s: cut %d bytes: %s", self._directory, self._truncated_bytes, self._reason)
        elif self._scanned_bytes:
            logger.info("%s: checked %d bytes above the recovery point", self._directory, self._scanned_bytes)

    def _refusal(self, found: str, offset: int) -> LogFailed:
        point = self._checkpoint.recovery_point
        return LogFailed(
            f"{found}, although everything below offset {point} had reached the disk; restore the file from "
            f"a copy, or, to go on without what is lost, remove this partition's line from "
            f"{RECOVERY_POINTS_FILE} (what is sound up to about offset {offset} is kept), "
            "then restart the broker"
        )

    # ----------------------------------------------------------------------------------- small files

    def _read_epochs(self) -> list[tuple[int, int]] | None:
        """The epoch history up to the recovery point at least; None if there is none that can be used."""
        path = f"{self._directory}/{EPOCHS_FILE}"
        data = disk.read_file(path)
        try:
            return decode_epochs(data) if data else None
        except Malformed as error:
            logger.warning("rebuilding %s from the log: %s", path, error)
            return None

    def _find_epochs(self, segments: list[Segment], point: int) -> list[tuple[int, int]]:
        """The epoch history below the recovery point, from the batches themselves."""
        epochs = EpochHistory()
        for segment in segments:
            if segment.base_offset < point:
                for header in headers(segment.open(), 0, segment.size, self._probes):
                    if header.base_offset >= point:
                        break
                    epochs.begin(header.leader_epoch, header.base_offset)
                    if header.next_offset >= point:
                        break  # what follows may be garbage, and no header to look at
        return epochs.entries

    def _snapshots(self, files: dict[str, int], end: int) -> list[int]:
        """The offsets of usable-looking snapshots; those of what was cut are removed."""
        kept = []
        for name in sorted(files):
            if name.endswith(SNAPSHOT_SUFFIX) and _NUMBERED.fullmatch(name):
                offset = int(name[:20])
                if offset <= end:
                    kept.append(offset)
                else:
                    logger.warning("removing %s/%s: it is newer than the log", self._directory, name)
                    disk.remove_file(f"{self._directory}/{name}")
        return kept
