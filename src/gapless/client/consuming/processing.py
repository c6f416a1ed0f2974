"""What is done with some records: the store and the handler, retries, and giving up.

`Processing.do(work)` returns when all records of the work are done, or the partition is no longer ours. It
raises when the consumer must stop. In between, what is done is told to the backlog record by record, so that
a stop commits all that was done before the record that failed, and nothing after it.
"""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from gapless.client.consuming.backlog import Backlog, Holding, Work
from gapless.client.consuming.failures import DeadLetterWriter, ProcessingFailed
from gapless.client.consuming.outages import PAUSE_S, Outage
from gapless.client.consuming.settings import Settings
from gapless.client.records import Record
from gapless.client.stores.port import Applied, Handler, HandlerFailed, PartitionTaken, StoreUnavailable
from gapless.errors import UsageError

_log = logging.getLogger(__name__)
_LONGEST_BACKOFF_S = 30.0
_REBALANCE_S = 0.05
"""How long to wait before trying again what the group refuses while it shares partitions out anew."""

_Answer = TypeVar("_Answer")

CommitFirst = Callable[[Holding, int], bool]
"""Tell the group that all below an offset is done; False if the partition is not ours any more."""
Taken = Callable[[Holding], None]


class _Abandoned(Exception):
    """The partition went to somebody else, or the consumer stops: what is not done stays undone."""


class Counters:
    """How many records were handled, had been before, and went to the dead letters."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.handled = 0
        self.repeated = 0
        self.dead_lettered = 0

    def count(self, applied: Applied, dead_lettered: int = 0) -> None:
        with self._lock:
            self.handled += applied.handled
            self.repeated += applied.repeated
            self.dead_lettered += dead_lettered


def check_function(function: object, what: str) -> None:
    """UsageError for what cannot be called, or would do nothing: records would pass for done."""
    if not callable(function):
        raise UsageError(f"the {what} is {function!r}, which cannot be called: give a function")
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        raise UsageError(
            f"the {what} is async, and nobody would await it: give a plain function (it may call asyncio.run)"
        )


def as_handler(function: Callable[..., Any]) -> Handler:
    """A handler of one argument or of two, as one of two."""
    check_function(function, "handler")
    if inspect.isgeneratorfunction(function):
        raise UsageError("the handler has a yield, so calling it would do nothing: use a plain function")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some of those written in C do not tell
        return lambda record, _transaction: function(record)
    positional = [
        each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    required = [each for each in positional if each.default is each.empty]
    many = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    if len(required) > 2 or not (positional or many):
        raise UsageError(
            f"the handler takes {len(required)} arguments: give one that takes a record, or a record and the "
            "store's transaction"
        )
    if len(required) == 2 or (many and len(required) < 2 and not positional):
        return function
    return lambda record, _transaction: function(record)


class Processing:
    """Shared by all workers."""

    def __init__(
        self,
        settings: Settings,
        backlog: Backlog,
        handler: Handler,
        counters: Counters,
        commit_first: CommitFirst,
        taken: Taken,
    ) -> None:
        self._settings = settings
        self._store = settings.store
        self._backlog = backlog
        self._handler = handler
        self._commit_first = commit_first
        self._taken = taken
        self.counters = counters
        self._letters_lock = threading.Lock()
        self._letters: DeadLetterWriter | None = None
        if settings.on_failure is not None:
            self._letters = DeadLetterWriter(
                settings.on_failure, settings.group, settings.producer_properties()
            )

    def do(self, work: Work) -> None:
        """Handle the work and give its lane back; raises what must stop the consumer."""
        begun = time.monotonic()
        try:
            if self._committed(work):
                self._all_at_once(work)
        except _Abandoned:
            pass
        except PartitionTaken as taken:
            # Before the lane is given back: the next worker would only learn the same.
            if self._backlog.give_up(work.holding):
                _log.warning("%s: %s", work.holding.partition, taken)
                self._taken(work.holding)
        except BaseException:
            self._uncommit(work)
            raise
        finally:
            self._backlog.finish(work, time.monotonic() - begun)

    def _committed(self, work: Work) -> bool:
        """For commit-then-process; where that is not wanted, there is nothing to wait for."""
        if not self._settings.commit_first or self._commit_first(work.holding, work.records[-1].offset + 1):
            return True
        self._backlog.wait_while_ours(work.holding, _REBALANCE_S)
        return False

    def _uncommit(self, work: Work) -> None:
        """After commit-then-process: give back to the group what was certainly not begun."""
        begun = work.done + 1
        if self._settings.commit_first and begun < len(work.records):
            self._commit_first(work.holding, work.records[begun].offset)

    def _all_at_once(self, work: Work) -> None:
        """As nearly always; only if that fails, find out which record it is."""
        records, attempts, cause = work.records, 0, None
        try:
            end = partial(self._backlog.end, work)
            self.counters.count(self._store.apply(work.holding.partition, records, self._handler, end))
            work.done = len(records)
            return
        except HandlerFailed as failed:
            self.counters.count(failed.applied)
            work.done = failed.applied.handled + failed.applied.repeated
            failed_at, cause, attempts = failed.record.offset, failed.cause, 1
        except StoreUnavailable:
            failed_at = records[0].offset
        while work.done < len(records):
            record = records[work.done]
            before = (attempts, cause) if record.offset == failed_at else (0, None)
            self._persist(work.holding, record, *before)
            work.done += 1

    def _persist(self, holding: Holding, record: Record, attempts: int, cause: Exception | None) -> None:
        """One record, until it is done or given up. `attempts` have failed already, the last by `cause`."""
        while True:
            if cause is not None and attempts > self._settings.retries:
                self._give_up(holding, record, attempts, cause)
                return
            if attempts and not self._wait(holding, attempts):
                raise _Abandoned
            try:
                self.counters.count(
                    self._outlast(
                        holding, lambda: self._store.apply(holding.partition, (record,), self._handler)
                    )
                )
                return
            except HandlerFailed as failed:
                attempts, cause = attempts + 1, failed.cause

    def _outlast(self, holding: Holding, ask: Callable[[], _Answer]) -> _Answer:
        """Ask the store until it answers, for `store_timeout_s`: databases are restarted."""
        outage = Outage(holding.partition)
        while True:
            try:
                answer = ask()
            except StoreUnavailable as error:
                outage.refused(error, self._settings.store_timeout_s)
                if not self._backlog.wait_while_ours(holding, PAUSE_S):
                    raise _Abandoned from error
            else:
                outage.over()
                return answer

    def _wait(self, holding: Holding, failures: int) -> bool:
        """Each time twice as long; False if the record is no longer ours to handle."""
        backoff_s = self._settings.backoff_ms / 1000 * 2 ** (failures - 1)
        return self._backlog.wait_while_ours(holding, min(backoff_s, _LONGEST_BACKOFF_S))

    def _give_up(self, holding: Holding, record: Record, attempts: int, cause: Exception) -> None:
        if self._letters is None:
            raise ProcessingFailed(record, cause, attempts) from cause
        with self._letters_lock:
            self._letters.write(record, cause, attempts)
        self._outlast(holding, lambda: self._store.skip(holding.partition, record))
        self.counters.count(Applied(0, 0), dead_lettered=1)
