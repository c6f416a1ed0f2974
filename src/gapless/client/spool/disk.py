"""What a spool asks of a disk, in one place, so that tests can make it fail, fill up and forget."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


class Disk:
    """The real one."""

    def write(self, fd: int, pieces: Sequence[bytes], offset: int) -> None:
        """All of it, or OSError; how much was written then is unknown."""
        written = os.pwritev(fd, pieces, offset)
        total = sum(map(len, pieces))
        if written == total:
            return
        rest = memoryview(b"".join(pieces))[written:]
        while rest:
            written = os.pwrite(fd, rest, offset + total - len(rest))
            rest = rest[written:]

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def cut(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync_folder(self, folder: Path) -> None:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def replace(self, path: Path, content: Sequence[bytes]) -> int:
        """A whole new file of that name, durable; its size. The old one, if any, stays until this one is."""
        beside = path.with_name(path.name + ".new")
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            self.write(fd, content, 0)
            self.sync(fd)
        finally:
            os.close(fd)
        beside.rename(path)
        self.sync_folder(path.parent)
        return sum(map(len, content))
