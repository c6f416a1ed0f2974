"""Ctrl-C, and SIGTERM: the first ends the pipeline after its batch, the second at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

from gapless.errors import ExitCode

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """Handles the signals for as long as its block runs. Make it when Spark is up: Spark sets its own."""

    def __init__(self, stop: Callable[[], None], say: Callable[[str], None]) -> None:
        self.asked = False
        self._stop = stop
        self._say = say
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            # Spark's threads would not let the process end by itself; its JVM ends with us.
            sys.stdout.flush()
            sys.stderr.write("\x1b[?25h" if sys.stderr.isatty() else "")
            sys.stderr.flush()
            os._exit(ExitCode.INTERRUPTED)
        self.asked = True
        self._stop()
        self._say(
            "finishing the batch (Ctrl-C again ends at once; nothing is lost or doubled by that either)"
        )
