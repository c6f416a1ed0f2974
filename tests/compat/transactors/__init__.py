"""What every transactional producer must be able to do here, said once; each module translates it.

It is started (its predecessor fenced) when it is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Fenced(Exception):
    """The client was told that another producer has taken its place."""


class Transactor(Protocol):
    """A started producer with a transactional id."""

    def begin(self) -> None: ...

    def send(self, topic: str, partition: int, value: bytes) -> None:
        """Hand over a record; it need not have arrived yet."""
        ...

    def flush(self) -> None:
        """Everything that was sent has arrived."""
        ...

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Make a group's next offset part of the transaction."""
        ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None:
        """End without a word about an open transaction."""
        ...


MakeTransactor = Callable[..., Transactor]
"""By a client's name and a transactional id; `timeout_ms` is the transaction's."""
