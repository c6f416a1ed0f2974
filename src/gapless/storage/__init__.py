"""The durable log on disk, and its twin in memory."""

from __future__ import annotations

from gapless.storage.file_log import FileLog
from gapless.storage.file_store import DataDirInUse, DataDirUnusable, FileLogStore
from gapless.storage.flush import FlushJob
from gapless.storage.memory import MemoryLog, MemoryLogStore
from gapless.storage.recovery import Recovery
from gapless.storage.slices import ReadableSlice

__all__ = [
    "DataDirInUse",
    "DataDirUnusable",
    "FileLog",
    "FileLogStore",
    "FlushJob",
    "MemoryLog",
    "MemoryLogStore",
    "ReadableSlice",
    "Recovery",
]
