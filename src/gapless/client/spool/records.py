"""A record on its way through a spool: the ticket that its sender gets, and what comes out again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

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


class Tickets(Sequence[Ticket]):
    """Of records that follow each other in the spool; each is made when somebody asks for it."""

    __slots__ = ("_group", "_position", "_sequences")

    def __init__(self, group: Group, position: int, sequences: Sequence[int]) -> None:
        self._group = group
        self._position = position
        self._sequences = sequences

    def __len__(self) -> int:
        return len(self._sequences)

    @overload
    def __getitem__(self, index: int) -> Ticket: ...
    @overload
    def __getitem__(self, index: slice) -> list[Ticket]: ...
    def __getitem__(self, index: int | slice) -> Ticket | list[Ticket]:
        numbers = range(len(self._sequences))
        if isinstance(index, slice):
            return [self[each] for each in numbers[index]]
        ticket, number = Ticket(), numbers[index]
        ticket.group = self._group
        ticket.position = self._position + number
        ticket.sequence = self._sequences[number]
        return ticket


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
