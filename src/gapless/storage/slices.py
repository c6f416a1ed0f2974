"""What a log hands out to be sent: whole batches by reference, turned into bytes piece by piece by the shell.

A slice holds its file open: it stays valid when retention deletes the segment or the topic. Only cutting the
log's end (`truncate_to`) can take bytes away from it; then reading says so instead of giving less.
"""

from __future__ import annotations

import os
from typing import Protocol

from gapless.core.log import LogFailed
from gapless.storage.disk import OpenFile, failure


class ReadableSlice(Protocol):
    """A `LogSlice` as the shell sees it."""

    @property
    def size(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    def read(self, position: int, size: int) -> bytes | memoryview:
        """Exactly `size` bytes from `position` of the slice on. Raises `LogFailed`."""


class FileSlice:
    """Bytes of a log file."""

    __slots__ = ("end_offset", "file", "position", "size")

    def __init__(self, file: OpenFile, position: int, size: int, end_offset: int) -> None:
        self.file = file
        self.position = position
        self.size = size
        self.end_offset = end_offset

    def read(self, position: int, size: int) -> bytes:
        """Exactly `size` bytes from `position` of the slice on. Raises `LogFailed`."""
        try:
            data = os.pread(self.file.fd, size, self.position + position)
        except OSError as error:
            raise failure("read", self.file.path, error) from error
        if len(data) != size:
            raise LogFailed(
                f"{self.file.path} was cut at byte {self.position + position + len(data)} while it was read"
            )
        return data


class MemorySlice:
    """Bytes of a log in memory; they never change."""

    __slots__ = ("_data", "end_offset", "size")

    def __init__(self, data: bytes = b"", end_offset: int = -1) -> None:
        self._data = memoryview(data)
        self.size = len(data)
        self.end_offset = end_offset

    def read(self, position: int, size: int) -> memoryview:
        """Exactly `size` bytes from `position` of the slice on."""
        return self._data[position : position + size]


NOTHING = MemorySlice()
"""The empty slice."""
