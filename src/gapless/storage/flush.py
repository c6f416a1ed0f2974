"""Making a log durable: prepared on the loop's thread, run on any other, reported back on the loop's thread.

    job = log.prepare_flush()          # loop
    if job is not None:
        job.run()                      # worker thread: the syncs
        log.flushed(job)               # loop: the recovery point moves to job.offset

`run` touches nothing of the log but the files that the job holds open, and its `failure`. A sync that failed
is never tried again: the kernel may have dropped the very pages that it could not write, and a second call
would report success over the hole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from gapless.storage import disk
from gapless.storage.disk import Disk, OpenFile
from gapless.storage.formats import EPOCHS_FILE, encode_epochs
from gapless.storage.segment import Segment


@dataclass(slots=True)
class SyncedFile:
    """A segment's log file, and how much of it the job makes durable."""

    segment: Segment
    file: OpenFile
    size: int


class EpochFile:
    """The file of a log's epoch history: written by the loop and by flushes, the newest contents win."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held for a rename, never for a sync: the loop must not wait for one
        self._written = 0
        self._taken = 0

    def take_number(self) -> int:
        """A number for contents, higher than those of older ones. For the loop's thread."""
        self._taken += 1
        return self._taken

    def write(
        self, directory: OpenFile, number: int, entries: list[tuple[int, int]], durably: Disk | None
    ) -> None:
        """Replace the file, unless newer contents were written meanwhile. On any thread."""
        temporary = f"{EPOCHS_FILE}.{number}.tmp"
        disk.write_file(directory, temporary, encode_epochs(entries), durably)
        with self._lock:
            if number > self._written:
                disk.rename_within(directory, temporary, EPOCHS_FILE)
                self._written = number
            else:
                disk.remove_within(directory, temporary)
        if durably is not None:
            durably.fsync(directory.fd)


class EpochUpdate(NamedTuple):
    """Contents for the file of the epoch history."""

    file: EpochFile
    number: int
    entries: list[tuple[int, int]]


@dataclass(slots=True)
class FlushJob:
    """One flush of one log. `offset` is the end that it makes durable; cutting the log lowers it."""

    offset: int
    directory: OpenFile
    disk: Disk
    on_failure: Callable[[str], None]
    files: list[SyncedFile] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    """Small files of the folder that must be durable too: indexes of closed segments, snapshots."""
    epochs: EpochUpdate | None = None
    directories: list[OpenFile] = field(default_factory=list)
    """Folders whose entries have changed."""

    def run(self) -> None:
        """Sync everything. Raises `LogFailed`, and the log then refuses appends."""
        path = self.directory.path
        try:
            for item in self.files:
                path = item.file.path
                self.disk.fdatasync(item.file.fd)
            for name in self.names:
                path = f"{self.directory.path}/{name}"
                disk.sync_file(self.directory, name, self.disk)
            path = self.directory.path
            if self.epochs is not None:
                update = self.epochs
                update.file.write(self.directory, update.number, update.entries, self.disk)
            for directory in self.directories:
                path = directory.path
                self.disk.fsync(directory.fd)
        except FileNotFoundError:
            return  # the topic was deleted meanwhile, and its folder with it
        except OSError as error:
            failed = disk.failure("make durable what was written to", path, error)
            self.on_failure(str(failed))
            raise failed from error
