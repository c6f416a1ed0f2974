"""A receipt for one record: what it is called, and what became of it.

One is made for every record, so it is as small as it can be: no lock, no event, until somebody waits. It is
settled once, from any thread, with None (the cluster has the record, as far as the chosen semantics asks) or
with the error that says why not.

    >>> receipt = Receipt(Stream("orders-api", b"8 bytes.", "orders", 0), 41)
    >>> receipt.done
    False
    >>> receipt.settle(None)
    >>> receipt.wait(timeout=1.0).identity
    Identity(source='orders-api', incarnation=b'8 bytes.', sequence=41)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gapless.client.formats import Identity
from gapless.errors import GaplessError, Unreachable, UsageError

if TYPE_CHECKING:
    from gapless.client.producing.port import OnDelivery

_attaching = threading.Lock()
_awaited: set[Receipt] = set()  # an event loop holds its tasks weakly: what they wait for must live


class DeliveryFailed(GaplessError):
    """The record is not in the cluster, or nobody can say whether it is. The message says which."""


class LeftInSpool(GaplessError):
    """The record is safe in the spool; the next producer with that spool sends it."""


class StillWaiting(Unreachable):
    """Time is up, and nothing is decided: the record may yet arrive."""


def waits_for_itself(what: str) -> UsageError:
    """That it is called on the one thread that could end its waiting."""
    return UsageError(f"{what} in on_delivery would wait for itself: call it on another thread")


class Stream:
    """Records of one source, incarnation, topic and partition: what their receipts have in common."""

    __slots__ = ("incarnation", "partition", "source", "topic")

    def __init__(self, source: str, incarnation: bytes, topic: str, partition: int) -> None:
        self.source = source
        self.incarnation = incarnation
        self.topic = topic
        self.partition = partition


class Receipt:
    """What `send` returns. Wait for it, await it, or forget it."""

    __slots__ = ("__weakref__", "_outcome", "_waiters", "on_delivery", "sequence", "stream")

    def __init__(self, stream: Stream, sequence: int, on_delivery: OnDelivery | None = None) -> None:
        self.stream = stream
        self.sequence = sequence
        self.on_delivery = on_delivery
        self._outcome: GaplessError | bool = False  # True: the cluster has it
        self._waiters: list[Callable[[], object]] | None = None

    def __repr__(self) -> str:
        state = "pending" if not self.done else f"failed: {self.error}" if self.error else "done"
        return f"<Receipt {self.topic}-{self.partition} #{self.sequence} {state}>"

    @property
    def topic(self) -> str:
        return self.stream.topic

    @property
    def partition(self) -> int:
        return self.stream.partition

    @property
    def identity(self) -> Identity:
        """What the record's headers say."""
        return Identity(self.stream.source, self.stream.incarnation, self.sequence)

    @property
    def done(self) -> bool:
        """Whether it is known what became of the record."""
        return self._outcome is not False

    @property
    def error(self) -> GaplessError | None:
        """Why the record did not arrive; None if it did, or may yet."""
        outcome = self._outcome
        return None if outcome is True or outcome is False else outcome

    def settle(self, error: GaplessError | None) -> None:
        """Tell all who wait. For the sender; it calls `on_delivery` by itself, on its own thread.

        Only the first call counts.
        """
        if self._outcome is not False:
            return
        # First the outcome, then the waiters, where `_attach` does it the other way round: at least one of
        # the two sees what the other wrote, so nobody waits for what has already happened.
        self._outcome = True if error is None else error
        if self._waiters is not None:
            self._wake()

    def wait(self, timeout: float | None = None) -> Receipt:
        """Return when the cluster has the record (with transactions: when it is committed).

        Raises what went wrong, or StillWaiting after `timeout` seconds. In `on_delivery` it waits for nothing
        that is still open, but raises UsageError: it would wait for the thread that it is on.
        """
        if self._outcome is False:
            self._refuse_in_callback("wait()")
            arrived = threading.Event()
            self._attach(arrived.set)
            if not arrived.wait(timeout):
                raise StillWaiting(f"{self!r} is undecided after {timeout:g} s")
        if self._outcome is not True:
            raise self._outcome  # type: ignore[misc]  # neither bool is left
        return self

    def stored(self, timeout: float | None = None) -> Receipt:
        """Return when the record is on local disk, from where it is sent whatever happens."""
        raise UsageError("this producer keeps no record on disk before it is sent: use spool_mode='always'")

    def __await__(self) -> Generator[Any, None, Receipt]:
        if self._outcome is False:
            self._refuse_in_callback("wait()")
            loop = asyncio.get_running_loop()
            arrived: asyncio.Future[None] = loop.create_future()

            def tell() -> None:
                if not arrived.done():
                    arrived.set_result(None)

            def wake() -> None:
                with suppress(RuntimeError):  # the loop is closed: nobody awaits any more
                    loop.call_soon_threadsafe(tell)

            _awaited.add(self)
            self._attach(wake)
            yield from arrived
        return self.wait()

    def _refuse_in_callback(self, what: str) -> None:
        """Raises UsageError on the thread that settles this receipt. Whoever has such a thread says so."""

    def _attach(self, wake: Callable[[], object]) -> None:
        with _attaching:
            if self._waiters is None:
                self._waiters = []
            self._waiters.append(wake)
        if self._outcome is not False:
            self._wake()

    def _wake(self) -> None:
        with _attaching:
            waiters, self._waiters = self._waiters, None
            _awaited.discard(self)
        for wake in waiters or ():
            wake()
