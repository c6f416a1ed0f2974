"""Tells an old copy of a spool's folder, for example a restored backup, from the one that was sent from last.

A copy that went on giving sequences would give some a second time, and readers that know identities would
take those records for repeated ones. So a register of the ledger tells how much of the spool may be in the
topics: it is committed *before* the records are sent, with a fingerprint of the last of them. What it tells
is on disk, so the folder that was sent from always has it, whatever crashes; an old copy lacks it or has
other records there. It is asked once, before anything of the folder is sent.

It is the register of producers without transactions. (Those with them commit a position, which is exact.)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from gapless.client.formats import reached_group
from gapless.client.producing.ledger import Ledger, LedgerMissing
from gapless.client.producing.ownership import (
    NO_FINGERPRINT,
    fingerprint,
    judge_reached,
    record_before,
)
from gapless.client.producing.recovery import last_in_seals, refuse_old_copy
from gapless.client.spool import Spool, SpoolRestored
from gapless.errors import Unreachable

DAY_S = 86_400.0
SEALS_S = 600.0
"""How long seals may take to read, where the register has expired."""
_NOT_ALLOWED = (
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)

_logger = logging.getLogger("gapless.client")


class Guard:
    """Of one spool that was just opened. For one thread, but for `end`."""

    def __init__(self, spool: Spool, source: str, connection: Mapping[str, Any]) -> None:
        self._spool = spool
        self._source = source
        self._connection = {"log_level": 0, **connection}
        self._group = reached_group(source, spool.incarnation)
        self._stored_at_opening = spool.stored  # what comes later may be another's in the newest folder
        self._ledger: Ledger | None = None
        self._reached = 0
        self._fingerprint = NO_FINGERPRINT
        self._committed_at = float("-inf")
        self._is_checked = False
        self._is_allowed = True
        self._has_ended = False
        self.is_asking = False
        """Whether it is waiting for the cluster. Librdkafka may take its time."""
        self._refusal: SpoolRestored | None = None

    def check(self) -> None:
        """Once, and then now and then, so that the register does not expire.

        Raises SpoolRestored if nothing of the folder may be sent, Unreachable if that cannot be told yet.
        """
        if self._refusal is not None:
            raise self._refusal
        if not self._is_checked:
            self._ask(self._check)
            self._is_checked = True
        elif time.monotonic() - self._committed_at > DAY_S:
            self._ask(self._commit)

    def cover(self, end: int) -> None:
        """Records before this position, which are stored, are about to be sent. Raises as `check`."""
        self.check()
        if end > self._reached:
            self._ask(self._cover)

    def end(self) -> None:
        """Change nothing any more: the next producer may be at it already. From any thread."""
        self._has_ended = True

    def rest(self) -> None:
        """Close connections."""
        if self._ledger is not None:
            self._ledger.rest()
            self._ledger = None

    def _ask(self, what: Callable[[Ledger], None]) -> None:
        """Where the user may not have such registers, records are sent all the same: nothing is known."""
        if not self._is_allowed:
            return
        self.is_asking = True
        try:
            what(self._open())
        except SpoolRestored as error:
            self._refusal = error
            raise
        except LedgerMissing as error:
            self._give_up(str(error))
        except KafkaException as error:
            self.rest()  # the topic may be gone, and is made when the ledger is opened
            reason = error.args[0]
            if reason.code() not in _NOT_ALLOWED:
                raise Unreachable(f"the ledger does not answer: {reason.str()}") from error
            self._give_up(reason.str())
        finally:
            self.is_asking = False

    def _open(self) -> Ledger:
        if self._ledger is None:
            self._ledger = Ledger(self._connection)
            self._ledger.ensure_topic()
        return self._ledger

    def _give_up(self, why: str) -> None:
        self._is_allowed = False
        _logger.warning("an old copy of the spool %s would not be noticed: %s", self._spool.path, why)

    def _check(self, ledger: Ledger) -> None:
        found = ledger.read(self._group)
        if found is not None:
            last = record_before(self._spool, found.offset)
            judge_reached(found, last, source=self._source, stored=self._stored_at_opening)
            self._reached, self._fingerprint = found.offset, found.metadata
            self._commit(ledger)
            return
        if self._stored_at_opening:
            self._check_by_seals()
        self._cover(ledger)

    def _check_by_seals(self) -> None:
        """The register has expired, since no producer had the folder open for days; seals never do."""
        give_up_at = time.monotonic() + SEALS_S
        lasts = last_in_seals(self._spool, self._source, self._connection, give_up_at)
        refuse_old_copy(self._spool, self._source, lasts, self._stored_at_opening)

    def _cover(self, ledger: Ledger) -> None:
        """All that is stored by now: who sends fast asks seldom."""
        stored = self._spool.stored
        last = record_before(self._spool, stored)
        self._fingerprint = NO_FINGERPRINT if last is None else fingerprint(last)
        self._commit(ledger, stored)

    def _commit(self, ledger: Ledger, reached: int | None = None) -> None:
        if self._has_ended:
            raise Unreachable("the producer was closed before the ledger answered")
        reached = self._reached if reached is None else reached
        ledger.write(self._group, reached, self._fingerprint)
        self._reached, self._committed_at = reached, time.monotonic()
