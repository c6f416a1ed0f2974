"""What a producer asks of a path to the cluster: take records in their order, and say what became of each.

There are two: the direct path (`direct.py`: librdkafka's queue, a spool only to fall back on) and the
transactional one (`transactional.py`: all through the spool). `Producer` hands each record to one of them.
The sender chooses its partition, and gives it the next sequence there, as calls come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gapless.client.producing.partitions import Partitions
from gapless.client.producing.receipts import Receipt
from gapless.client.records import Headers
from gapless.errors import GaplessError

OnDelivery = Callable[[GaplessError | None, Receipt], None]
"""Told once what became of a record: None when the cluster has it, else why not."""


class Sender(Protocol):
    """Thread-safe. What fails for good is kept in `failure`, and every later `send` raises it."""

    @property
    def incarnation(self) -> bytes:
        """Of the identities that new records get."""
        ...

    @property
    def failure(self) -> GaplessError | None:
        """Why nothing can be sent any more, if so."""
        ...

    @property
    def problem(self) -> str | None:
        """What keeps records from being sent at the moment, as far as anybody has said; it may pass."""
        ...

    @property
    def callback_errors(self) -> int:
        """How often an `on_delivery` raised."""
        ...

    @property
    def dropped(self) -> int:
        """Records that were given up because the buffer was full, as the caller chose."""
        ...

    @property
    def partitions(self) -> Partitions:
        """How many each topic has."""
        ...

    def start(self) -> None:
        """Make what is needed and begin; raises what the user must know (Unreachable, SourceTakenOver)."""
        ...

    def send(
        self,
        topic: str,
        partition: int | None,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None,
    ) -> Receipt:
        """Take a record, for a partition of its own choice if none is given.

        Raises, having taken nothing, if it cannot.
        """
        ...

    def send_many(
        self,
        topic: str,
        partition: int | None,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        headers: Headers | None,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None,
    ) -> Sequence[Receipt]:
        """Take records for one topic, in their order; `keys`, if given, are as many.

        From a spool's `always` on: all of them, or it raises and none. Else one after the other.
        """
        ...

    def refuse_in_callback(self, what: str) -> None:
        """Raises UsageError on the thread that calls `on_delivery`, which settles receipts too."""
        ...

    def flush(self, timeout_s: float | None) -> int:
        """Wait until all that was taken before is settled; how many are not when time is up."""
        ...

    def close(self, timeout_s: float | None) -> int:
        """Flush, seal, end; how many records are left unsent (with a spool: in it). Twice is harmless."""
        ...
