"""How much memory groups hold, and how much they may: strangers can make groups, members and offsets at will.

Sizes are estimates, good to about a factor of two. Past the limit nothing new is taken, what is there stays.
"""

from __future__ import annotations

GROUP_BYTES = 1500
MEMBER_BYTES = 1500
PENDING_JOIN_BYTES = 700
OFFSET_BYTES = 500
NAME_BYTES = 150
"""A name in a collection: a protocol that a member speaks, a topic that a group subscribes to."""

MAX_PENDING_JOINS = 10_000
"""Member ids handed out in one group and not come back yet; past it the oldest is forgotten."""


class Held:
    """A running sum."""

    __slots__ = ("size_bytes",)

    def __init__(self) -> None:
        self.size_bytes = 0

    def grow(self, change_bytes: int) -> None:
        self.size_bytes += change_bytes
