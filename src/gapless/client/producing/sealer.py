"""Writes seals to the ledger, with the producer that sends the records.

Without its seal an acknowledged record is one that no audit misses. So a seal gets more than the attempts of
one record: whatever fails for a reason that may pass (an election, a lost connection, a full queue, a fatal
error of librdkafka) is tried again until the time is up. A seal that arrives twice promises nothing new.

The last seal of a producer has no successor that could make up for it. If it cannot be written in time, it
is kept in the spool's folder, and the next producer with that folder writes it. Without a spool it is lost,
and the log says so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from gapless.client.formats import LEDGER_TOPIC, POSITION_PARTITION, Seal, UnreadableSeal
from gapless.client.producing.ledger import REQUEST_TIMEOUT_S, Ledger, LedgerMissing
from gapless.client.producing.polling import Poller
from gapless.client.spool import Spool, SpoolError

SEAL_S = 5.0
"""How long a seal at an interval is tried; what was not written by then goes into the next one."""
LAST_SEAL_S = 120.0
"""How long the last seal is tried if `close` has no timeout: as long as Kafka's producers try a record."""
SERVE_S = 0.05
RETRY_S = 0.3
_MIN_REQUEST_S = 0.1

# After these errors another attempt fails as well.
_PERMANENT = frozenset(
    (
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.INVALID_RECORD,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.POLICY_VIOLATION,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
    )
)

_logger = logging.getLogger("gapless.client")


def last_seal_timeout_s(close_by: float | None) -> float:
    """How long the last seal may take if `close` has until then (on the monotonic clock; None: no timeout).

    It gets all the time that flushing has left, and `SEAL_S` at least: flushing may have waited in vain for a
    topic of its own, while the ledger can be written.
    """
    return LAST_SEAL_S if close_by is None else max(close_by - time.monotonic(), SEAL_S)


def read_kept_seals(spool: Spool) -> list[Seal]:
    """Return the seals that an earlier producer kept in the folder, as seals that were recovered."""
    seals = []
    for encoded in spool.read_seals():
        try:
            seal = Seal.from_bytes(encoded)
        except UnreadableSeal as error:
            _logger.warning("the spool %s keeps a seal that audits will miss: %s", spool.path, error)
            continue
        seals.append(
            Seal(seal.source, seal.incarnation, seal.sealed_at_ms, "recovered", seal.intervals, seal.counts)
        )
    return seals


def keep_seals(spool: Spool | None, seals: Sequence[Seal], reason: str) -> None:
    """Keep the last seals, which could not be written, for the next producer with this folder.

    Without seals only the message is logged: the next producer knows of its own what to seal.
    """
    lost = f"the last seal was not written, so audits will miss promises: {reason}"
    if spool is None:
        _logger.warning(lost)
        return
    try:
        if seals:
            spool.keep_seals([seal.to_bytes() for seal in seals])
    except SpoolError as error:
        _logger.warning("%s; then: %s", lost, error)
    else:
        _logger.warning(
            "the last seal was not written; the next producer with the spool %s writes it: %s",
            spool.path,
            reason,
        )


def forget_kept_seals(spool: Spool) -> None:
    """Delete the seals that an earlier producer kept: they are written now."""
    try:
        spool.keep_seals([])
    except SpoolError as error:  # then the next producer writes them once more
        _logger.warning("%s", error)


