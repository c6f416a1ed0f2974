"""The segments of an open spool: which there are, writing the last one, deleting the first ones.

Writing is for one thread at a time. The list may be read by any thread: it is replaced, never changed.

The last one is longer than what is written: small groups write over zeros that were synced with one before.
A sync that changes neither the length of a file nor its place on disk needs no second write, to the file
system's journal.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from gapless.client.spool import blocks
from gapless.client.spool.blocks import Rows, Stream
from gapless.client.spool.disk import Disk
from gapless.client.spool.errors import NotKept, SpoolDamaged
from gapless.client.spool.scan import Scan, list_segments, segment_name
from gapless.client.spool.streams import Streams


@dataclass(slots=True)
class Segment:
    """One file. It holds the positions from its first to the next one's first."""

    first: int
    path: Path
    size_bytes: int
    prepared_bytes: int = 0
    """Up to where the file has zeros to write over."""
    sent_at_s: float | None = None
    """Since when all of it has been sent (Unix time)."""


class Segments:
    """All of them. `end` and `streams` are what was found on opening, until the spool takes over."""

    def __init__(
        self, folder: Path, incarnation: bytes, disk: Disk, segment_bytes: int, prepare_bytes: int
    ) -> None:
        self.folder = folder
        self.incarnation = incarnation
        self._seed = blocks.seed_of(incarnation)
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._zeros = bytes(prepare_bytes)
        self._fd = -1
        self._changing = threading.Lock()
        self.all: list[Segment] = []
        self.end = 0
        self.cut_bytes = 0
        """How much of a torn write was cut off on opening."""

    # Opening

    def open(self, stored_at_least: int) -> list[Stream]:
        """Find the end, cut a torn write off; the streams of the last segment with their next sequences."""
        for leftover in self.folder.glob("*.new"):
            leftover.unlink()
        self.all = [Segment(first, path, path.stat().st_size) for first, path in list_segments(self.folder)]
        streams: list[Stream] = []
        if self.all:
            streams = self._open_last(self.all[-1], stored_at_least)
        elif stored_at_least:
            raise SpoolDamaged(
                f"the spool {self.folder} had {stored_at_least} records: its segments are missing"
            )
        if not self.all:
            self._begin(0, [])
            return streams
        if self.cut_bytes:
            self._disk.cut(self._fd, self.all[-1].size_bytes)
        # What is there may still be in memory only, left by a process that was killed before its sync.
        self._disk.sync(self._fd)
        self._disk.sync_folder(self.folder)
        return streams

    def _open_last(self, last: Segment, stored_at_least: int) -> list[Stream]:
        with Scan(last.path, last.first, self.incarnation) as scan:
            for block in scan.blocks():
                scan.count_sequences(block)
            good_again = scan.good_block_after()
            if good_again is not None:
                raise scan.damaged(scan.at, f"what comes there is no block, but at byte {good_again} is one")
            scan.check_end(stored_at_least)
            self.cut_bytes = scan.torn_bytes()
        self.end = scan.position
        last.prepared_bytes = scan.at if self.cut_bytes else last.size_bytes
        last.size_bytes = scan.at
        self._fd = os.open(last.path, os.O_RDWR)
        for stream in scan.streams.values():
            stream.stored_sequence = stream.next_sequence
            stream.declared_in = last.first
        return list(scan.streams.values())

    # Writing

    def write(self, first: int, rows: Rows, streams: Streams) -> int:
        """Make a group durable; its size, which `grow` counts when the spool has noted that it is stored.

        OSError if that failed, and then it is as if it had never been tried.
        """
        last = {streams.by_id[id_]: sequence for id_, sequence in rows.last_sequences().items()}
        if self._fd < 0 or self.all[-1].size_bytes >= self._segment_bytes:
            self._begin(first, streams.all())
        segment = self.all[-1]
        new = [stream for stream in last if stream.declared_in != segment.first]
        body = blocks.encode_body(new, rows)
        header = blocks.encode_header(self._seed, first, len(rows.values), body)
        self._write_durably(segment, [header, body])
        for stream, sequence in last.items():
            stream.declared_in = segment.first
            if sequence >= stream.stored_sequence:
                stream.stored_sequence = sequence + 1
        return len(header) + len(body)

    def grow(self, size_bytes: int) -> None:
        """What was written last counts from now on."""
        self.all[-1].size_bytes += size_bytes

    def _write_durably(self, segment: Segment, pieces: list[bytes]) -> None:
        try:
            self._disk.write(self._fd, pieces, segment.size_bytes)
        except OSError:
            segment.prepared_bytes = 0
            try:
                self._disk.cut(self._fd, segment.size_bytes)
            except OSError:
                self.abandon_last()
            raise
        self._prepare(segment, sum(map(len, pieces)))
        try:
            self._disk.sync(self._fd)
        except OSError:
            # Which of the pages reached the disk can no longer be known, and the kernel now calls them clean.
            with contextlib.suppress(OSError):  # the next segment's first position says where this one ends
                self._disk.cut(self._fd, segment.size_bytes)
            self.abandon_last()
            raise

    def _prepare(self, segment: Segment, written_bytes: int) -> None:
        """Zeros behind what was just written, if it came to their end; only small groups gain by them."""
        end = segment.size_bytes + written_bytes
        if end > segment.prepared_bytes and written_bytes <= len(self._zeros) // 16:
            with contextlib.suppress(OSError):  # the disk is nearly full: go on without
                self._disk.write(self._fd, [self._zeros], end)
                segment.prepared_bytes = end + len(self._zeros)

    def abandon_last(self) -> None:
        """Never write to the last segment again: the next group begins a new one."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def begin_next(self, first: int, carried: Iterable[Stream]) -> None:
        """Go on in a new segment, so that the last one can be deleted."""
        self._begin(first, carried)

    def _begin(self, first: int, carried: Iterable[Stream]) -> None:
        streams = list(carried)
        path = self.folder / segment_name(first)
        body = blocks.encode_declared(streams)
        header = blocks.encode_header(self._seed, first, 0, body)
        start = blocks.FILE_HEADER.pack(blocks.FILE_MAGIC, blocks.VERSION, self.incarnation)
        size = self._disk.replace(path, [start, header, body])
        self.close()
        self._fd = os.open(path, os.O_RDWR)
        with self._changing:
            # One of the same name had no records, or its write failed: the new file has taken its place.
            self.all = [*(each for each in self.all if each.first != first), Segment(first, path, size)]
        for stream in streams:
            stream.declared_in = first

    # What has been sent

    def note_sent(self, position: int) -> None:
        """Remember since when the segments below the position are no longer needed."""
        segments = self.all
        for segment, following in pairwise(segments):
            if following.first > position:
                break
            if segment.sent_at_s is None:
                with contextlib.suppress(OSError):  # a hint for a later process, no more
                    os.utime(segment.path)
                segment.sent_at_s = time.time()

    def recall_sent(self, position: int) -> None:
        """On opening: those below the position were touched when they had been sent."""
        for segment, following in pairwise(self.all):
            if following.first <= position:
                segment.sent_at_s = segment.path.stat().st_mtime

    def delete_first_if_sent(self, sent_before_s: float | None = None) -> bool:
        """Delete the oldest segment if all of it was sent, and before that time if one is given."""
        with self._changing:
            if len(self.all) < 2:
                return False
            segment = self.all[0]
            if segment.sent_at_s is None or (
                sent_before_s is not None and segment.sent_at_s >= sent_before_s
            ):
                return False
            segment.path.unlink(missing_ok=True)
            self._disk.sync_folder(self.folder)
            self.all = self.all[1:]
            return True

    # Looking

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.all)

    @property
    def first(self) -> int:
        return self.all[0].first

    def holding(self, position: int) -> Segment:
        """The segment that holds a position, or will."""
        segments = self.all
        index = bisect_right(segments, position, key=lambda segment: segment.first) - 1
        if index < 0:
            raise NotKept(
                f"position {position} of the spool {self.folder} has been sent and deleted: it begins at"
                f" {segments[0].first}; keep sent records for longer (keep=)"
            )
        return segments[index]

    def close(self) -> None:
        """Let the last segment end where its records do."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # zeros at the end do no harm
                self._disk.cut(self._fd, self.all[-1].size_bytes)
        self.abandon_last()
