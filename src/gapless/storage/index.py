"""A sparse index of one segment: sorted entries of two ascending columns, on disk in Apache Kafka's format.

    .index      int32 offset, int32 byte position: the last offset of a batch, and where the batch begins
    .timeindex  int64 timestamp, int32 offset: the largest so far, and the last offset of its batch

Offsets in them are relative to the segment's first.

A look-up costs the same whatever the size: the first entry of every 4 KiB block is kept in memory, so that
one read of one block finds an entry. New entries wait in memory and are written in groups; a crash loses at
most `GROUP` of them, which are found again in the log. No file stays open.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from itertools import pairwise
from struct import Struct

from gapless.storage import disk
from gapless.storage.probes import Probes

GROUP = 128
BLOCK_BYTES = 4096

OFFSET_ENTRY = Struct(">ii")
TIME_ENTRY = Struct(">qi")

Entry = tuple[int, int]


class CorruptIndex(Exception):
    """The index contradicts itself or its log. It can be rebuilt from the log."""


class Index:
    """Entries in slots 0, 1, 2, …; column 0 and column 1 both ascend, so that either can be searched."""

    __slots__ = (
        "_block", "_block_number", "_fences", "_layout", "_pending", "_per_block", "_probes", "count", "last",
        "path", "unsynced",
    )  # fmt: skip

    def __init__(self, path: str, layout: Struct, probes: Probes) -> None:
        self.path = path
        self.count = 0
        """How many entries are in the file; those that wait in memory come after them."""
        self.last: Entry | None = None
        """The last entry of all, once it is known (`load`)."""
        self.unsynced = False
        self._layout = layout
        self._per_block = BLOCK_BYTES // layout.size
        self._probes = probes
        self._pending: tuple[list[int], list[int]] = ([], [])
        self._fences: tuple[array[int], array[int]] | None = None
        self._block_number = -1
        self._block = b""

    def __len__(self) -> int:
        return self.count + len(self._pending[0])

    # ----------------------------------------------------------------------------------------- opening

    def load(self, size_bytes: int) -> None:
        """Take over the entries of a file of that size, as they are."""
        if size_bytes % self._layout.size:
            raise CorruptIndex(f"its {size_bytes} bytes are not whole entries")
        self.count = size_bytes // self._layout.size
        self.last = self.entry(self.count - 1) if self.count else None

    def load_trusted(self, size_bytes: int, column: int, below: int) -> None:
        """Take over the longest ascending run of entries below a value in one column; cut the rest off.

        After a power cut whatever follows the last sync may be zeros or garbage.
        """
        data = disk.read_part(self.path, size_bytes, 0) if size_bytes else b""
        self.count = 0
        self.last = None
        previous = (-1, -1)
        for entry in self._layout.iter_unpack(data[: len(data) - len(data) % self._layout.size]):
            if entry[column] >= below or entry[0] <= previous[0] or entry[1] <= previous[1]:
                break
            self.last = previous = (entry[0], entry[1])
            self.count += 1
        if size_bytes != self.count * self._layout.size:
            disk.resize(self.path, self.count * self._layout.size)

    def forget(self) -> None:
        """Give back memory; all of it can be read again."""
        self._fences = None
        self._block_number = -1
        self._block = b""

    # -------------------------------------------------------------------------------------- looking up

    def floor(self, column: int, value: int) -> int:
        """The slot of the last entry whose column is at or below `value`; -1 if all are above it."""
        pending = self._pending[column]
        if pending and value >= pending[0]:
            return self.count + bisect_right(pending, value) - 1
        if not self.count:
            return -1
        fences = self._fences or self._load_fences()
        number = bisect_right(fences[column], value) - 1
        if number < 0:
            return -1
        block = self._read_block(number)
        size, unpack = self._layout.size, self._layout.unpack_from
        slots = range(len(block) // size)
        return (
            number * self._per_block
            + bisect_right(slots, value, key=lambda i: unpack(block, i * size)[column])
            - 1
        )

    def entry(self, slot: int) -> Entry:
        """Both columns of a slot."""
        if slot >= self.count:
            return self._pending[0][slot - self.count], self._pending[1][slot - self.count]
        number, within = divmod(slot, self._per_block)
        first, second = self._layout.unpack_from(self._read_block(number), within * self._layout.size)
        return first, second

    def _read_block(self, number: int) -> bytes:
        if number == self._block_number:
            return self._block
        position = number * self._per_block * self._layout.size
        size = min(self._per_block * self._layout.size, self.count * self._layout.size - position)
        block = disk.read_part(self.path, size, position)
        self._probes.index_reads += 1
        self._probes.index_bytes += len(block)
        if len(block) != size:
            raise CorruptIndex(f"it ends before its {self.count} entries")
        self._block_number, self._block = number, block
        return block

    def _load_fences(self) -> tuple[array[int], array[int]]:
        """Read the file once and keep the first entry of every block."""
        data = disk.read_part(self.path, self.count * self._layout.size, 0)
        self._probes.index_loads += 1
        if len(data) != self.count * self._layout.size:
            raise CorruptIndex(f"it ends before its {self.count} entries")
        step = self._per_block * self._layout.size
        firsts = [self._layout.unpack_from(data, position) for position in range(0, len(data), step)]
        fences = array("q", [first[0] for first in firsts]), array("q", [first[1] for first in firsts])
        for column in fences:
            if any(a >= b for a, b in pairwise(column)):
                raise CorruptIndex("its entries do not ascend")
        self._fences = fences
        return fences

    # ----------------------------------------------------------------------------------------- changing

    def add(self, first: int, second: int) -> None:
        """A new last entry, in memory for now."""
        self._pending[0].append(first)
        self._pending[1].append(second)
        self.last = (first, second)

    @property
    def pending(self) -> int:
        """How many entries wait to be written."""
        return len(self._pending[0])

    def write_pending(self) -> None:
        """Append what waits to the file (not durable yet)."""
        if not self._pending[0]:
            return
        pack = self._layout.pack
        data = b"".join(map(pack, *self._pending))
        disk.write_part(self.path, data, self.count * self._layout.size)
        self.unsynced = True
        if self.count % self._per_block:
            self._block_number = -1  # the last block has grown
        if self._fences is not None:
            first_new_block = -self.count % self._per_block
            for column in (0, 1):
                self._fences[column].extend(self._pending[column][first_new_block :: self._per_block])
        self.count += len(self._pending[0])
        self._pending = ([], [])

    def clear(self) -> None:
        """Drop all entries; makes the file if it is missing."""
        disk.create_file(self.path)
        self.count = 0
        self.last = None
        self.unsynced = True
        self._pending = ([], [])
        self.forget()

    def cut(self, slots: int) -> None:
        """Keep only the first `slots` entries."""
        if slots >= self.count:
            for column in self._pending:
                del column[slots - self.count :]
        else:
            self._pending = ([], [])
            disk.resize(self.path, slots * self._layout.size)
            self.count = slots
            self.unsynced = True
            self.forget()
        self.last = self.entry(slots - 1) if slots else None
