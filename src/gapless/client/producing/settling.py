"""Who is told what became of records in a spool, and when.

One number, how far the cluster has the spool, settles any number of receipts. So a receipt that is looked at
looks at that number, and it is remembered here only while somebody waits for it or if it has a callback:
records that lie in the spool through an outage cost disk, not memory.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from gapless.client.producing.port import OnDelivery
from gapless.client.producing.receipts import Receipt, StillWaiting, Stream, waits_for_itself
from gapless.client.spool import Spool, Ticket
from gapless.errors import GaplessError

log = logging.getLogger("gapless.client")


class SpooledReceipt(Receipt):
    """A receipt for a record in a spool."""

    __slots__ = ("_is_watched", "_settling", "ticket")

    def __init__(
        self, settling: Settling, stream: Stream, ticket: Ticket, on_delivery: OnDelivery | None
    ) -> None:
        super().__init__(stream, ticket.sequence, on_delivery)
        self.ticket = ticket
        self._settling = settling
        self._is_watched = False

    @property
    def done(self) -> bool:
        self._look()
        return super().done

    @property
    def error(self) -> GaplessError | None:
        self._look()
        return super().error

    def wait(self, timeout: float | None = None) -> Receipt:
        self._look()
        return super().wait(timeout)

    def stored(self, timeout: float | None = None) -> Receipt:
        """Return when the record is on local disk, from where it is sent whatever happens."""
        if not self._settling.spool.wait_stored(self.ticket, timeout):
            raise StillWaiting(f"{self!r} is not on disk after {timeout:g} s")
        return self

    def _attach(self, wake: Callable[[], object]) -> None:
        super()._attach(wake)
        if not self._is_watched:
            self._is_watched = True
            self._settling.watch(self)
        self._look()

    def _refuse_in_callback(self, what: str) -> None:
        self._settling.refuse_in_callback(what)

    def _look(self) -> None:
        if self._outcome is False:
            self._settling.judge(self)


class Settling:
    """Receipts that somebody cares for. Callbacks are called in the order of positions, by one thread."""

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self.committed: int | None = None
        """How many of the spool's records the cluster has; None until that is known."""
        self._ended: GaplessError | None = None
        self._ordering = threading.Lock()
        self._lock = threading.Lock()
        self._callbacks: deque[SpooledReceipt] = deque()
        self._watched: list[tuple[int, int, SpooledReceipt]] = []  # a heap by position
        self._tie_breaker = itertools.count()
        self._has_refused = False
        self.callback_errors = 0
        """How often a callback raised."""
        self.thread: threading.Thread | None = None
        """On which callbacks are called."""
        spool.on_failed(self._note_refused)

    def receipt(
        self, stream: Stream, take: Callable[[], Ticket], on_delivery: OnDelivery | None
    ) -> SpooledReceipt:
        """A receipt for the record that `take` puts into the spool."""
        if on_delivery is None:
            return SpooledReceipt(self, stream, take(), None)
        with self._ordering:  # and not the other lock: a full spool may make `take` wait for what is sent
            receipt = SpooledReceipt(self, stream, take(), on_delivery)
            with self._lock:
                self._callbacks.append(receipt)
        if self._ended is not None:  # while we took it: `end` may not have seen its callback
            self.end(self._ended)
        return receipt

    def receipts(
        self, streams: Iterable[Stream], take: Callable[[], Sequence[Ticket]], on_delivery: OnDelivery | None
    ) -> list[SpooledReceipt]:
        """Receipts for the records that `take` puts into the spool together."""

        def of_all(tickets: Sequence[Ticket]) -> list[SpooledReceipt]:
            each = zip(streams, tickets, strict=True)
            return [SpooledReceipt(self, stream, ticket, on_delivery) for stream, ticket in each]

        if on_delivery is None:
            return of_all(take())
        with self._ordering:
            receipts = of_all(take())
            with self._lock:
                self._callbacks.extend(receipts)
        if self._ended is not None:  # as above
            self.end(self._ended)
        return receipts

    def judge(self, receipt: SpooledReceipt) -> None:
        """Settle a receipt if it can be said what became of it. From any thread."""
        ticket = receipt.ticket
        if ticket.failure is not None:
            receipt.settle(ticket.failure)
        elif self.committed is not None and ticket.position < self.committed and ticket.is_stored:
            receipt.settle(None)
        elif self._ended is not None:
            receipt.settle(self._ended)

    def refuse_in_callback(self, what: str) -> None:
        """Raises UsageError on the thread that others wait for."""
        if threading.current_thread() is self.thread:
            raise waits_for_itself(what)

    def watch(self, receipt: SpooledReceipt) -> None:
        """Somebody waits for it."""
        with self._lock:
            heapq.heappush(self._watched, (receipt.ticket.position, next(self._tie_breaker), receipt))

    def advance(self, committed: int) -> None:
        """The cluster has all below the position: tell those who want to know."""
        self.committed = committed
        self.tell_sent()

    def tell_sent(self) -> None:
        """Tell those whose records are committed, also such as came here later than their records there."""
        committed = self.committed or 0
        watched: list[SpooledReceipt] = []
        callbacks: list[SpooledReceipt] = []
        with self._lock:
            while self._watched and self._watched[0][0] < committed:
                watched.append(heapq.heappop(self._watched)[2])
            while self._callbacks and self._callbacks[0].ticket.position < committed:
                callbacks.append(self._callbacks.popleft())
        self._settle(watched, callbacks)

    def tell_refused(self) -> None:
        """Tell those whose records the disk refused; their positions go to other records."""
        if not self._has_refused:
            return
        self._has_refused = False
        with self._lock:
            callbacks = [each for each in self._callbacks if each.ticket.failure is not None]
            self._callbacks = deque(each for each in self._callbacks if each.ticket.failure is None)
            watched = [each for _, _, each in self._watched if each.ticket.failure is not None]
            self._watched = [each for each in self._watched if each[2].ticket.failure is None]
            heapq.heapify(self._watched)
        self._settle(watched, callbacks)

    def end(self, error: GaplessError) -> None:
        """Nothing more will be sent: what is left gets the error."""
        self._ended = error
        with self._lock:
            watched = [each for _, _, each in self._watched]
            callbacks = list(self._callbacks)
            self._watched.clear()
            self._callbacks.clear()
        self._settle(watched, callbacks)

    def _settle(self, watched: list[SpooledReceipt], callbacks: list[SpooledReceipt]) -> None:
        for receipt in watched:
            self.judge(receipt)
        for receipt in callbacks:
            self.judge(receipt)
            self._call(receipt)

    def _call(self, receipt: SpooledReceipt) -> None:
        if receipt.on_delivery is None:
            return
        try:
            receipt.on_delivery(receipt.error, receipt)
        except (Exception, SystemExit):  # exit() ends only the thread that it is called on: ours
            self.callback_errors += 1
            if self.callback_errors == 1:
                log.exception(
                    "on_delivery raised for %r: sending goes on, more of them are not told", receipt
                )

    def _note_refused(self, _error: GaplessError) -> None:
        """Those who wait are told at once: the thread that sends may be waiting for the cluster."""
        self._has_refused = True
        with self._lock:
            watched = [each for _, _, each in self._watched]
        for receipt in watched:
            if receipt.ticket.failure is not None:
                self.judge(receipt)
