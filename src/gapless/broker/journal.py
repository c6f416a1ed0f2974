"""The journal as events: one operation at a time, on a thread of its own, told to the rules in its order.

Whoever is refused has missed something: it comes as `Committed` before `Refused`, so that the next decision
is made on the newest image.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gapless.broker.coordination.port import (
    COMPACT_AFTER_CHANGES,
    Coordination,
    JournalFailed,
    JournalMoved,
)
from gapless.core.contract import CaughtUp, Committed, Event, Propose, Refused
from gapless.core.image import Image
from gapless.core.records import MetadataRecord

log = logging.getLogger("gapless.broker")

News = tuple[int, list[MetadataRecord]]


class Journal:
    """What this broker proposes and what it has read, kept apart in time: nothing is read while it writes."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        coordination: Coordination,
        image: Callable[[], Image],
        report: Callable[[Event], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._loop = loop
        self._coordination = coordination
        self._image = image
        self._report = report
        self._fail = fail
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._at_work: asyncio.Future[Any] | None = None
        self._proposal: Propose | None = None
        self._look_again = False
        self._catching_up = 0
        self._closed = False

    def read_all(self) -> None:
        """At the start, before anything else: the whole journal, on this thread."""
        version, records = self._coordination.read(0)
        self._report(Committed(version, records))
        self._coordination.compact(version, self._image().snapshot())

    def propose(self, proposal: Propose) -> None:
        """Try to add to the journal; `Committed` or `Refused` follows."""
        self._proposal = proposal
        self._go_on()

    def moved(self) -> None:
        """There may be something new."""
        self._look_again = True
        self._go_on()

    def catch_up(self) -> None:
        """Read to the end as it is now, then say `CaughtUp`."""
        self._catching_up += 1
        self._look_again = True
        self._go_on()

    def _go_on(self) -> None:
        if self._at_work is not None or self._closed:
            return
        if self._look_again:
            self._look_again = False
            waiting, self._catching_up = self._catching_up, 0
            self._start(self._read_on, lambda news: self._has_read(news, waiting))
        elif self._proposal is not None:
            proposal, self._proposal = self._proposal, None
            self._start(lambda: self._append(proposal), lambda outcome: self._has_written(proposal, outcome))

    def _start(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        future = self._at_work = self._loop.run_in_executor(self._thread, work)

        def finished(done: asyncio.Future[Any]) -> None:
            error = done.exception()
            try:
                if error is None:
                    then(done.result())
                elif not (self._closed and isinstance(error, JournalFailed)):
                    self._fail(error)
            finally:
                # Only now, so that what follows from this comes after it.
                self._at_work = None
                self._go_on()

        future.add_done_callback(finished)

    # --------------------------------------------------------------------------------------- on the thread

    def _read_on(self) -> News:
        return self._coordination.read(self._image().version)

    def _append(self, proposal: Propose) -> News | Refused:
        """What was committed (ours, or what came before us), or why nothing can be."""
        try:
            version = self._coordination.append(proposal.expected_version, proposal.records)
        except JournalMoved:
            return self._read_on()
        except JournalFailed as error:
            return Refused(str(error), retry=False)
        return version, proposal.records

    # ----------------------------------------------------------------------------------------- on the loop

    def _has_read(self, news: News, waiting: int) -> None:
        if news[0] > self._image().version:
            self._report(Committed(*news))
        for _ in range(waiting):
            self._report(CaughtUp())

    def _has_written(self, proposal: Propose, outcome: News | Refused) -> None:
        if isinstance(outcome, Refused):
            log.error("%s", outcome.reason)
            self._report(outcome)
            return
        version, records = outcome
        if records is proposal.records:
            self._report(Committed(version, records, own=True))
            self._coordination.announce()
            if version % COMPACT_AFTER_CHANGES == 0 and self._image().version == version:
                self._compact_later(version)
            return
        if version > self._image().version:
            self._report(Committed(version, records))
        self._report(Refused("the journal has moved", retry=True))

    def _compact_later(self, version: int) -> None:
        snapshot = self._image().snapshot()

        def compact() -> None:
            try:
                self._coordination.compact(version, snapshot)
            except JournalFailed as error:
                log.warning("%s", error)  # the history stays as it is

        self._thread.submit(compact)

    async def settle(self) -> None:
        """Begin nothing new, and wait for what is under way."""
        self._closed = True
        self._coordination.interrupt()
        while self._at_work is not None:
            await asyncio.wait((self._at_work,))

    def close(self) -> None:
        """End the session."""
        self._closed = True
        self._thread.shutdown(wait=True)
        self._coordination.close()
