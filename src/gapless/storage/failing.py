"""How a log fails: the first failure is final, and every refusal repeats its sentence."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from gapless.core.log import LogFailed
from gapless.storage import disk
from gapless.storage.formats import Partition
from gapless.storage.scan import DamagedLog

logger = logging.getLogger("gapless.storage")


class Failing:
    """The part of a log that knows whether it still works."""

    def __init__(self, partition: Partition, directory: str) -> None:
        self.partition = partition
        self.directory = directory
        self.failure: str | None = None
        """Why the log refuses appends; None while it is healthy."""

    def _fail(self, message: str) -> None:
        if self.failure is None:
            self.failure = message
            logger.error("%s-%d takes no more appends: %s", *self.partition, message)

    def _refuse_if_failed(self) -> None:
        if self.failure is not None:
            raise LogFailed(self.failure)

    @contextmanager
    def _changing(self, action: str) -> Iterator[None]:
        """For changes other than appends: if one fails half-way, the log takes no more."""
        self._refuse_if_failed()
        try:
            yield
        except OSError as error:
            failed = disk.failure(action, error.filename or self.directory, error)
            self._fail(str(failed))
            raise failed from error
        except DamagedLog as damage:
            self._fail(_damage(damage))
            raise LogFailed(_damage(damage)) from damage

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (OSError, DamagedLog) as error:
            raise self._read_failed(error) from error

    def _read_failed(self, error: OSError | DamagedLog) -> LogFailed:
        if isinstance(error, DamagedLog):
            return LogFailed(_damage(error))
        return disk.failure("read", error.filename or self.directory, error)


def _damage(damage: DamagedLog) -> str:
    return f"{damage}; restore the file from a copy or another replica, then restart the broker"
