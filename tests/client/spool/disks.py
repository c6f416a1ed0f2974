"""Disks that count, refuse and forget, and a way to look at all that a spool holds."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gapless.client.spool import Spool, Spooled
from gapless.client.spool.disk import Disk

SOURCE = "orders-api"


class FaultyDisk(Disk):
    """Counts syncs; refuses writes, syncs or cuts as long as it is told to."""

    def __init__(self) -> None:
        self.syncs = 0
        self.write_error: int | None = None
        self.sync_error: int | None = None
        self.cut_error: int | None = None
        self.written_of_failed = 0
        """How many bytes of a refused write reach the file all the same."""

    def write(self, fd: int, pieces: Sequence[bytes], offset: int) -> None:
        if self.write_error is not None:
            os.pwrite(fd, b"".join(pieces)[: self.written_of_failed], offset)
            raise OSError(self.write_error, os.strerror(self.write_error))
        super().write(fd, pieces, offset)

    def sync(self, fd: int) -> None:
        self.syncs += 1
        if self.sync_error is not None:
            raise OSError(self.sync_error, os.strerror(self.sync_error))
        super().sync(fd)

    def cut(self, fd: int, size: int) -> None:
        if self.cut_error is not None:
            raise OSError(self.cut_error, os.strerror(self.cut_error))
        super().cut(fd, size)

    def heal(self) -> None:
        self.write_error = self.sync_error = self.cut_error = None


NO_SPACE = errno.ENOSPC
BROKEN = errno.EIO


def open_spool(folder: Path, **options: Any) -> Spool:
    return Spool(folder, SOURCE, **options)


def read_everything(spool: Spool, position: int | None = None, max_records: int = 100) -> list[Spooled]:
    at = spool.first if position is None else position
    found: list[Spooled] = []
    while records := spool.read(at, max_records):
        found += records
        at = records[-1].position + 1
    return found


def store(spool: Spool, *values: bytes, topic: str = "orders", partition: int = 0) -> None:
    """One group for each."""
    for value in values:
        spool.wait_stored(spool.append(topic, partition, value))


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.segment"))
