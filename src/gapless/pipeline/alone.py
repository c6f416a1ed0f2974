"""One run of a pipeline at a time: a second one would only make both fail, with words that frighten.

    with alone(folder, "checkpoints/orders"):
        ...

On a local disk the system holds the lock, and lets go of it when the process dies, however that happens.
Elsewhere there is none, and sinks alone keep two drivers apart: they do that here, too.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gapless.errors import GaplessError

if TYPE_CHECKING:
    from gapless.pipeline.folder import CheckpointFolder

_FILE = "running"
_MOST_DIGITS = 20
_logger = logging.getLogger("gapless.pipeline")


class AlreadyRunning(GaplessError):
    """Another process, or another part of this one, runs with this checkpoint."""


@contextmanager
def alone(folder: CheckpointFolder, checkpoint: str) -> Iterator[None]:
    """Be the only one for the time of the block; raises `AlreadyRunning` at once."""
    path = folder.local_path(_FILE)
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _lock(file, checkpoint)
        os.truncate(file, 0)
        os.pwrite(file, b"%d" % os.getpid(), 0)
        yield
    finally:
        os.close(file)


def _lock(file: int, checkpoint: str) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in {errno.EAGAIN, errno.EACCES}:
            _logger.warning(
                "whether another process runs with %s is not known: %s", checkpoint, error.strerror
            )
            return
        pid = os.pread(file, _MOST_DIGITS, 0).decode(errors="replace").strip()
        who = f"process {pid}" if pid.isdecimal() else "another process"
        raise AlreadyRunning(
            f"{who} runs a pipeline with the checkpoint {checkpoint} already: only one can, stop that first"
        ) from None
