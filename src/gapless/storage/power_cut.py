"""Power cuts without cutting the power, for tests: takes from a data folder what was never synced.

With GAPLESS_RECORD_FSYNCS=1 in its environment a broker notes, after each sync, what it has made durable:

    ["file", inode, size]                      so much of a file
    ["folder", inode, {"name": inode, ...}]    these entries of a folder

The notes lie beside the data folder, with a link to every file that was synced: so a file that was replaced
or deleted can come back if its folder was not synced since. After a SIGKILL, `lose_unsynced` leaves what a
power cut could have left. Without the variable nothing of this runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from gapless.errors import GaplessError
from gapless.storage.disk import Disk

VARIABLE = "GAPLESS_RECORD_FSYNCS"
_NOTES = "notes"


class NothingRecorded(GaplessError):
    """The broker of a data folder did not record its syncs."""


class Loss(NamedTuple):
    """What a power cut did to one file or folder."""

    path: str
    lost_bytes: int
    what: str


def recording_disk(location: str) -> Disk | None:
    """A disk that records what it syncs, if the environment asks for it; the data folder must be ours."""
    if os.environ.get(VARIABLE) != "1":
        return None
    recorder = Recorder(location)
    return Disk(fdatasync=recorder.sync_file, fsync=recorder.sync_folder)


def _beside(location: str) -> Path:
    folder = Path(location).absolute()
    return folder.parent / f".{folder.name}.durable"


class Recorder:
    """Syncs, and then notes what was synced. For any thread: each note is one write at the end of a file."""

    def __init__(self, location: str) -> None:
        self._beside = _beside(location)
        is_new = not self._beside.exists()
        self._beside.mkdir(exist_ok=True)
        self._folder = os.open(self._beside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._notes = os.open(self._beside / _NOTES, flags, 0o644)
        if is_new:
            self._note_all(location)

    def _note_all(self, location: str) -> None:
        """What is there before the first note survived whatever came before."""
        for folder, _, names in os.walk(location):
            for name in names:
                fd = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
                self._note_file(fd, os.fstat(fd))
                os.close(fd)
            self._note("folder", os.stat(folder).st_ino, _entries(folder))  # noqa: PTH116

    def sync_file(self, fd: int) -> None:
        """fdatasync. What is written meanwhile does not count."""
        status = os.fstat(fd)
        os.fdatasync(fd)
        self._note_file(fd, status)

    def sync_folder(self, fd: int) -> None:
        """fsync of a folder."""
        entries = _entries(fd)
        os.fsync(fd)
        self._note("folder", os.fstat(fd).st_ino, entries)

    def _note_file(self, fd: int, status: os.stat_result) -> None:
        with contextlib.suppress(FileExistsError, FileNotFoundError):  # linked before; or deleted meanwhile
            # Only with a folder's descriptor does this follow the link that /proc has for an open file.
            os.link(
                f"/proc/self/fd/{fd}", str(status.st_ino), src_dir_fd=self._folder, dst_dir_fd=self._folder
            )
        self._note("file", status.st_ino, status.st_size)

    def _note(self, *fields: object) -> None:
        os.write(self._notes, json.dumps(fields).encode() + b"\n")


def _entries(folder: str | int | Path) -> dict[str, int]:
    with os.scandir(folder) as entries:
        return {entry.name: entry.inode() for entry in entries}


@dataclass(slots=True)
class _Durable:
    """All notes together."""

    sizes: dict[int, int] = field(default_factory=dict)
    folders: dict[int, dict[str, int]] = field(default_factory=dict)

    @classmethod
    def read(cls, notes: Path) -> _Durable:
        durable = cls()
        for line in notes.read_text().splitlines():
            kind, inode, value = json.loads(line)
            (durable.sizes if kind == "file" else durable.folders)[inode] = value
        return durable


def lose_unsynced(location: str | Path, seed: int = 0) -> list[Loss]:
    """Take from the folder of a dead broker what it had not synced; the seed chooses how.

    A file keeps what was synced of it, and of the rest nothing, a part, zeros or garbage. A folder has the
    entries of its last sync, or those that it had in the end.
    """
    beside = _beside(str(location))
    if not (beside / _NOTES).exists():
        raise NothingRecorded(
            f"the broker of {location} did not record its syncs: start it with {VARIABLE}=1 set"
        )
    cut = _PowerCut(beside, _Durable.read(beside / _NOTES), random.Random(seed))
    cut.folder(Path(location))
    shutil.rmtree(beside)  # what is left now is durable; the next start notes it so
    return cut.losses


class _PowerCut:
    def __init__(self, beside: Path, durable: _Durable, chance: random.Random) -> None:
        self._beside = beside
        self._durable = durable
        self._chance = chance
        self.losses: list[Loss] = []

    def folder(self, folder: Path) -> None:
        if self._chance.random() < 0.5:
            self._go_back(folder)
        for path in sorted(folder.iterdir()):
            if path.is_dir():
                self.folder(path)
            elif path.is_file():
                self._file(path)

    def _go_back(self, folder: Path) -> None:
        """Give a folder the entries of its last sync."""
        entries = self._durable.folders.get(folder.stat().st_ino, {})
        present = _entries(folder)
        names = {inode: name for name, inode in present.items()}
        for name, inode in sorted(entries.items()):
            if present.get(name) == inode:
                continue
            path = folder / name
            if (self._beside / str(inode)).exists():
                path.unlink(missing_ok=True)
                path.hardlink_to(self._beside / str(inode))
            elif inode in names and not path.exists():
                (folder / names[inode]).rename(path)
            else:
                continue
            self.losses.append(Loss(str(path), 0, "is back as it was before it was replaced or deleted"))
        for name in sorted(_entries(folder)):
            if name not in entries:
                self._remove(folder / name)

    def _remove(self, path: Path) -> None:
        size = sum(each.stat().st_size for each in [path, *path.rglob("*")] if each.is_file())
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        self.losses.append(Loss(str(path), size, "is gone: its name never reached the disk"))

    def _file(self, path: Path) -> None:
        status = path.stat()
        unsynced = status.st_size - self._durable.sizes.get(status.st_ino, 0)
        if unsynced <= 0:
            return
        kept = self._chance.randrange(unsynced)
        how = self._chance.choice(["nothing", "a part", "zeros", "garbage"])
        if how == "nothing":
            kept = 0
        start = status.st_size - unsynced
        with path.open("r+b") as file:
            file.truncate(start + kept)
            if how in ("zeros", "garbage"):
                file.seek(start)
                file.write(bytes(kept) if how == "zeros" else self._chance.randbytes(kept))
        lost = unsynced - kept if how == "a part" else unsynced
        self.losses.append(Loss(str(path), lost, f"keeps {how} of {unsynced} bytes behind byte {start}"))
