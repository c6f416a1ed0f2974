"""How much may be appended: bounded in memory by what the disk can take in, and on disk by the user.

Appending a record only subtracts from what was granted. Not locked; the spool's lock is held around each
call.
"""

from __future__ import annotations

import time
from pathlib import Path

from gapless.client.spool import blocks
from gapless.client.spool.errors import SpoolFull
from gapless.client.spool.group import Group
from gapless.client.spool.segments import Segments
from gapless.client.spool.streams import Streams
from gapless.errors import UsageError

MAX_PENDING_BYTES = 8 << 20
_LEAST_BYTES = 16 << 10
_FIXED_BYTES = blocks.FILE_HEADER.size + 3 * blocks.BLOCK_OVERHEAD_BYTES


class Room:
    """What is left."""

    def __init__(self, max_bytes: int | None, when_full: str, block_s: float | None) -> None:
        if when_full not in {"refuse", "block"}:
            raise UsageError(f"a full spool cannot {when_full!r}: choose 'refuse' or 'block'")
        if max_bytes is not None and max_bytes < _LEAST_BYTES:
            raise UsageError(
                f"a spool bounded to {max_bytes} bytes holds next to nothing: give it {_LEAST_BYTES}"
            )
        self._max_bytes = max_bytes
        self._blocks = when_full == "block"
        self._block_s = block_s
        self._granted_before = 0
        self._free_bytes = 0
        self._most_bytes = 0
        """What an empty spool has room for."""
        self._in_flight_bytes = 0
        self.is_shut = False

    def _settle(self, pending: Group) -> None:
        pending.size_bytes += self._granted_before - pending.granted_bytes
        self._granted_before = pending.granted_bytes

    def grant(self, pending: Group, segments: Segments, streams: Streams) -> None:
        """Count again."""
        self._settle(pending)
        room = MAX_PENDING_BYTES - pending.size_bytes
        if self._max_bytes is not None:
            # The streams may be declared in a block and in a new segment's head, before that of the pending.
            overhead = _FIXED_BYTES + 2 * streams.declared_bytes
            taken = segments.size_bytes + self._in_flight_bytes + pending.size_bytes
            self._most_bytes = self._max_bytes - overhead
            self._free_bytes = self._most_bytes - taken
            room = min(room, self._free_bytes)
        pending.granted_bytes = self._granted_before = -1 if self.is_shut else room

    def take(self, pending: Group) -> None:
        """The group is being written."""
        self._settle(pending)
        self._in_flight_bytes = pending.size_bytes
        self._granted_before = 0

    def written(self) -> None:
        self._in_flight_bytes = 0

    def take_back(self) -> None:
        """What was pending is gone."""
        self._granted_before = 0

    def fits(self, size: int, pending: Group) -> bool:
        """After a count. A record larger than what may be pending fits when it is alone."""
        if size > blocks.MAX_RECORD_BYTES:
            raise UsageError(
                f"{size} bytes are too many for one call: a spool takes up to {blocks.MAX_RECORD_BYTES}"
            )
        if size <= pending.granted_bytes:
            return True
        return pending.end == pending.first and not self.is_bounded_for(size)

    def is_bounded_for(self, size: int) -> bool:
        """Whether it is the user's bound that leaves no room."""
        return self._max_bytes is not None and size > self._free_bytes

    def never_fits(self, size: int) -> bool:
        """Whether the user's bound leaves no room whatever is sent and deleted."""
        return self._max_bytes is not None and size > self._most_bytes

    @property
    def may_block(self) -> bool:
        return self._max_bytes is not None and self._blocks

    def refuse_when_full(self) -> None:
        self._blocks = False

    def deadline(self) -> float | None:
        return None if self._block_s is None else time.monotonic() + self._block_s

    def wait_s(self, size: int, deadline: float | None, path: Path, written_bytes: int) -> float | None:
        """How long to wait until something was sent; raises SpoolFull where that cannot help."""
        max_bytes = self._max_bytes or 0
        remaining = None if deadline is None else deadline - time.monotonic()
        if self.never_fits(size):
            raise SpoolFull(
                f"the spool {path} may have {max_bytes} bytes: {size} at once will never fit,"
                f" give fewer records at once or raise its bound"
            )
        waits = self._blocks and size <= max_bytes // 2
        if not waits or (remaining is not None and remaining <= 0):
            raise SpoolFull(
                f"the spool {path} is full ({written_bytes} of {max_bytes} bytes) until more of it is sent:"
                f" {size} more were refused"
            )
        return remaining