class Sealer:
    """`spool`: the folder that keeps the last seals if they cannot be written."""

    def __init__(self, poller: Poller, connection: Mapping[str, Any], spool: Spool | None = None) -> None:
        self._poller = poller
        self._connection = {"log_level": 0, **connection}
        self._spool = spool
        self._ledger_exists = False
        self._has_warned = False

    def write(self, seals: Sequence[Seal]) -> list[Seal]:
        """Write seals at an interval. Return those that are not known to be written.

        Only the first failure is logged: seals at intervals fail as often as the cluster is away.
        """
        unwritten, reason = self._write(seals, SEAL_S)
        if not unwritten and self._spool is not None:
            forget_kept_seals(self._spool)
        elif unwritten and not self._has_warned:
            self._has_warned = True
            _logger.warning("a seal was not written, and goes into the next one: %s", reason)
        return unwritten

    def write_last(self, seals: Sequence[Seal], timeout_s: float) -> None:
        """Write all that no seal promises yet. The log says what becomes of seals that cannot be written."""
        try:
            unwritten, reason = self._write(seals, timeout_s, is_last=True)
        except BaseException as error:  # for example an impatient Ctrl-C
            keep_seals(self._spool, seals, f"closing was interrupted by {error!r}")
            raise
        if unwritten:
            keep_seals(self._spool, unwritten, reason)
        elif self._spool is not None:
            forget_kept_seals(self._spool)

    def _write(
        self, seals: Sequence[Seal], timeout_s: float, is_last: bool = False
    ) -> tuple[list[Seal], str]:
        """Return the seals that were not acknowledged in time, and why not."""
        give_up_at = time.monotonic() + timeout_s
        reason = f"no answer in {timeout_s:g} s"
        refused: list[Seal] = []
        to_write = list(seals)
        while to_write:
            try:
                self._ensure_ledger(give_up_at)
            except LedgerMissing as missing:
                return refused + to_write, str(missing)
            except KafkaException as error:
                attempt = _Attempt(to_write)
                attempt.fail_all(error.args[0])
            else:
                attempt = self._attempt(to_write, give_up_at)
            refused += attempt.refused
            to_write = attempt.to_repeat
            reason = attempt.reason or reason
            left_s = give_up_at - time.monotonic()
            if not to_write or left_s <= 0:
                break
            if is_last:
                _logger.info("the last seal is not written yet, and is tried for %.1f s: %s", left_s, reason)
            self._ledger_exists = False  # it may have been deleted
            time.sleep(min(RETRY_S, left_s))
        return refused + to_write, reason

    def _ensure_ledger(self, give_up_at: float) -> None:
        if self._ledger_exists:
            return
        ledger = Ledger(self._connection)
        try:
            left_s = give_up_at - time.monotonic()
            ledger.ensure_topic(min(max(left_s, _MIN_REQUEST_S), REQUEST_TIMEOUT_S))
        finally:
            ledger.rest()
        self._ledger_exists = True

    def _attempt(self, seals: Sequence[Seal], give_up_at: float) -> _Attempt:
        """Produce each seal once, and wait for the reports until the time is up."""
        attempt = _Attempt(seals)
        producer = self._poller.producer
        for seal in seals:
            self._produce(producer, seal, attempt, give_up_at)
        # A producer that was replaced after a fatal error may never report.
        while attempt.unreported and self._poller.producer is producer:
            left_s = give_up_at - time.monotonic()
            if left_s <= 0:
                break
            self._poller.serve(min(SERVE_S, left_s))
        return attempt

    def _produce(self, producer: Producer, seal: Seal, attempt: _Attempt, give_up_at: float) -> None:
        value, key = seal.to_bytes(), seal.key()
        report = partial(attempt.report, seal)
        while True:
            try:
                producer.produce(LEDGER_TOPIC, value, key, POSITION_PARTITION, on_delivery=report)
            except BufferError:  # reports make room
                if time.monotonic() >= give_up_at:
                    return
                self._poller.serve(SERVE_S)
            except KafkaException as error:
                if error.args[0].code() == KafkaError._FATAL and self._poller.producer is producer:
                    self._poller.fatal = True  # the poller's thread makes a new one
                with self._poller.polling:  # reports come one at a time
                    attempt.report(seal, error.args[0])
                return
            else:
                return


class _Attempt:
    """The reports on seals that were produced together. One thread at a time reports; others may read."""

    def __init__(self, seals: Sequence[Seal]) -> None:
        self.unreported = list(seals)
        self.failed: list[Seal] = []
        self.refused: list[Seal] = []
        """Failed permanently."""
        self.reason: str | None = None

    def report(self, seal: Seal, error: KafkaError | None, _message: Message | None = None) -> None:
        if error is not None:
            self.reason = error.str()
            (self.refused if error.code() in _PERMANENT else self.failed).append(seal)
        self.unreported.remove(seal)  # last: who sees no unreported seal sees all failed ones

    def fail_all(self, error: KafkaError) -> None:
        for seal in list(self.unreported):
            self.report(seal, error)

    @property
    def to_repeat(self) -> list[Seal]:
        """Seals that another attempt may write; without a report it is not known if they arrived."""
        return [*self.failed, *self.unreported]
