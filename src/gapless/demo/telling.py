"""How processes of the demo talk with the one that started them: lines of JSON on stdin and stdout."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from queue import Queue
from typing import Any

TELL_EVERY_S = 0.2
_turn = threading.Lock()


def tell(**report: Any) -> None:
    """Say something to the parent. From any thread."""
    line = json.dumps(report) + "\n"
    with _turn:
        sys.stdout.write(line)
        sys.stdout.flush()


class NowAndThen:
    """True every so often."""

    def __init__(self, every_s: float = TELL_EVERY_S) -> None:
        self._every_s = every_s
        self._next_s = 0.0

    def is_due(self) -> bool:
        now_s = time.monotonic()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + self._every_s
        return True


def commands() -> Queue[str]:
    """What the parent asks for. The process ends when its parent does, whatever it is at."""
    asked: Queue[str] = Queue()

    def listen() -> None:
        for line in sys.stdin:
            asked.put(line.strip())
        os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    return asked
