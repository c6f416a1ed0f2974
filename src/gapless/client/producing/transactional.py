"""The transactional path: from the spool into the cluster, each record once, whatever crashes.

`send` puts a record into the spool. One thread takes durable records out of it in order, and sends them in
transactions. Each transaction also commits how far in the spool it came, so that records and position are in
the cluster together or not at all; after a crash, a timeout or an answer that got lost, a new session reads
the position and goes on from there. What the local disk remembers of it is a hint and never decides.

Receipts are settled, and `on_delivery` called on the thread that sends, once a transaction is committed.
A record that the cluster refuses (too large for its topic, a topic that is gone, no permission) holds up
those behind it, with a warning, until the cluster takes it: skipping it would lose it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaException

from gapless.client.producing.asking import Asking
from gapless.client.producing.claiming import Claimant
from gapless.client.producing.intake import Intake
from gapless.client.producing.ownership import fingerprint
from gapless.client.producing.partitions import Partitions
from gapless.client.producing.port import OnDelivery
from gapless.client.producing.receipts import LeftInSpool, Receipt
from gapless.client.producing.sealer import keep_seals, last_seal_timeout_s
from gapless.client.producing.seals import Promises
from gapless.client.producing.session import TRANSACTION_TIMEOUT_MS, Ended, Session
from gapless.client.producing.settling import Settling
from gapless.client.records import Headers
from gapless.client.spool import Spool, SpoolClosed, SpoolFailed
from gapless.errors import GaplessError, UsageError

log = logging.getLogger("gapless.client")

READ_RECORDS = 2_000
READ_BYTES = 4 << 20
IDLE_S = 0.1
"""How long the thread sleeps at most before it looks at clocks and at what callers want."""
DAY_S = 86_400.0
_BACKOFF_S = 0.1
_BACKOFF_MAX_S = 5.0
_END_S = 2.0
_LOOK_S = 0.2


class TransactionalSender:
    """Sends what is in a spool in transactions. See `Sender` in port.py for what callers may rely on.

    `properties` are librdkafka's, complete but for what makes a producer transactional. `close` also closes
    the spool. `seal_every_s=0`: no seals. Offsets of the cluster must be kept for longer than `keep_alive_s`.
    """

    def __init__(
        self,
        spool: Spool,
        source: str,
        properties: Mapping[str, Any],
        *,
        transaction_ms: float = 100.0,
        transaction_records: int = 10_000,
        seal_every_s: float = 10.0,
        keep_alive_s: float = DAY_S,
        patience_s: float = 30.0,
        start_wait_s: float = 5.0,
    ) -> None:
        self.spool = spool
        self.problem: str | None = None
        """What keeps records from being sent at the moment, in one line; they wait in the spool."""
        self._failure: GaplessError | None = None
        self._source = source
        self._transaction_s = _checked_transaction_ms(transaction_ms, properties) / 1000
        self._transaction_records = transaction_records
        self._seal_every_s = seal_every_s
        self._keep_alive_s = keep_alive_s
        self._patience_s = patience_s
        self._start_wait_s = start_wait_s
        self._asking = Asking(properties)
        self.partitions = Partitions(self._asking.count_partitions, spool.path)
        self._settling = Settling(spool)
        self._intake = Intake(spool, source, properties, self.partitions, self._settling)
        self._promises = Promises(source, spool.incarnation)
        self._claimant = Claimant(
            spool,
            source,
            properties,
            self._promises,
            wanted=self._is_wanted,
            patience_s=patience_s,
            seals=seal_every_s > 0,
        )
        self._changed = threading.Condition()
        self._flush_to = 0
        self._failed_sessions = 0
        """Since the last transaction that was committed."""
        self._ending = threading.Event()
        self._end_by = float("inf")
        self._sealed_at = self._kept_alive_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"gapless-send-{source}", daemon=True)
        self._settling.thread = self._thread

    # -------------------------------------------------------------------------------- for callers

    @property
    def incarnation(self) -> bytes:
        return self.spool.incarnation

    @property
    def failure(self) -> GaplessError | None:
        return self._failure

    @property
    def dropped(self) -> int:
        """Always none: what is taken is in the spool."""
        return 0

    @property
    def committed(self) -> int | None:
        """How many of the spool's records the cluster has; None until it has been asked."""
        return self._settling.committed

    @property
    def callback_errors(self) -> int:
        return self._settling.callback_errors

    def start(self) -> None:
        """Begin. Raises what must be known at once; while the cluster is away records just wait."""
        self._thread.start()
        give_up_at = time.monotonic() + self._start_wait_s
        with self._changed:
            while self.committed is None and self._failure is None and self.problem is None:
                left = give_up_at - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
        if self._failure is not None:
            self.close(0.0)
            raise self._failure

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
        """Take a record into the spool."""
        self._check_can_take()
        return self._intake.take(topic, partition, value, key, headers, timestamp_ms, on_delivery)

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
        """Take records into the spool together."""
        self._check_can_take()
        return self._intake.take_many(topic, partition, values, keys, headers, timestamp_ms, on_delivery)

    def _check_can_take(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._ending.is_set():
            raise UsageError("the producer is closed")
        if self.spool.may_block:
            self.refuse_in_callback("send()")  # room in the spool is what the thread that we are on makes

    def flush(self, timeout_s: float | None) -> int:
        """Wait until all that was taken before is committed."""
        self.refuse_in_callback("flush()")
        target = self.spool.end
        give_up_at = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            self._flush_to = max(self._flush_to, target)
            while self._failure is None and self._thread.is_alive() and self._unsent(target):
                left = give_up_at - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, _LOOK_S))
                target = min(target, self.spool.end)  # if the disk has refused some: those have failed
        return self._unsent(target)

    def close(self, timeout_s: float | None) -> int:
        """Flush, seal, end; what cannot be sent in time stays in the spool."""
        self.refuse_in_callback("close()")
        has_started = self._thread.ident is not None
        is_first = not self._ending.is_set()
        close_by = None if timeout_s is None else time.monotonic() + timeout_s
        if is_first:
            unsent = self.flush(timeout_s) if has_started else 1
            # When all is sent there is time for the last seal; else what is under way is given up.
            self._end_by = time.monotonic()
            if not unsent and self.committed is not None:
                self._end_by += last_seal_timeout_s(close_by)
            self._ending.set()
        if has_started:
            # librdkafka may sit in a call for longer than we told it to. Whatever comes of it is harmless:
            # the next session fences this one.
            self._thread.join(max(0.0, self._end_by - time.monotonic()) + _END_S)
            if is_first:
                self._keep_last_seals()
        self._asking.rest()
        end = self.spool.end
        try:
            self.spool.close()
        finally:
            self._settling.tell_refused()
            self._settling.end(
                LeftInSpool("the producer was closed before the record was sent: it is in the spool")
            )
        return self._unsent(end)

    def _keep_last_seals(self) -> None:
        """Keep what could not be sealed in time.

        The next session seals all that was sent of the spool's own incarnation, without being told. Of others
        it does not know what was sealed.
        """
        if not self._seal_every_s or self._failure is not None:
            return
        seals = self._promises.unwritten("close")
        if seals:
            reason = self.problem or "there was no time left"
            keep_seals(self.spool, [each for each in seals if each.incarnation != self.incarnation], reason)

    def refuse_in_callback(self, what: str) -> None:
        self._settling.refuse_in_callback(what)

    def _unsent(self, target: int) -> int:
        return max(0, target - (self.spool.sent if self.committed is None else self.committed))

    # --------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        try:
            self._send_until_closed()
        except Ended:
            pass  # closed while something was under way: the next session finds out what became of it
        except GaplessError as error:
            if not (self._ending.is_set() and isinstance(error, SpoolClosed)):
                self._stop(error)
        except Exception as error:
            log.exception("sending for %r has stopped", self._source)
            self._stop(
                GaplessError(f"sending for {self._source!r} has stopped by a mistake of ours: {error!r}")
            )
        finally:
            self._tell_callers()

    def _send_until_closed(self) -> None:
        """Session after session: each goes on where the cluster says that the last one came."""
        while self._is_wanted():
            try:
                session = self._claimant.open()
                try:
                    self._begin(self._claimant.position)
                    self._drain(session)
                finally:
                    session.discard()
                return
            except KafkaException as error:
                self._promises.abort()
                self._note_problem(error.args[0].str())
            self._settling.tell_refused()
            self._failed_sessions += 1
            longest_s = min(_BACKOFF_S * 2 ** min(self._failed_sessions, 10), _BACKOFF_MAX_S)
            self._ending.wait(random.uniform(longest_s / 2, longest_s))

    def _begin(self, position: int) -> None:
        """A session begins. What an unanswered commit of the last one has done after all is settled now."""
        if not self.spool.wait_for(position, 0.0):
            self.problem = None  # else whatever it was, may still be so for the record that comes next
        self._kept_alive_at = time.monotonic()
        self._note_committed(position)

    def _is_wanted(self) -> bool:
        return not self._ending.is_set() or time.monotonic() < self._end_by

    def _note_problem(self, said: str) -> None:
        if self.problem != said:
            log.warning("sending for %r waits: %s", self._source, said)
        self.problem = said
        self._tell_callers()

    def _stop(self, error: GaplessError) -> None:
        log.error("%s", error)
        self._failure = error
        self._tell_callers()
        try:
            self.spool.close()  # nobody must wait for room in it any more, and another producer may have it
        except SpoolFailed as refused:
            log.warning("%s", refused)
        self._settling.tell_refused()
        self._settling.end(error)

    def _tell_callers(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # ------------------------------------------------------------------------------- transactions

    def _drain(self, session: Session) -> None:
        """Send until the producer is closed."""
        while True:
            position = self._claimant.position
            if self.spool.wait_for(position, 0.0 if self._ending.is_set() else IDLE_S):
                if not self._is_wanted():
                    return
                self._transact(session, position)
            elif self._ending.is_set():
                if self._seal_every_s and self._promises.anything:
                    self._transact_without_records(session, position, "close")
                return
            elif self._is_keep_alive_due() or (self._is_seal_due() and self._promises.anything):
                self._transact_without_records(session, position, "interval")
            self._settling.tell_refused()
            self._settling.tell_sent()

    def _transact(self, session: Session, position: int) -> None:
        """One transaction: records, and the position behind the last of them."""
        closes_at = time.monotonic() + self._transaction_s
        room = self._transaction_records
        last = None
        session.begin()
        while room > 0:
            records = self.spool.read(position, min(room, READ_RECORDS), READ_BYTES)
            if records:
                session.produce(records)
                self._promises.add(records)
                last = records[-1]
                position = last.position + 1
                room -= len(records)
            left_s = closes_at - time.monotonic()
            if left_s <= 0 or self._is_hurried(position):
                break
            if not records:
                self.spool.wait_for(position, min(left_s, IDLE_S))
        self._commit(session, position, fingerprint(last) if last else None, "interval")

    def _transact_without_records(self, session: Session, position: int, reason: str) -> None:
        """Seals alone, or just the registers again, so that they do not expire while nothing is sent."""
        session.begin()
        self._sealed_at = float("-inf")
        self._commit(session, position, None, reason)

    def _commit(self, session: Session, position: int, mark: str | None, reason: str) -> None:
        if self._is_seal_due():
            session.seal(self._promises.seals(reason))
            self._sealed_at = time.monotonic()
        keeps_alive = self._is_keep_alive_due()
        self._claimant.set_registers(session, position, mark, owner=keeps_alive)
        session.commit()
        self.problem = None
        self._failed_sessions = 0
        self._promises.commit()
        if keeps_alive:
            self._kept_alive_at = time.monotonic()
        self._note_committed(position)

    def _note_committed(self, position: int) -> None:
        self._claimant.position = position
        self.spool.note_sent(position)
        self._settling.advance(position)
        self._tell_callers()

    def _is_hurried(self, position: int) -> bool:
        """Whether somebody waits for what has been read, and nothing more is there to go with it."""
        return (self._ending.is_set() or self._flush_to > self._claimant.position) and (
            position >= self._flush_to
        )

    def _is_seal_due(self) -> bool:
        return bool(self._seal_every_s) and time.monotonic() >= self._sealed_at + self._seal_every_s

    def _is_keep_alive_due(self) -> bool:
        return time.monotonic() >= self._kept_alive_at + self._keep_alive_s


def _checked_transaction_ms(transaction_ms: float, properties: Mapping[str, Any]) -> float:
    given = properties.get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)
    try:
        timeout_ms = int(given)
    except (TypeError, ValueError):
        raise UsageError(f"property transaction.timeout.ms={given!r} cannot be understood") from None
    if transaction_ms > timeout_ms / 2:
        raise UsageError(
            f"transaction_ms={transaction_ms:g} leaves too little time to commit: the cluster aborts it "
            f"after transaction.timeout.ms={timeout_ms:g}; choose at most half of that"
        )
    return transaction_ms
