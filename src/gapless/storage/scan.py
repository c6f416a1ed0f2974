"""Walking from batch to batch through a log file by headers, with and without checking what the batches hold.

`skim` believes the log and only follows its chain of lengths; a chain that breaks is `DamagedLog`. `verify`
believes nothing: it is for the part of a log that was not known to be on disk when the broker stopped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from gapless.storage.disk import OpenFile
from gapless.storage.probes import Probes
from gapless.wire.batch import HEADER_SIZE, BatchHeader, parse_header

# Base offset, length (without these two), last offset delta, largest timestamp, number of records.
_SKIM = Struct(">qi11xi8xq14xi")
_LENGTH_FROM = 12
_MAGIC_AT = 16
_CRC_AT = 17
_CHECKED_FROM = 21
_MAGIC = 2

# One read serves an interval of small batches; a larger one would be wasted where batches are large.
_NEAR_BYTES = 4096 + HEADER_SIZE
_FAR_BYTES = 64 * 1024
_SMALL_BATCH = 2048
_VERIFY_BYTES = 1024 * 1024


class DamagedLog(Exception):
    """The file is not a chain of batches at `position`. `reason` completes "…, because …"."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path} is damaged at byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


class Skimmed(NamedTuple):
    """One batch, by the few fields that finding one's way needs."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    """Of its records: what compaction has emptied has none, whatever its header says."""


def largest_timestamp(header: BatchHeader) -> int:
    """The largest timestamp of a batch's records; -1 for none."""
    return header.max_timestamp if header.record_count else -1


class _Window:
    """The part of a file around the header that is looked at."""

    __slots__ = ("_end", "_file", "_probes", "_start", "_stop", "chunk", "reach")

    def __init__(self, file: OpenFile, end: int, probes: Probes) -> None:
        self.chunk = b""
        self.reach = _NEAR_BYTES
        self._file = file
        self._end = end
        self._probes = probes
        self._start = self._stop = 0

    def seek(self, position: int) -> int:
        """Where in `chunk` the header at `position` of the file is."""
        if position < self._start or position + HEADER_SIZE > self._stop:
            self.chunk = os.pread(self._file.fd, min(self.reach, self._end - position), position)
            self._probes.log_reads += 1
            self._probes.log_bytes += len(self.chunk)
            self._start, self._stop = position, position + len(self.chunk)
            if len(self.chunk) < HEADER_SIZE:
                raise DamagedLog(self._file.path, position, "a batch header is cut short")
        return position - self._start


def skim(file: OpenFile, position: int, end: int, probes: Probes, far: bool = False) -> Iterator[Skimmed]:
    """The batches from `position`, where one must begin, to `end`, where one must end.

    `far` reads ahead: for a walk through a whole segment rather than to the next index entry.
    """
    window = _Window(file, end, probes)
    unpack = _SKIM.unpack_from
    while position < end:
        at = window.seek(position)
        base_offset, length, last_delta, max_timestamp, count = unpack(window.chunk, at)
        size = length + _LENGTH_FROM
        if size < HEADER_SIZE or position + size > end or last_delta < 0:
            raise _no_batch(file, position, end, length)
        yield Skimmed(position, size, base_offset, base_offset + last_delta, max_timestamp if count else -1)
        window.reach = _FAR_BYTES if far and size < _SMALL_BATCH else _NEAR_BYTES
        position += size


def headers(file: OpenFile, position: int, end: int, probes: Probes) -> Iterator[BatchHeader]:
    """The full headers of the batches between two positions."""
    window = _Window(file, end, probes)
    while position < end:
        at = window.seek(position)
        header = parse_header(window.chunk, at)
        size = header.size_bytes
        if size < HEADER_SIZE or position + size > end or header.last_offset_delta < 0:
            raise _no_batch(file, position, end, size - _LENGTH_FROM)
        yield header
        window.reach = _FAR_BYTES if size < _SMALL_BATCH else _NEAR_BYTES
        position += size


def _no_batch(file: OpenFile, position: int, end: int, length: int) -> DamagedLog:
    return DamagedLog(
        file.path, position, f"no batch can have the length {length} with {end - position} bytes left"
    )


