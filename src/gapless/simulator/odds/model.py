"""The load and the machinery that are assumed. Every figure is a choice, and can be chosen otherwise."""

from __future__ import annotations

from dataclasses import dataclass

PARTITIONS = 6
"""Two led by each broker; each of the two producers writes to one of them."""
PRODUCERS = 2
SLOW_SHARE, SLOW_MS = 1 / 32, 20
"""So many messages are late, by up to so much: a network with a tail."""
FLUSH_MS = 2
REQUEST_MS = 30_000
"""request.timeout.ms, and how long a broker waits for its followers: Kafka's default."""
RESTART_MS = 5_000
"""A killed process is back after so long."""
REBOOT_MS = 20_000
SLOWER_REBOOT_MS = 10_000
"""A machine is after so long, or up to so much later."""
SESSION_ENDS_MS = 10_000
"""When a broker that is cut off from the coordination service gives up, and its successor is safe."""


@dataclass(frozen=True, slots=True)
class Model:
    """What may be chosen."""

    linger_ms: int = 5
    """A producer sends what it has for a partition so often, as one batch."""
    latency_ms: int = 1
    """One way, between any two."""
    writeback_ms: int = 30_000
    """An operating system writes a file's page cache to disk so often, at a moment that nobody knows."""
    retention_ms: int = 7 * 86_400_000
    """How much of the past a log holds: what is lost with the last copy of it."""
    resend: bool = True
    """Whether an application that starts again sends what had not been acknowledged when it died."""
