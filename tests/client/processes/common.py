"""What programs that tests run and kill share. It imports little: they are started often."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from gapless.errors import UsageError

PATIENCE_S = 60.0
QUICK: dict[str, Any] = {"fetch.wait.max.ms": 50, "heartbeat.interval.ms": 200, "session.timeout.ms": 6000}
"""Members that learn of rebalances soon."""


class Consuming(Protocol):
    def assignment(self) -> Any: ...
    def lag(self) -> Any: ...
    def stop(self) -> None: ...


def stop_at_end(consumer: Consuming) -> None:
    """Once the consumer has partitions and has done all that is in them."""

    def has_done_all() -> bool:
        try:
            return bool(consumer.assignment()) and sum(consumer.lag().values()) == 0
        except UsageError:  # a rebalance has taken the partitions away between the two questions
            return False

    def watch() -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if has_done_all():
                break
            time.sleep(0.02)
        consumer.stop()

    threading.Thread(target=_unless_closed(watch), daemon=True).start()


def _unless_closed(function: Callable[[], None]) -> Callable[[], None]:
    def guarded() -> None:
        try:
            function()
        except Exception as error:
            print(error, file=sys.stderr)

    return guarded


def append_line(path: Path | str, line: str) -> None:
    """One write: whole, or not there."""
    with open(path, "ab", buffering=0) as file:
        file.write(line.encode() + b"\n")


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
