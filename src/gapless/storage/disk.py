"""The operating system as the log uses it: the only file of `storage/` that calls it (`power_cut` apart).

`Disk` holds the calls whose failures matter most, so that a test can make them fail; everything else is a
plain function. Nothing here buffers: what was written is in the page cache when the call returns, and durable
once it was synced. Errors stay `OSError`; `failure` turns one into the `LogFailed` that people read.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gapless.core.log import LogFailed

Bytes = bytes | bytearray | memoryview

_ADVICE = {
    errno.ENOSPC: "free space on that disk or lower retention, then restart the broker",
    errno.EDQUOT: "raise the quota or lower retention, then restart the broker",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f) or lower segment.bytes, then restart the broker",
    errno.EMFILE: "raise the limit on open files (ulimit -n), then restart the broker",
    errno.ENFILE: "raise the system's limit on open files (fs.file-max), then restart the broker",
    errno.EROFS: "mount the disk writable again, then restart the broker",
    errno.EACCES: "let the broker's user read and write there, then restart the broker",
    errno.EIO: "look at the disk (dmesg, smartctl) before restarting the broker",
    errno.ENOENT: "restore what is missing, or delete the partition's folder to begin again without its data",
}


@dataclass(frozen=True, slots=True)
class Disk:
    """The calls that make data reach the disk; replaced in tests that need a disk that fails."""

    pwrite: Callable[[int, Bytes, int], int] = os.pwrite
    fdatasync: Callable[[int], None] = os.fdatasync
    fsync: Callable[[int], None] = os.fsync
    """For folders: their entries are metadata, of which fdatasync may leave some behind."""


class OpenFile:
    """A file descriptor that is closed with its last holder, so that readers outlive deletion of the file."""

    __slots__ = ("fd", "path")

    def __init__(self, path: str, flags: int = os.O_RDWR) -> None:
        self.fd = -1
        self.path = path
        self.fd = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.fd >= 0:
            close(self.fd)

    def size(self) -> int:
        """The length of the file as it is now."""
        return os.fstat(self.fd).st_size


def failure(action: str, path: str, error: OSError) -> LogFailed:
    """One sentence: what could not be done, where, why, and what to do about it."""
    reason = error.strerror or str(error)
    advice = _ADVICE.get(
        error.errno or 0, "look at the disk and the broker's log before restarting the broker"
    )
    return LogFailed(f"cannot {action} {path}: {reason}; {advice}")


@contextmanager
def reporting(action: str, path: str) -> Iterator[None]:
    """Raise what goes wrong inside as `LogFailed`."""
    try:
        yield
    except OSError as error:
        raise failure(action, path, error) from error


def open_directory(path: str) -> OpenFile:
    """A folder, to sync it or to name files in it even if it is renamed meanwhile."""
    return OpenFile(path, os.O_RDONLY | os.O_DIRECTORY)


def create_file(path: str) -> OpenFile:
    """A new, empty file; whatever had that name is emptied."""
    return OpenFile(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)


def read_file(path: str) -> bytes | None:
    """All of a small file; None if there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        size = os.fstat(fd).st_size
        return read_exactly(fd, size, 0)
    finally:
        os.close(fd)


def read_part(path: str, size: int, position: int) -> bytes:
    """Up to `size` bytes of a file that is not kept open."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_exactly(fd, size, position)
    finally:
        os.close(fd)


def read_exactly(fd: int, size: int, position: int) -> bytes:
    """`size` bytes, or all up to the end of the file: a single call may give less."""
    data = os.pread(fd, size, position)
    if len(data) == size or not data:
        return data
    parts = [data]
    missing = size - len(data)
    while missing > 0 and data:
        data = os.pread(fd, missing, position + size - missing)
        parts.append(data)
        missing -= len(data)
    return b"".join(parts)


def write_part(path: str, data: bytes, position: int) -> None:
    """Put bytes into a file that is not kept open; it is created if it is missing."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        write_fully(os.pwrite, fd, data, position)
    finally:
        os.close(fd)


def write_fully(pwrite: Callable[[int, Bytes, int], int], fd: int, data: Bytes, position: int) -> None:
    """Write on after a partial write until all is written or an error says why not."""
    rest = memoryview(data)
    while rest:
        written = pwrite(fd, rest, position)
        if written == 0:
            raise OSError(errno.EIO, "the disk takes no more bytes and gives no reason")
        rest = rest[written:]
        position += written


