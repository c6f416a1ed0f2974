"""How a session begins: fence whoever sent before, read what is true, and commit that we go on from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from gapless.client.formats import owner_group, position_group, reached_group
from gapless.client.producing.ledger import REQUEST_TIMEOUT_S, Committed, Ledger, register
from gapless.client.producing.ownership import (
    NO_FINGERPRINT,
    Position,
    judge_fingerprint,
    judge_owner,
    judge_position,
    judge_reached,
    new_instance,
    record_before,
)
from gapless.client.producing.sealer import forget_kept_seals, read_kept_seals
from gapless.client.producing.seals import Promises
from gapless.client.producing.session import Session
from gapless.client.spool import Spool

CATCH_UP_RECORDS = 2_000
_GLANCE_S = 3.0


class Claimant:
    """One instance of a producer, which claims its source at the start and after every lost session."""

    def __init__(
        self,
        spool: Spool,
        source: str,
        properties: Mapping[str, Any],
        promises: Promises,
        *,
        wanted: Callable[[], bool],
        patience_s: float,
        seals: bool = True,
    ) -> None:
        self.instance = new_instance()
        self.position = 0
        """How much of the spool the cluster has, as of the last commit that was answered."""
        self._spool = spool
        self._source = source
        self._properties = dict(properties)
        self._promises = promises
        self._wanted = wanted
        self._patience_s = patience_s
        self._seals = seals
        self._kept_seals = read_kept_seals(spool) if seals else []
        self._ledger: Ledger | None = None
        self._fingerprint = NO_FINGERPRINT
        self._before: tuple[str | None] | None = None
        self._has_position = False
        self._is_owner = False

    def open(self) -> Session:
        """A session that owns the source, and `position`.

        Raises PositionLost, SpoolRestored or SourceTakenOver, after which nothing may be sent, and
        KafkaException when it may be tried again.
        """
        ledger = self._ledger = self._ledger or Ledger(self._properties)
        try:
            ledger.ensure_topic()
            self._glance_at_owner(ledger)
            return self._open(ledger)
        finally:
            ledger.rest()

    def _open(self, ledger: Ledger) -> Session:
        session = Session(self._properties, self._source, wanted=self._wanted, patience_s=self._patience_s)
        try:
            session.init()
            self._check_owner(ledger)
            self._claim(session, self._read_position(ledger))
        except BaseException:
            session.discard()
            raise
        return session

    def set_registers(self, session: Session, position: int, fingerprint: str | None, *, owner: bool) -> None:
        """Put the position into the open transaction, and our name as the owner if asked to."""
        ledger = self._ledger = self._ledger or Ledger(self._properties)
        self._fingerprint = fingerprint or self._fingerprint
        metadata = Position(position, self.instance, self._fingerprint).metadata
        group = position_group(self._source, self._spool.incarnation)
        session.set(ledger.group(group), register(position, metadata))
        if owner:
            session.set(ledger.group(owner_group(self._source)), register(0, self.instance))

    def _glance_at_owner(self, ledger: Ledger) -> None:
        """So that we do not fence somebody who has taken over.

        A claim that was begun and not ended, perhaps our own, is not waited for until the cluster aborts it:
        our session will do that.
        """
        try:
            self._check_owner(ledger, _GLANCE_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._TIMED_OUT:
                raise

    def _check_owner(self, ledger: Ledger, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        owner: Committed | None = ledger.read(owner_group(self._source), timeout_s)
        if self._before is None:
            self._before = (owner.metadata if owner else None,)
        before = None if self._is_owner else self._before[0]
        judge_owner(owner, source=self._source, mine=self.instance, before=before)

    def _read_position(self, ledger: Ledger) -> Position:
        spool = self._spool
        if not spool.claimed and spool.stored:
            self._refuse_old_copy(ledger)
        position = judge_position(
            ledger.read(position_group(self._source, spool.incarnation)),
            source=self._source,
            claimed=spool.claimed,
            sent=spool.sent,
            stored=spool.stored,
            instance=self.instance,
        )
        judge_fingerprint(position, record_before(spool, position.offset), source=self._source)
        return position

    def _refuse_old_copy(self, ledger: Ledger) -> None:
        """As the producers without transactions would, that used the folder before."""
        reached = ledger.read(reached_group(self._source, self._spool.incarnation))
        if reached is not None:
            last = record_before(self._spool, reached.offset)
            judge_reached(reached, last, source=self._source, stored=self._spool.stored)

    def _claim(self, session: Session, found: Position) -> None:
        """Commit the position, and us as the owner, before anything is sent.

        On first use that position is the spool's beginning; from then on absence means that it was lost.
        """
        session.begin()
        if self._seals and not self._has_position and found.offset > 0:
            session.seal(self._promises.recovered(self._spool.sequences_at(found.offset)))
        session.seal(self._kept_seals)
        self.set_registers(session, found.offset, found.fingerprint, owner=True)
        session.commit()
        self._is_owner = True
        if self._kept_seals:
            forget_kept_seals(self._spool)
            self._kept_seals = []
        if not self._spool.claimed:
            self._spool.note_claimed()
        if self._has_position:
            self._catch_up(found.offset)
        else:
            self._promises.begin_at(self._spool.sequences_at(found.offset))
            self._has_position = True
        self.position = found.offset

    def _catch_up(self, position: int) -> None:
        """Promise what an unanswered commit of this process has done after all."""
        at = self.position
        while at < position:
            records = self._spool.read(at, min(position - at, CATCH_UP_RECORDS))
            self._promises.add(records)
            at = records[-1].position + 1
        self._promises.commit()
