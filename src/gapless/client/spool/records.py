"""A record on its way through a spool: the ticket that its sender gets, and what comes out again."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gapless.client.records import Headers
from gapless.client.spool.errors import SpoolError

if TYPE_CHECKING:
    from gapless.client.spool.group import Group


class Ticket:
    """Where a record will be in the spool, once its group is stored.

    `append` fills it in: one is made for each record, and a constructor would take twice as long.
    """

    __slots__ = ("group", "position", "sequence")

    position: int
    sequence: int
    group: Group

    def __repr__(self) -> str:
        state = "stored" if self.is_stored else "failed" if self.failure is not None else "pending"
        return f"<Ticket #{self.sequence} at {self.position}, {state}>"

    @property
    def is_stored(self) -> bool:
        return self.group.is_stored

    @property
    def failure(self) -> SpoolError | None:
        """Why the record is not stored and never will be: its position then goes to another record."""
        return self.group.failure


class Spooled(NamedTuple):
    """One record of the spool."""

    position: int
    incarnation: bytes
    topic: str
    partition: int
    sequence: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers
