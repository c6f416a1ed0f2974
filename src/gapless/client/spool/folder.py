"""A spool's folder: whose it is, who has it open, and hints that make starting quick.

    spool.json           version, source, incarnation; written once
    lock                 held by the one process that writes (flock); its pid, for people
    claimed              exists once the spool's position has been committed on the cluster
    hints                how much was sent, and how much was surely stored, when it was last noted
    seals                seals that the last producer could not write, one in each line
    <position>.segment   the records from that position on

The hints are two slots that are written in turn, each with a checksum, so that a torn write leaves the other
one. They are not synced: the truth about what was sent is the cluster's. What they say was stored is a lower
bound: a spool that ends before it has lost something.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from gapless.client.formats import INCARNATION_BYTES
from gapless.client.spool import blocks
from gapless.client.spool.disk import Disk
from gapless.client.spool.errors import SpoolDamaged, SpoolFailed, SpoolInUse, SpoolOfAnother
from gapless.client.spool.scan import list_segments

_ABOUT = "spool.json"
_LOCK = "lock"
_CLAIMED = "claimed"
_HINTS = "hints"
_SEALS = "seals"
_SLOT = Struct("<QQQ")
_CHECKSUM = Struct("<I")
_SLOT_BYTES = 64
_log = logging.getLogger(__name__)
_LOCK_PATIENCE_S = 0.5  # a look at the status takes the lock for a moment
_locked: weakref.WeakSet[Folder] = weakref.WeakSet()


class About(NamedTuple):
    """What a spool is."""

    source: str
    incarnation: bytes


class Hint(NamedTuple):
    """What was known when it was noted."""

    number: int
    sent: int
    stored: int


def read_about(folder: Path) -> About | None:
    """None if there is no spool."""
    path = folder / _ABOUT
    try:
        content = json.loads(path.read_bytes())
        version = content["version"]
        if version != blocks.VERSION:
            raise SpoolOfAnother(f"{path} has version {version}; this Gapless reads version {blocks.VERSION}")
        about = About(str(content["source"]), bytes.fromhex(content["incarnation"]))
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise SpoolOfAnother(f"{folder} is a file: a spool needs a folder of its own") from error
    except OSError as error:
        raise SpoolFailed(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise SpoolDamaged(f"{path} is not readable ({error}): restore it from a copy") from error
    if len(about.incarnation) != INCARNATION_BYTES:
        raise SpoolDamaged(f"{path} is not readable (incarnation of a wrong length): restore it from a copy")
    return about


def is_claimed(folder: Path) -> bool:
    return (folder / _CLAIMED).exists()


def read_hint(folder: Path) -> Hint:
    """The last one that is readable."""
    found = Hint(0, 0, 0)
    with contextlib.suppress(FileNotFoundError):
        content = (folder / _HINTS).read_bytes()
        for at in (0, _SLOT_BYTES):
            slot = content[at : at + _SLOT.size]
            checksum = content[at + _SLOT.size : at + _SLOT.size + _CHECKSUM.size]
            if len(checksum) == _CHECKSUM.size and _CHECKSUM.unpack(checksum)[0] == crc32c(slot):
                found = max(found, Hint(*_SLOT.unpack(slot)))
    return found


def holder(folder: Path) -> int | None:
    """The pid of the process that has the spool open, 0 if it cannot be known; None if nobody has."""
    try:
        fd = os.open(folder / _LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _pid_in(fd)
    else:
        return None
    finally:
        os.close(fd)


def _pid_in(fd: int) -> int:
    text = os.pread(fd, 20, 0).strip()
    return int(text) if text.isdigit() else 0


class Folder:
    """An open spool's folder, locked until it is closed."""

    def __init__(self, path: Path, source: str, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._lock_fd = self._hints_fd = -1
        try:
            self._make()
            self._take_lock()
            try:
                self.about = self._read_or_begin(source)
                self.hint = read_hint(path)
                self._hints_fd = os.open(path / _HINTS, os.O_WRONLY | os.O_CREAT, 0o644)
            except BaseException:
                self.close()
                raise
        except OSError as error:
            raise SpoolFailed(f"the spool {path} cannot be opened: {error.strerror}") from error

    def _make(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise SpoolOfAnother(f"{self.path} is a file: a spool needs a folder of its own")
        if not self.path.is_dir():
            self.path.mkdir(parents=True, exist_ok=True)
            self._disk.sync_folder(self.path.absolute().parent)

    def _take_lock(self) -> None:
        fd = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(0.01)
                    continue
                pid = _pid_in(fd)
                os.close(fd)
                raise SpoolInUse(
                    f"the spool {self.path} is in use by process {pid or '(unknown)'}: give each producer"
                    " a folder of its own, or stop that one first"
                ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        self._lock_fd = fd
        _locked.add(self)

    def _read_or_begin(self, source: str) -> About:
        about = read_about(self.path)
        if about is None:
            if list_segments(self.path):
                raise SpoolDamaged(
                    f"{self.path / _ABOUT} is missing but there are segments: restore it from a copy"
                )
            about = About(source, os.urandom(INCARNATION_BYTES))
            content = {"version": blocks.VERSION, "source": source, "incarnation": about.incarnation.hex()}
            self._disk.replace(self.path / _ABOUT, [json.dumps(content).encode() + b"\n"])
        elif about.source != source:
            raise SpoolOfAnother(
                f"the spool {self.path} belongs to source {about.source!r}, not {source!r}: give each source"
                " a folder of its own"
            )
        return about

    @property
    def is_claimed(self) -> bool:
        return is_claimed(self.path)

    def claim(self) -> None:
        if not self.is_claimed:
            self._disk.replace(self.path / _CLAIMED, [b"the position is on the cluster\n"])

    def read_seals(self) -> list[bytes]:
        try:
            return (self.path / _SEALS).read_bytes().splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SpoolFailed(f"{self.path / _SEALS} cannot be read: {error.strerror}") from error

    def keep_seals(self, seals: Sequence[bytes]) -> None:
        path = self.path / _SEALS
        try:
            if seals:
                self._disk.replace(path, [seal + b"\n" for seal in seals])
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise SpoolFailed(f"{path} cannot be changed: {error.strerror}") from error

    def note(self, sent: int, stored: int) -> None:
        """Write a hint; where the disk refuses even that, only the log hears of it."""
        hint = Hint(self.hint.number + 1, sent, stored)
        slot = _SLOT.pack(*hint)
        at = hint.number % 2 * _SLOT_BYTES
        try:
            os.pwrite(self._hints_fd, slot + _CHECKSUM.pack(crc32c(slot)), at)
        except OSError as error:
            _log.warning("the spool %s could not note what was sent: %s", self.path, error)
        self.hint = hint

    def close(self) -> None:
        for fd in (self._hints_fd, self._lock_fd):  # the lock last: until then the folder is ours
            if fd >= 0:
                os.close(fd)
        self._hints_fd = self._lock_fd = -1


def _leave_to_parent() -> None:
    """In a forked process: the lock is the parent's, and must end with it."""
    for folder in list(_locked):
        folder.close()


os.register_at_fork(after_in_child=_leave_to_parent)