class Verified(NamedTuple):
    """A batch that lies whole and unharmed where it should."""

    batch: Skimmed
    leader_epoch: int


class Verifier:
    """Checks batches one after another from a position on; stops at the first that is not as it must be.

    Offsets must follow each other without a gap, except in batches that end below `gaps_below`: there,
    compaction may have been at work.

    After the iteration `problem` says why it ended early (None: everything up to the end of the file is
    sound), `position` and `next_offset` where the sound part ends.
    """

    def __init__(
        self,
        file: OpenFile,
        position: int,
        end: int,
        next_offset: int,
        probes: Probes,
        gaps_below: int = 0,
    ) -> None:
        self.position = position
        self.next_offset = next_offset
        self.problem: str | None = None
        self._file = file
        self._end = end
        self._probes = probes
        self._gaps_below = gaps_below
        self._chunk = b""
        self._chunk_start = position

    def __iter__(self) -> Iterator[Verified]:
        while self.position < self._end:
            header = self._check()
            if isinstance(header, str):
                self.problem = header
                return
            base, size = header.base_offset, header.size_bytes
            yield Verified(
                Skimmed(self.position, size, base, header.last_offset, largest_timestamp(header)),
                header.leader_epoch,
            )
            self.position += size
            self.next_offset = header.next_offset

    def _check(self) -> BatchHeader | str:
        """The batch at `position`, or what is wrong with it."""
        left = self._end - self.position
        if left < HEADER_SIZE:
            return f"only {left} bytes of a batch's header were written"
        header = parse_header(self._view(self.position, HEADER_SIZE), 0)
        offset, size = self.next_offset, header.size_bytes
        if size < HEADER_SIZE or header.last_offset_delta < 0:
            return f"there is no batch where offset {offset} should be"
        if size > left:
            return f"of the batch at offset {offset} only {left} of {size} bytes were written"
        if self._view(self.position, HEADER_SIZE)[_MAGIC_AT] != _MAGIC:
            return f"the batch at offset {offset} is not of format 2"
        is_gap = header.base_offset > offset and header.last_offset < self._gaps_below
        if header.base_offset != offset and not is_gap:
            return f"the batch where offset {offset} should be says offset {header.base_offset}"
        if self._checksum(size) != header.crc:
            return f"the checksum of the batch at offset {offset} is wrong"
        return header

    def _checksum(self, size: int) -> int:
        """CRC-32C of the batch at `position`, in pieces: some batches are too large to be held at once."""
        value = 0
        position, end = self.position + _CHECKED_FROM, self.position + size
        while position < end:
            at_hand = self._chunk_start + len(self._chunk) - position
            piece = self._view(position, min(end - position, at_hand if at_hand > 0 else _VERIFY_BYTES))
            value = crc32c(piece, value)
            position += len(piece)
        return value

    def _view(self, position: int, size: int) -> memoryview:
        start = position - self._chunk_start
        if start + size > len(self._chunk):
            self._chunk = os.pread(self._file.fd, min(_VERIFY_BYTES, self._end - position), position)
            self._probes.log_reads += 1
            self._probes.log_bytes += len(self._chunk)
            if len(self._chunk) < size:
                raise DamagedLog(self._file.path, position, "the file became shorter while it was read")
            self._chunk_start, start = position, 0
        return memoryview(self._chunk)[start : start + size]

    def sound_batches_beyond(self) -> int:
        """How many whole, unharmed batches follow the one that was refused: they are lost with it.

        Only a batch whose length can be believed lets us look beyond it.
        """
        if self.problem is None or self._end - self.position < HEADER_SIZE:
            return 0
        refused = parse_header(self._view(self.position, HEADER_SIZE), 0)
        beyond = self.position + refused.size_bytes
        if refused.size_bytes < HEADER_SIZE or beyond + HEADER_SIZE > self._end:
            return 0
        following = parse_header(self._view(beyond, HEADER_SIZE), 0)
        rest = Verifier(self._file, beyond, self._end, following.base_offset, self._probes)
        return sum(1 for _ in rest)
