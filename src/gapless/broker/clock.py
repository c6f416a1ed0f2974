"""The broker's clock: wall time that never jumps.

Deadlines and timestamps come from one number. It starts at the system's time and then follows the monotonic
clock, so that setting the system's clock can neither expire nor hang what waits.
"""

from __future__ import annotations

from time import monotonic, time


class Clock:
    """Milliseconds since the epoch, monotonic."""

    def __init__(self) -> None:
        self._offset_s = time() - monotonic()

    def now_ms(self) -> int:
        return int((monotonic() + self._offset_s) * 1000)
