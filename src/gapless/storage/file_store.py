"""A broker's data folder: all its logs, who owns it, and what must be known before a log is opened.

    <topic>-<partition>/                   a log
    <topic>-<partition>.<id>-delete/       a deleted one, about to go
    <topic>-<partition>.<id>-stray/        one of another topic of the same name, kept for a person to look at
    recovery-point-offset-checkpoint       up to where each log was known to be on disk
    cleaner-offset-checkpoint              up to where each log was compacted, if it was
    log-start-offset-checkpoint            where logs begin, if not with their oldest segment
    meta.properties                        whose folder it is
    .kafka_cleanshutdown                   left by a clean stop, taken by the next start
    boot-id                                which run of the machine the last broker was part of
    .lock                                  held by the broker that uses the folder

Everything runs on one thread except the `run` of jobs (flush, checkpoints, deletions).
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from uuid import UUID, uuid4

from gapless.core.log import LogConfig, LogFailed
from gapless.errors import GaplessError
from gapless.storage import disk, formats
from gapless.storage.disk import Disk, OpenFile
from gapless.storage.file_log import FileLog
from gapless.storage.formats import MetaProperties, Partition
from gapless.storage.power_cut import recording_disk
from gapless.storage.probes import Probes
from gapless.storage.recovery import Checkpoint, Loader
from gapless.storage.scan import DamagedLog
from gapless.storage.segment import OpenSegments
from gapless.storage.trash import DeletionJob, Trash

logger = logging.getLogger("gapless.storage")

_LOG_FOLDER = re.compile(r"(.+)-(\d+)", re.ASCII)
_MOVED_FOLDER = re.compile(r".+-\d+\.[0-9a-f]{32}-(delete|stray)", re.ASCII)
_MAX_NAME = 255
_SYNC_THREADS = 8


class DataDirUnusable(GaplessError):
    """The data folder cannot be used. The message says why."""


class DataDirInUse(DataDirUnusable):
    """Another broker holds the data folder."""


@dataclass(slots=True)
class CheckpointJob:
    """Writes the checkpoints; may run on any thread."""

    store: FileLogStore
    number: int
    recovery_points: Mapping[Partition, int]
    start_offsets: Mapping[Partition, int]
    cleaned_offsets: Mapping[Partition, int]

    def run(self) -> None:
        """Write them durably, unless newer ones have been written. Raises `LogFailed`."""
        self.store.write_checkpoint_files(self)


class Kept(NamedTuple):
    """What a folder still holds of what a broker wrote to it: all, or at least what was flushed."""

    all: bool
    flushed: bool


class FileLogStore:
    """`core.log.LogStore` on files. One broker at a time may have a folder; `close` gives it back."""

    def __init__(
        self,
        data_dir: str | Path,
        disk_calls: Disk | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.location = str(Path(data_dir).absolute())
        self.disk = disk_calls or Disk()
        self.cache = OpenSegments()
        self.logs: dict[Partition, FileLog] = {}
        self.trash = Trash()
        self._clock = clock
        self._checkpoint_due = False
        self._write_lock = threading.Lock()
        self._prepared = 0
        self._written = 0
        try:
            disk.make_directory(self.location)
            self._folder = disk.open_directory(self.location)
            self._lock = self._take_lock()
            if disk_calls is None:
                self.disk = recording_disk(self.location) or self.disk
            self.clean_stop, self.last_broker_epoch = self._take_clean_stop()
            self._recovery_points = self._read_offsets(formats.RECOVERY_POINTS_FILE)
            self._start_offsets = self._read_offsets(formats.START_OFFSETS_FILE)
            self._cleaned_offsets = self._read_offsets(formats.CLEANED_OFFSETS_FILE)
            self._written_cleaned: Mapping[Partition, int] = dict(self._cleaned_offsets)
            leftovers = [name for name in disk.list_directories(self.location) if name.endswith("-delete")]
        except OSError as error:
            raise DataDirUnusable(f"cannot use the data folder {self.location}: {error.strerror}") from error
        self.trash.add(
            (f"{self.location}/{name}" for name in leftovers if _MOVED_FOLDER.fullmatch(name)), self._clock()
        )

    # ---------------------------------------------------------------------------------------- folder

    def _take_lock(self) -> OpenFile | None:
        lock = disk.lock_file(f"{self.location}/.lock")
        if lock is None:
            raise DataDirInUse(
                f"the data folder {self.location} is in use by another broker: "
                "stop it, or give --data another folder"
            )
        return lock

    def _take_clean_stop(self) -> tuple[bool, int]:
        """Whether the last broker stopped cleanly, and its epoch. The mark is gone before we go on."""
        path = f"{self.location}/{formats.CLEAN_STOP_FILE}"
        data = disk.read_file(path)
        if data is None:
            return False, -1
        disk.remove_file(path)
        self.disk.fsync(self._folder.fd)
        return True, formats.decode_clean_stop(data)

    def _read_offsets(self, name: str) -> dict[Partition, int]:
        data = disk.read_file(f"{self.location}/{name}")
        try:
            return formats.decode_offsets(data or b"")
        except formats.Malformed as error:
            logger.warning("%s/%s is not used, so all logs are checked: %s", self.location, name, error)
            return {}

    def read_meta(self) -> MetaProperties | None:
        """Whose folder it is; None for a new one."""
        path = f"{self.location}/{formats.META_FILE}"
        try:
            data = disk.read_file(path)
            return None if data is None else formats.decode_meta(data)
        except (OSError, formats.Malformed) as error:
            raise DataDirUnusable(
                f"cannot use {path}: {error}; restore it, or take a new data folder"
            ) from error

    def write_meta(self, meta: MetaProperties) -> None:
        """Say whose folder it is, durably."""
        with disk.reporting("write", f"{self.location}/{formats.META_FILE}"):
            disk.replace_file(self._folder, formats.META_FILE, formats.encode_meta(meta), self.disk)

    def kept_since(self, boot_id: str) -> Kept:
        """What of all that was ever written is still here, in this run of the machine.

        A process that dies leaves its writes to the page cache. Only the machine's end takes what was not
        synced, and a new run of the machine has another id. A folder without any id is new: if a broker ran
        before under this number, it has lost its disk.
        """
        earlier = self._noted_boot()
        same = bool(boot_id) and earlier == boot_id.encode()
        return Kept(all=same or self.clean_stop, flushed=earlier is not None)

    def note_boot(self, boot_id: str) -> None:
        """Remember which run of the machine this is: to be called once what was lost has been told.

        A broker that ends before that must tell it the next time, though it is the same run of the machine.
        """
        if self._noted_boot() != boot_id.encode():
            with disk.reporting("write", f"{self.location}/{formats.BOOT_FILE}"):
                disk.replace_file(self._folder, formats.BOOT_FILE, boot_id.encode(), self.disk)

    def _noted_boot(self) -> bytes | None:
        path = f"{self.location}/{formats.BOOT_FILE}"
        with disk.reporting("read", path):
            return disk.read_file(path)

    def space(self) -> tuple[int, int]:
        """Total and usable bytes of the file system."""
        with disk.reporting("ask for the free space of", self.location):
            return disk.space(self.location)

    def partitions_on_disk(self) -> list[Partition]:
        """All logs that have a folder here, opened or not."""
        with disk.reporting("list", self.location):
            names = disk.list_directories(self.location)
        matches = (_LOG_FOLDER.fullmatch(name) for name in names if not _MOVED_FOLDER.fullmatch(name))
        return [(match[1], int(match[2])) for match in matches if match]

    # ------------------------------------------------------------------------------------------ logs

    def open(self, topic: str, topic_id: UUID, partition: int, config: LogConfig) -> FileLog:
        """See `core.log.LogStore`."""
        key = (topic, partition)
        if not topic or "/" in topic or topic in {".", ".."} or partition < 0 or key in self.logs:
            raise ValueError(f"{topic!r}-{partition} cannot be opened: a wrong name, or it is open")
        directory = f"{self.location}/{topic}-{partition}"
        with disk.reporting("open the log in", directory):
            created = self._claim_folder(key, directory, topic_id)
            probes = Probes()
            try:
                loaded = Loader(directory, config, self._checkpoint_of(key), self.cache, probes).load()
            except DamagedLog as damage:
                raise LogFailed(
                    f"{damage}; restore the file from a copy, then restart the broker"
                ) from damage
            log = FileLog(key, directory, config, loaded, self, probes)
        if created:
            log.note_created(formats.PARTITION_FILE)
        self.discard(loaded.garbage, 0)
        self.logs[key] = log
        return log

    def _checkpoint_of(self, key: Partition) -> Checkpoint:
        return Checkpoint(
            self._recovery_points.get(key, 0),
            self._start_offsets.get(key, 0),
            self.clean_stop,
            self._cleaned_offsets.get(key, 0),
        )

    def _claim_folder(self, key: Partition, directory: str, topic_id: UUID) -> bool:
        """Make sure that the folder is this topic's; whether it had to be made or marked."""
        if disk.is_directory(directory):
            owner = self._owner_of(directory)
            if owner == topic_id:
                return False
            if owner is not None:
                stray = self._moved_name(key, "stray")
                logger.warning(
                    "%s belongs to another topic of that name (%s): moved to %s", directory, owner, stray
                )
                disk.rename(directory, f"{self.location}/{stray}")
                self._forget_checkpoints(key)
        elif key in self._recovery_points or key in self._start_offsets:
            logger.warning("%s is gone: its log begins again without what it held", directory)
            self._forget_checkpoints(key)
        disk.make_directory(directory)
        contents = formats.encode_partition_metadata(topic_id)
        disk.replace_file(disk.open_directory(directory), formats.PARTITION_FILE, contents, None)
        return True

    def _owner_of(self, directory: str) -> UUID | None:
        """The id of the topic that a folder belongs to; None if a crash has left it without one."""
        path = f"{directory}/{formats.PARTITION_FILE}"
        try:
            return formats.decode_partition_metadata(disk.read_file(path) or b"")
        except formats.Malformed as error:
            logger.warning("%s is written anew: %s", path, error)
            return None

    def _moved_name(self, key: Partition, suffix: str) -> str:
        end = f"-{key[1]}.{uuid4().hex}-{suffix}"
        return key[0][: _MAX_NAME - len(end)] + end

    def delete(self, topic: str, partition: int) -> None:
        """See `core.log.LogStore`."""
        key = (topic, partition)
        log = self.logs.pop(key, None)
        delay_ms = 0
        if log is not None:
            delay_ms = log.config.file_delete_delay_ms
            log.close()
        directory = f"{self.location}/{topic}-{partition}"
        moved = f"{self.location}/{self._moved_name(key, 'delete')}"
        with disk.reporting("delete", directory):
            if disk.rename_if_there(directory, moved):
                self.discard([moved], delay_ms)
        self._forget_checkpoints(key)

    def _forget_checkpoints(self, key: Partition) -> None:
        self._recovery_points.pop(key, None)
        self._start_offsets.pop(key, None)
        self._cleaned_offsets.pop(key, None)
        self._checkpoint_due = True

    # -------------------------------------------------------------------------------- housekeeping

    def discard(self, paths: Sequence[str], delay_ms: int) -> None:
        """Delete files or folders later; `prepare_deletions` hands out what is due."""
        self.trash.add(paths, self._clock() + delay_ms / 1000)

    def prepare_deletions(self, limit: int = 16) -> DeletionJob | None:
        """A job that deletes up to `limit` files and folders that are due; None if there are none."""
        return self.trash.take(self._clock(), limit)

    def checkpoint_soon(self) -> None:
        """Something that checkpoints hold has changed."""
        self._checkpoint_due = True

    def prepare_checkpoints(self) -> CheckpointJob | None:
        """A job that writes what has changed since the last one; None if nothing has."""
        if not self._checkpoint_due:
            return None
        self._checkpoint_due = False
        return self._new_checkpoint()

    def _new_checkpoint(self) -> CheckpointJob:
        for key, log in self.logs.items():
            self._recovery_points[key] = log.flushed_offset
            if log.start_offset > log.first_base_offset:
                self._start_offsets[key] = log.start_offset
            else:
                self._start_offsets.pop(key, None)
            if log.cleaned_offset > log.start_offset:
                self._cleaned_offsets[key] = log.cleaned_offset
            else:
                self._cleaned_offsets.pop(key, None)
        self._prepared += 1
        return CheckpointJob(
            self,
            self._prepared,
            dict(self._recovery_points),
            dict(self._start_offsets),
            dict(self._cleaned_offsets),
        )

    def write_checkpoints(self) -> None:
        """Write the checkpoints now, on this thread. Raises `LogFailed`."""
        self._checkpoint_due = False
        self._new_checkpoint().run()

    def write_checkpoint_files(self, job: CheckpointJob) -> None:
        """The part of `CheckpointJob.run` that knows files. Start offsets go first: they promise nothing."""
        with self._write_lock, disk.reporting("write checkpoints in", self.location):
            if job.number < self._written:
                return
            try:
                if job.cleaned_offsets != self._written_cleaned:
                    cleaned = formats.encode_offsets(job.cleaned_offsets)
                    disk.replace_file(self._folder, formats.CLEANED_OFFSETS_FILE, cleaned, self.disk)
                    self._written_cleaned = job.cleaned_offsets
                for name, offsets in (
                    (formats.START_OFFSETS_FILE, job.start_offsets),
                    (formats.RECOVERY_POINTS_FILE, job.recovery_points),
                ):
                    disk.replace_file(self._folder, name, formats.encode_offsets(offsets), self.disk)
            except OSError:
                self._checkpoint_due = True  # the next one tries again
                raise
            self._written = job.number

    def lower_recovery_point(self, partition: Partition, offset: int) -> None:
        """Before a log is cut below what a checkpoint promises, write one that does not."""
        if self._recovery_points.get(partition, 0) > offset:
            self._new_checkpoint().run()

    # --------------------------------------------------------------------------------------- closing

    def close_cleanly(self, broker_epoch: int = -1) -> None:
        """Make everything durable and leave the mark of a clean stop, unless a log cannot be flushed."""
        failed = self._flush_all()
        for log in self.logs.values():
            log.close()
        try:
            self.write_checkpoints()
            if failed:
                logger.warning("not a clean stop: %d logs could not be made durable", failed)
            else:
                mark = formats.encode_clean_stop(broker_epoch)
                with disk.reporting("write", f"{self.location}/{formats.CLEAN_STOP_FILE}"):
                    disk.replace_file(self._folder, formats.CLEAN_STOP_FILE, mark, self.disk)
        finally:
            self.close()

    def _flush_all(self) -> int:
        """Flush every log; how many failed (now or before)."""
        failed = 0
        with ThreadPoolExecutor(_SYNC_THREADS, thread_name_prefix="flush") as pool:
            under_way = []
            for log in self.logs.values():
                try:
                    log.write_indexes()
                    job = log.prepare_flush()
                    if job is not None:
                        under_way.append((log, job, pool.submit(job.run)))
                except LogFailed:
                    failed += 1
            for log, job, future in under_way:
                try:
                    future.result()
                    log.flushed(job)
                except LogFailed:
                    failed += 1
        return failed

    def close(self) -> None:
        """Give back the folder without making anything durable, as if the process had ended."""
        for log in self.logs.values():
            log.close()
        self.logs.clear()
        self._lock = None
