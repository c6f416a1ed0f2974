"""What was taken out of the logs and waits to be deleted, off the loop's thread and a few files at a time.

Deleting a large file takes the file system tens of milliseconds. Whoever still reads it holds it open.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable

from gapless.storage import disk

logger = logging.getLogger("gapless.storage")


class DeletionJob:
    """Deletes files and folders; may run on any thread."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def run(self) -> None:
        """Delete all of them. What cannot be deleted is tried again at the next start."""
        for path in self.paths:
            try:
                delete_tree(path)
            except OSError as error:
                logger.warning(
                    "cannot delete %s: %s; it will be tried again at the next start", path, error.strerror
                )


class Trash:
    """Paths by the time at which they may go."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, paths: Iterable[str], due_at: float) -> None:
        """Delete these at `due_at` or later."""
        for path in paths:
            heapq.heappush(self._heap, (due_at, path))

    def take(self, now: float, limit: int) -> DeletionJob | None:
        """A job for up to `limit` paths that are due; None if there are none."""
        paths: list[str] = []
        while self._heap and len(paths) < limit and self._heap[0][0] <= now:
            paths.append(heapq.heappop(self._heap)[1])
        return DeletionJob(paths) if paths else None


def delete_tree(path: str) -> None:
    """Delete a file, or a folder with all that is in it."""
    if not disk.is_directory(path):
        disk.remove_file(path)
        return
    for name in disk.list_directories(path):
        delete_tree(f"{path}/{name}")
    for name in disk.list_names(path):
        disk.remove_file(f"{path}/{name}")
    disk.remove_directory(path)
