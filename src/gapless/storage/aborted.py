"""The aborted transactions of a log: one small file per segment that has some, in Apache Kafka's format.

    .txnindex   int16 version 0, int64 producer id, first offset, last offset, last stable offset

An entry is in the file of the segment that holds the abort marker, so entries ascend by their last offset.
The file is the only copy: a look-up is a binary search in it, and nothing of it is kept in memory. No file
stays open.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from struct import Struct

from gapless.core.log import AbortedTransaction
from gapless.storage import disk
from gapless.storage.scan import DamagedLog
from gapless.storage.segment import ABORTED_SUFFIX

_ENTRY = Struct(">hqqqq")
_VERSION = 0
_READ_ENTRIES = 256


def encode_aborted(entries: Iterable[AbortedTransaction]) -> bytes:
    """The contents of a file."""
    return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries)


class AbortedIndex:
    """The files of one log, by the offset at which their segment begins."""

    def __init__(self, directory: str, sizes: Mapping[int, int]) -> None:
        self._directory = directory
        self._counts = {base: size // _ENTRY.size for base, size in sizes.items()}

    def __bool__(self) -> bool:
        return bool(self._counts)

    def name(self, base: int) -> str:
        """The file's name."""
        return f"{base:020d}{ABORTED_SUFFIX}"

    def _path(self, base: int) -> str:
        return f"{self._directory}/{self.name(base)}"

    def add(self, base: int, aborted: AbortedTransaction) -> bool:
        """Write one more entry; whether its file is new."""
        count = self._counts.get(base, 0)
        disk.write_part(self._path(base), _ENTRY.pack(_VERSION, *aborted), count * _ENTRY.size)
        self._counts[base] = count + 1
        return count == 0

    def forget(self, base: int) -> None:
        """A segment is gone, and its file with it."""
        self._counts.pop(base, None)

    def replaced(self, base: int, count: int) -> None:
        """A segment has a new file, with so many entries."""
        self._counts.pop(base, None)
        if count:
            self._counts[base] = count

    def cut(self, base: int, end_offset: int) -> bool:
        """Forget what ends at or above an offset in one segment; whether anything did.

        The file is read from its beginning: after a power cut its tail may be anything.
        """
        count = self._counts.get(base)
        if count is None:
            return False
        kept, previous = 0, -1
        for entry in self._entries(base, 0):
            if not previous < entry.last_offset < end_offset:
                break
            previous = entry.last_offset
            kept += 1
        disk.resize(self._path(base), kept * _ENTRY.size)
        self._counts[base] = kept
        return kept < count

    def find(self, base: int, offset: int, before: int) -> tuple[list[AbortedTransaction], bool]:
        """Of one segment's entries those that reach into [offset, before), and whether later ones cannot."""
        found: list[AbortedTransaction] = []
        count = self._counts.get(base)
        if not count:
            return found, False
        first = bisect_left(range(count), offset, key=lambda slot: self._read(base, slot, 1)[0].last_offset)
        for entry in self._entries(base, first):
            if entry.first_offset < before:
                found.append(entry)
            if entry.last_stable_offset >= before:
                return found, True
        return found, False

    def find_all(self, bases: Iterable[int], offset: int, before: int) -> list[AbortedTransaction]:
        """The same for segments one after another."""
        found: list[AbortedTransaction] = []
        for base in bases:
            entries, complete = self.find(base, offset, before)
            found += entries
            if complete:
                break
        return found

    def _entries(self, base: int, slot: int) -> Iterator[AbortedTransaction]:
        while slot < self._counts[base]:
            entries = self._read(base, slot, _READ_ENTRIES)
            yield from entries
            slot += len(entries)

    def _read(self, base: int, slot: int, count: int) -> list[AbortedTransaction]:
        """Up to `count` entries, at least one: the slot must be there."""
        size = min(count, self._counts[base] - slot) * _ENTRY.size
        data = disk.read_part(self._path(base), size, slot * _ENTRY.size)
        if len(data) != size:
            raise DamagedLog(self._path(base), slot * _ENTRY.size, "it was cut short while the broker ran")
        return [AbortedTransaction(*fields[1:]) for fields in _ENTRY.iter_unpack(data)]