def resize(path_or_fd: str | int, size: int) -> None:
    """Cut a file to `size` bytes."""
    os.truncate(path_or_fd, size)


def replace_file(directory: OpenFile, name: str, data: bytes, durably: Disk | None) -> None:
    """Give a file new contents, all or nothing; with `durably` they and the name are on disk on return."""
    temporary = f"{name}.tmp"
    write_file(directory, temporary, data, durably)
    rename_within(directory, temporary, name)
    if durably is not None:
        durably.fsync(directory.fd)


def write_file(directory: OpenFile, name: str, data: bytes, durably: Disk | None) -> None:
    """Write a file of a folder; with `durably` its contents, but not its name, are on disk on return."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    fd = os.open(name, flags, 0o644, dir_fd=directory.fd)
    try:
        write_fully(os.pwrite, fd, data, 0)
        if durably is not None:
            durably.fdatasync(fd)
    finally:
        os.close(fd)


def rename_within(directory: OpenFile, old: str, new: str) -> None:
    """Rename a file of a folder; one of the new name is replaced."""
    os.replace(old, new, src_dir_fd=directory.fd, dst_dir_fd=directory.fd)


def remove_within(directory: OpenFile, name: str) -> None:
    """Delete a file of a folder."""
    os.unlink(name, dir_fd=directory.fd)


def sync_file(directory: OpenFile, name: str, calls: Disk) -> None:
    """Make a file of a folder durable; one that is gone meanwhile needs it no more."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory.fd)
    except FileNotFoundError:
        return
    try:
        calls.fdatasync(fd)
    finally:
        os.close(fd)


def make_directory(path: str) -> None:
    """A folder and those above it, where they are missing."""
    os.makedirs(path, exist_ok=True)  # noqa: PTH103 - plain strings throughout: pathlib would cost more than the call


def file_size(path: str) -> int:
    """The length of a file."""
    return os.stat(path).st_size  # noqa: PTH116


def modified_ms(path: str) -> int:
    """When a file was last written, in milliseconds of the wall clock."""
    return os.stat(path).st_mtime_ns // 1_000_000  # noqa: PTH116


def list_files(path: str) -> dict[str, int]:
    """The names of the plain files in a folder, with their sizes."""
    with os.scandir(path) as entries:
        return {entry.name: entry.stat().st_size for entry in entries if entry.is_file(follow_symlinks=False)}


def list_names(path: str) -> list[str]:
    """The names of everything in a folder."""
    return os.listdir(path)  # noqa: PTH208


def list_directories(path: str) -> list[str]:
    """The names of the folders in a folder, sorted."""
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))


def is_directory(path: str) -> bool:
    """Whether there is a folder of that name."""
    return os.path.isdir(path)  # noqa: PTH112


def rename(old: str, new: str) -> None:
    """Give a file or folder another name; a file of that name is replaced."""
    os.replace(old, new)  # noqa: PTH105


def rename_if_there(old: str, new: str) -> bool:
    """`rename`, if there is something to rename."""
    try:
        rename(old, new)
    except FileNotFoundError:
        return False
    return True


def remove_file(path: str) -> None:
    """Delete a file, if it is there."""
    try:
        os.unlink(path)  # noqa: PTH108
    except FileNotFoundError:
        return


def remove_directory(path: str) -> None:
    """Delete an empty folder, if it is there."""
    try:
        os.rmdir(path)  # noqa: PTH106
    except FileNotFoundError:
        return


def lock_file(path: str) -> OpenFile | None:
    """Take an exclusive lock that ends with the returned object or the process; None if it is taken."""
    file = OpenFile(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    return file


def boot_id() -> str:
    """What tells this run of the machine from all others; empty where the system has no such thing."""
    try:
        return (read_part("/proc/sys/kernel/random/boot_id", 64, 0)).decode().strip()
    except OSError:
        return ""


def space(path: str) -> tuple[int, int]:
    """Total bytes of the file system, and those that this user may still use."""
    status = os.statvfs(path)
    return status.f_frsize * status.f_blocks, status.f_frsize * status.f_bavail
