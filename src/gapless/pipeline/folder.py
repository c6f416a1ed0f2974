"""Small files beside a checkpoint: what a pipeline must remember that Spark does not.

    folder = CheckpointFolder(spark, "checkpoints/orders")
    folder.write("sinks/out/plan.json", b"{}")

They lie in `gapless/` inside the checkpoint, on whatever file system that is on, and are written by Spark's
own means for checkpoints: a file is there as a whole or not at all. On a local disk they cannot replace
a file: they remove the old one first, and its checksum is a file of its own, so that a crash in between
leaves none, or one that Hadoop refuses to read. There Python renames.

They live and die with the checkpoint: who removes one without the other makes a new checkpoint, which sinks
notice by its `id`.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ID_FILE = "id"
_ID_BYTES = 8


class CheckpointFolder:
    """The files of one checkpoint. For the driver only."""

    def __init__(self, spark: SparkSession, checkpoint: Path | str) -> None:
        self._jvm = cast("Any", spark._jvm)
        self._root = f"{checkpoint}/gapless"
        conf = spark._jsparkSession.sessionState().newHadoopConf()
        checkpointing = self._jvm.org.apache.spark.sql.execution.streaming.checkpointing
        self._files = checkpointing.CheckpointFileManager.create(self._path(""), conf)
        self._file_system = self._path("").getFileSystem(conf)
        where = self._file_system.makeQualified(self._path("")).toUri()
        self._local = Path(where.getPath()) if where.getScheme() == "file" else None

    @cached_property
    def id(self) -> str:
        """Random, made with the checkpoint: tells it from another one of the same pipeline."""
        known = self.read(_ID_FILE)
        if known is None:
            known = secrets.token_hex(_ID_BYTES).encode()
            self.write(_ID_FILE, known)
        return known.decode()

    def read(self, name: str) -> bytes | None:
        """The file's content; None if there is no such file."""
        if self._local is not None:
            try:
                return (self._local / name).read_bytes()
            except FileNotFoundError:
                return None
        path = self._path(name)
        if not self._file_system.exists(path):
            return None
        stream = self._file_system.open(path)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def write(self, name: str, data: bytes) -> None:
        """Make or replace the file, all or nothing."""
        if self._local is not None:
            _replace(self._local / name, data)
            return
        path = self._path(name)
        self._file_system.mkdirs(path.getParent())
        stream = self._files.createAtomic(path, True)
        try:
            stream.write(data)
        except BaseException:
            stream.cancel()
            raise
        stream.close()

    def write_once(self, name: str, data: bytes) -> None:
        """Make the file, all or nothing, unless there is one: then that stays, and nothing happens."""
        if self._local is not None:
            _replace(self._local / name, data, only_new=True)
            return
        from py4j.protocol import Py4JJavaError

        path = self._path(name)
        self._file_system.mkdirs(path.getParent())
        try:
            stream = self._files.createAtomic(path, False)
            stream.write(data)
            stream.close()
        except Py4JJavaError:
            if not self._file_system.exists(path):
                raise

    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder of this one, sorted; none if there is no such folder."""
        path = self._path(folder)
        if not self._file_system.exists(path):
            return []
        names = (status.getPath().getName() for status in self._file_system.listStatus(path))
        return sorted(name for name in names if not name.startswith("."))

    def delete(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it. Nothing happens if there is none."""
        self._file_system.delete(self._path(name), True)

    def location(self, name: str) -> str:
        """Where a file or folder of this name is, for who writes it by other means."""
        return f"{self._root}/{name}"

    def local_path(self, name: str) -> Path | None:
        """The same, if it is on a local disk."""
        return None if self._local is None else self._local / name

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.location(name) if name else self._root)


def _replace(path: Path, data: bytes, *, only_new: bool = False) -> None:
    """After a power cut there is the old file or the new one, and after the return it is the new one.

    With `only_new` an old one stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if only_new:
            with suppress(FileExistsError):
                path.hardlink_to(unfinished)
        else:
            unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
