"""Records on local disk, in order, until the cluster has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gapless.client.records import Headers
from gapless.client.spool.errors import SpoolFailed
from gapless.client.spool.records import Spooled, Ticket

StreamKey = tuple[bytes, str, int]
"""(incarnation, topic, partition): what a sequence counts in."""


class Spool:
    """Signatures first; see the module's docstring for what they promise."""

    incarnation: bytes
    claimed: bool
    stored: int
    end: int
    sent: int
    first: int
    size_bytes: int

    def __init__(
        self,
        folder: str | Path,
        source: str,
        *,
        max_bytes: int | None = None,
        when_full: str = "refuse",
        block_s: float | None = None,
        segment_bytes: int = 64 << 20,
        keep_s: float = 86_400,
    ) -> None:
        raise NotImplementedError

    def note_claimed(self) -> None:
        raise NotImplementedError

    def append(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
        *,
        incarnation: bytes | None = None,
        sequence: int | None = None,
    ) -> Ticket:
        """Queue for the group commit. Raises SpoolFull, SpoolFailed (disk known to be ill), SpoolClosed."""
        raise NotImplementedError

    def next_sequence(self, topic: str, partition: int) -> int:
        raise NotImplementedError

    def wait_stored(self, ticket: Ticket, timeout: float | None = None) -> bool:
        """True once on disk; False after the timeout; raises SpoolFailed if it never will be."""
        raise NotImplementedError

    def on_stored(self, listener: Callable[[int], None]) -> None:
        """listener(stored) after each group; it must not wait for a lock that is held around append()."""
        raise NotImplementedError

    def on_failed(self, listener: Callable[[SpoolFailed], None]) -> None:
        """listener(error) after a group failed: tickets of it tell `.failure`."""
        raise NotImplementedError

    def read(self, position: int, max_records: int = 1000, max_bytes: int = 1 << 20) -> list[Spooled]:
        """Durable records from the position on; empty at the end; at least one if there is one."""
        raise NotImplementedError

    def wait_for(self, position: int, timeout: float | None = None) -> bool:
        """Whether the position is durable, at the latest after the timeout. False at once when closed."""
        raise NotImplementedError

    def note_sent(self, position: int) -> None:
        """The cluster has all below the position. Raises SpoolRestored if that is beyond what is stored."""
        raise NotImplementedError

    def sequences_at(self, position: int) -> dict[StreamKey, int]:
        """The next sequence of each stream at the position."""
        raise NotImplementedError

    def close(self) -> None:
        """Store what is pending and let the folder go."""
        raise NotImplementedError
