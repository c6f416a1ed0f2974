"""The direct path: records go into librdkafka's queue at once; a spool, if there is one, is to fall back on.

A record falls back when its attempts are used up, when the queue is full (if the user chose so), or when
the producer closes and its fate is still open. It keeps its identity. From the first one on everything
behind it goes to the spool, too, until that is drained: so records stay in order, but for those that were on
their way in that moment, which may be stored behind younger ones, or twice if only their answers were lost.

Without a spool a failure is the caller's: the receipt and `on_delivery` have it. So it is with a spool, if
the cluster refuses a record that it will never take.

When librdkafka gives up its idempotent session for good (a fatal error), a new producer is made. What it had
not confirmed is sent again with the same identity, if something may come twice; else it has failed.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message

from gapless.client.formats import INCARNATION_BYTES, SEQUENCE_HEADER, sequence_header
from gapless.client.producing.draining import Drain, DrainSettling
from gapless.client.producing.guarding import Guard
from gapless.client.producing.intake import now_ms
from gapless.client.producing.lanes import DirectReceipt, Lane, Lanes, Runs
from gapless.client.producing.limits import SizeLimit
from gapless.client.producing.partitions import STEP_RECORDS, Partitions
from gapless.client.producing.polling import Poller, ProducedHeaders, fail
from gapless.client.producing.port import OnDelivery
from gapless.client.producing.receipts import DeliveryFailed, LeftInSpool, Receipt
from gapless.client.producing.sealer import Sealer, last_seal_timeout_s, read_kept_seals
from gapless.client.producing.settings import Settings
from gapless.client.producing.upkeep import Promised, Upkeep
from gapless.client.records import Headers
from gapless.client.semantics import Semantics
from gapless.client.spool import Spool, Spooled, SpoolError
from gapless.errors import GaplessError, UsageError

_HELP_MASK = 255
_LOOK_MASK = STEP_RECORDS - 1
_TOGETHER = 256  # records under one lock, at 4 µs each: other threads wait for a millisecond
_ROOM_S = 0.005
_SLICE_S = 0.05
NO_SEQUENCE = -1
"""Of a record that was dropped before it got one."""

# What the cluster will refuse for ever: no spool helps.
_FOR_EVER = frozenset(
    (
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_MSG,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.POLICY_VIOLATION,
        KafkaError.INVALID_TIMESTAMP,
    )
)
# The record was not on its way when it was given up; after all other errors it may have arrived.
_NEVER_SENT = frozenset((KafkaError._PURGE_QUEUE, *_FOR_EVER))


class BufferFull(GaplessError):
    """The buffer is full: the cluster takes records more slowly than they are sent."""


class Failed(NamedTuple):
    """A record that librdkafka gave back."""

    receipt: DirectReceipt
    error: KafkaError
    value: bytes | None
    key: bytes | None


class DirectSender:
    """See `Sender` in port.py. With a spool: to fall back on; `close` closes it."""

    def __init__(self, settings: Settings, spool: Spool | None = None) -> None:
        self.source = settings.source
        self.incarnation = secrets.token_bytes(INCARNATION_BYTES)
        self.dropped = 0
        self._settings = settings
        self._size_limit = SizeLimit(settings.properties, settings.source)
        self._stopped: GaplessError | None = None
        self._may_repeat = settings.semantics is not Semantics.AT_MOST_ONCE and settings.retries > 0
        self._lock = threading.Lock()
        self._lanes = Lanes(self)
        self._failures: deque[Failed] = deque()
        self._promised = Promised(self.source)
        self.poller = Poller(settings.librdkafka(), f"poll-{self.source}", self._chore)
        self.partitions = Partitions(self.poller.count_partitions, settings.spool)
        self._runs = Runs(self._lanes, self.partitions)
        self._produce = self.poller.producer.produce
        self._fallback: _Fallback | None = None
        if spool is not None:
            settling = DrainSettling(spool, self.poller)
            # It may hold records of an `always` producer, who must know later how many were sent.
            guard = Guard(spool, self.source, settings.connection()) if spool.has_own else None
            drain = Drain(
                spool, self.source, self.poller, settings.backoff_ms / 1000, settling, self._drained, guard
            )
            self._fallback = _Fallback(spool, drain, settling)
        # What an earlier producer left in the spool goes first.
        self._is_spooling = self._fallback is not None and self._fallback.drain.left > 0
        self._exceptional = self._is_spooling
        self._sealer = Sealer(self.poller, settings.connection(), spool)
        self._seals = settings.seal_every_s > 0 and settings.acks != "0"
        if self._seals and spool is not None:
            self._promised.add_kept(read_kept_seals(spool))
        self._upkeep = Upkeep(self.source, settings.seal_every_s if self._seals else 0.0, self._seal)

    # ---------------------------------------------------------------------------------- for callers

    @property
    def failure(self) -> GaplessError | None:
        return self._stopped

    @property
    def problem(self) -> str | None:
        """What keeps records from being sent at the moment, as far as anybody has said."""
        drain = None if self._fallback is None else self._fallback.drain
        return drain.problem if drain is not None and drain.problem else self.poller.problem

    @property
    def callback_errors(self) -> int:
        return self.poller.callback_errors

    @property
    def spooled(self) -> int:
        """Records in the spool that are not known to be sent."""
        return 0 if self._fallback is None else self._fallback.drain.left

    def start(self) -> None:
        self.poller.start()
        self._upkeep.start()
        if self._fallback is not None:
            self._fallback.drain.start()

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
        """Take a record: the way of all records, so nothing is here that most do not need."""
        if partition is None and key is None:
            lane = self._runs[topic]
        else:
            lane = self._lanes[topic, self.partitions.choose(topic, key) if partition is None else partition]
        give_up_at: float | None = None
        while True:
            try:
                with self._lock:
                    if self._exceptional:
                        return self._send_otherwise(lane, value, key, headers, timestamp_ms, on_delivery)
                    receipt: DirectReceipt = DirectReceipt()
                    receipt.stream = lane
                    receipt.sequence = sequence = lane.next
                    receipt.on_delivery = on_delivery
                    receipt.headers = headers
                    receipt.timestamp_ms = timestamp_ms
                    receipt._outcome = False
                    receipt._waiters = None
                    produced: ProducedHeaders = [lane.made_by, (SEQUENCE_HEADER, sequence_header(sequence))]
                    if headers is not None:
                        produced += headers
                    # No call between these two: whenever an interrupt comes (Ctrl-C), two records never have
                    # one sequence. At worst a sequence is left out.
                    lane.next = sequence + 1
                    try:
                        self._produce(
                            topic, value, key, lane.partition, receipt, None, timestamp_ms or 0, produced
                        )
                    except (BufferError, KafkaException):
                        lane.next = sequence
                        raise
            except BufferError:
                if self._settings.when_full == "drop":
                    return self._drop(lane, on_delivery)
                give_up_at = self._find_room(give_up_at)
            except KafkaException as error:
                self._recover(error.args[0], lane)
            except TypeError as hidden:  # no type is wrong: this is what becomes of an interrupt in there
                raise KeyboardInterrupt from hidden
            else:
                if sequence & _LOOK_MASK == _LOOK_MASK:
                    self._look_around(lane, sequence)
                return receipt

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
        """Take records one after the other, but those that need no more than most do under one lock."""
        run = self._runs[topic] if partition is None else self._lanes[topic, partition]
        if partition is None and keys is not None:
            choose, lanes = self.partitions.choose, self._lanes
            of_each = [run if key is None else lanes[topic, choose(topic, key)] for key in keys]
        else:
            of_each = [run] * len(values)
        records = list(zip(of_each, values, keys or repeat(None)))  # noqa: B905  # the last has no end
        receipts: list[Receipt] = []
        while (taken := len(receipts)) < len(records):
            some = records[taken : taken + _TOGETHER]
            self._take_together(some, receipts, headers, timestamp_ms, on_delivery)
            if len(receipts) < taken + len(some):
                lane, value, key = records[len(receipts)]
                receipts.append(
                    self.send(topic, lane.partition, value, key, headers, timestamp_ms, on_delivery)
                )
            self.poller.help()
        if partition is None:
            self._runs.look(run, sum(lane is run for lane in of_each))
        return receipts

    def _take_together(
        self,
        records: Sequence[tuple[Lane, bytes | None, bytes | None]],
        receipts: list[Receipt],
        headers: Headers | None,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None,
    ) -> None:
        """As `send` does, up to the first record that is not taken at once: that one is for `send`."""
        with self._lock:
            if self._exceptional:
                return
            for lane, value, key in records:
                receipt: DirectReceipt = DirectReceipt()
                receipt.stream = lane
                receipt.sequence = sequence = lane.next
                receipt.on_delivery = on_delivery
                receipt.headers = headers
                receipt.timestamp_ms = timestamp_ms
                receipt._outcome = False
                receipt._waiters = None
                produced: ProducedHeaders = [lane.made_by, (SEQUENCE_HEADER, sequence_header(sequence))]
                if headers is not None:
                    produced += headers
                lane.next = sequence + 1  # no call between these two, as in `send`
                try:
                    self._produce(
                        lane.topic, value, key, lane.partition, receipt, None, timestamp_ms or 0, produced
                    )
                except (BufferError, KafkaException):
                    lane.next = sequence
                    return
                except TypeError as hidden:  # an interrupt, as in `send`
                    raise KeyboardInterrupt from hidden
                receipts.append(receipt)

    def _look_around(self, lane: Lane, sequence: int) -> None:
        """Now and then: the run may be over, and there may be reports."""
        self._runs.look(lane)
        if sequence & _HELP_MASK == _HELP_MASK:
            self.poller.help()

    def refuse_in_callback(self, what: str) -> None:
        self.poller.refuse_in_callback(what)

    def flush(self, timeout_s: float | None) -> int:
        self.refuse_in_callback("flush()")
        give_up_at = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while left := self._open():
            left_s = give_up_at - time.monotonic()
            if left_s <= 0:
                return left
            self.poller.flush(min(_SLICE_S, left_s))
        return 0

    def close(self, timeout_s: float | None) -> int:
        self.refuse_in_callback("close()")
        close_by = None if timeout_s is None else time.monotonic() + timeout_s
        # Who waits for room in the spool holds the lock.
        if not self._lock.acquire(timeout=-1 if timeout_s is None else timeout_s):
            if self._fallback is not None:
                self._fallback.spool.refuse_when_full()
            self._lock.acquire()
        was_stopped, self._stopped = self._stopped, self._stopped or UsageError("the producer is closed")
        self._exceptional = True
        self._lock.release()
        if was_stopped is not None:
            return self.spooled
        self._upkeep.stop()
        unsent = self.flush(None if close_by is None else max(close_by - time.monotonic(), 0.0))
        if self._fallback is not None:
            self._fallback.spool.refuse_when_full()
            self._fallback.drain.stop()
        self.poller.purge(in_flight=True)
        self._handle_failures()
        try:
            if self._seals:
                self._note_all_acked()
                self._sealer.write_last(self._promised.take("close"), last_seal_timeout_s(close_by))
            return unsent if self._fallback is None else self._fallback.close()
        finally:
            self.poller.stop()
            self._produce = self.poller.producer.produce

    def _open(self) -> int:
        """Records whose fate is not known."""
        return self.poller.unreported + len(self._failures) + self.spooled

    # ------------------------------------------------------------------------------ exceptions of send

    def _send_otherwise(
        self,
        lane: Lane,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None,
    ) -> Receipt:
        """The producer is closed, or everything goes to the spool. Under the lock."""
        if self._stopped is not None:
            raise self._stopped
        if self._fallback is None:
            raise RuntimeError("records were to go to a spool, and there is none")
        self._size_limit.check(value, key, headers)
        record = Spooled(
            0,
            lane.incarnation,
            lane.topic,
            lane.partition,
            lane.next,
            timestamp_ms or now_ms(),
            key,
            value,
            headers or (),
        )
        lane.next += 1  # first, as above
        try:
            receipt = self._fallback.store(lane, record, on_delivery)
        except GaplessError:
            lane.next -= 1
            raise
        if not lane.next % STEP_RECORDS:
            self._runs.look(lane)
        return receipt

    def _drop(self, lane: Lane, on_delivery: OnDelivery | None) -> Receipt:
        with self._lock:
            self.dropped += 1
        receipt = Receipt(lane, NO_SEQUENCE, on_delivery)
        fail(receipt, BufferFull("the buffer is full, and the record was dropped, as chosen"), self.poller)
        return receipt

    def _find_room(self, give_up_at: float | None) -> float:
        """The buffer is full: wait a little, or turn to the spool. When to give up, for the next time."""
        choice = self._settings.when_full
        if choice == "spool":
            with self._lock:
                self._is_spooling = self._exceptional = True
            return float("inf")
        now = time.monotonic()
        if give_up_at is None:
            give_up_at = now + choice if isinstance(choice, float) else float("inf")
        elif now >= give_up_at:
            raise BufferFull(
                f"the buffer of {self._settings.buffer_messages} records was full for {choice:g} s: "
                f"the record was not taken"
            )
        self.poller.serve(min(_ROOM_S, max(give_up_at - now, 0.0)))
        return give_up_at

    def _recover(self, error: KafkaError, lane: Lane) -> None:
        """librdkafka refuses to take a record: because of the record, or because it can go on no more."""
        if error.code() != KafkaError._FATAL:
            raise UsageError(f"{lane.topic}-{lane.partition} cannot take the record: {error.str()}")
        self.poller.fatal = True
        self._handle_failures()

    # ---------------------------------------------------------------------------------------- reports

    def failed(self, receipt: DirectReceipt, error: KafkaError, message: Message) -> None:
        """Noted now, seen to by the poller's thread: others may be in the middle of a send."""
        if receipt.timestamp_ms is None:
            receipt.timestamp_ms = now_ms() - int(1000 * (message.latency() or 0.0))
        self._failures.append(Failed(receipt, error, message.value(), message.key()))

    def note_acked(self, lane: Lane) -> None:
        """Remember what the lane counted as acknowledged. Called by whoever polls."""
        if lane.acked > lane.sealed:
            acknowledged = self._promised.of(self.incarnation)
            acknowledged.note_run(lane.topic, lane.partition, lane.sealed, lane.acked - 1)
        lane.sealed = lane.acked

    def _chore(self) -> None:
        if self._fallback is not None:
            self._fallback.settling.tell_refused()  # the drain may be waiting for the cluster
        if self._failures or self.poller.fatal:
            self._handle_failures()

    def _handle_failures(self) -> None:
        """See to all that failed, oldest first."""
        with self._lock:
            is_new = self.poller.fatal
            if is_new:
                self.poller.renew()
                self._produce = self.poller.producer.produce
            elif self._fallback is not None and any(_may_pass(each.error) for each in self._failures):
                # What waits behind them joins them, so that it stays behind them.
                self._is_spooling = self._exceptional = True
                self.poller.purge(in_flight=False)
            failures = [self._failures.popleft() for _ in range(len(self._failures))]
            for each in sorted(failures, key=lambda each: each.receipt.sequence):
                self._compensate(each, is_new)

    def _compensate(self, failed: Failed, is_new: bool) -> None:
        """Send it again, keep it, or say that it failed. Under the lock."""
        receipt, error, value, key = failed
        try:
            if self._fallback is not None and _may_pass(error):
                self._fallback.keep(receipt, value, key, self.poller)
            elif is_new and self._may_repeat and self._stopped is None:
                self._send_again(receipt, value, key)
            else:
                fail(receipt, _failure(receipt, error), self.poller)
        except (SpoolError, KafkaException, BufferError) as problem:
            fail(receipt, DeliveryFailed(f"{_failure(receipt, error)}; then: {problem}"), self.poller)

    def _send_again(self, receipt: DirectReceipt, value: bytes | None, key: bytes | None) -> None:
        lane = receipt.stream
        identity: ProducedHeaders = [lane.made_by, (SEQUENCE_HEADER, sequence_header(receipt.sequence))]
        self._produce(
            lane.topic,
            value,
            key,
            lane.partition,
            receipt,
            None,
            receipt.timestamp_ms or 0,
            [*identity, *(receipt.headers or ())],
        )

    def _drained(self, records: list[Spooled]) -> None:
        """Some of the spool is in the cluster; when all is, records go directly again."""
        self._promised.note(records)
        # A sender may hold the lock while it waits for room in the spool, which only draining makes.
        if self._lock.acquire(blocking=False):
            try:
                if self._fallback is not None and not self._fallback.drain.left and self._stopped is None:
                    self._is_spooling = self._exceptional = False
            finally:
                self._lock.release()

    # ------------------------------------------------------------------------------------------ seals

    def _seal(self) -> None:
        self._note_all_acked()
        self._promised.seal(self._sealer.write)

    def _note_all_acked(self) -> None:
        with self.poller.polling:  # lanes are changed by whoever polls
            for lane in list(self._lanes.values()):
                self.note_acked(lane)


class _Fallback:
    """The spool, the thread that drains it, and who is told."""

    def __init__(self, spool: Spool, drain: Drain, settling: DrainSettling) -> None:
        self.spool = spool
        self.drain = drain
        self.settling = settling

    def store(self, lane: Lane, record: Spooled, on_delivery: OnDelivery | None) -> Receipt:
        """Put a record into the spool under its own identity."""
        _, incarnation, topic, partition, sequence, timestamp_ms, key, value, headers = record
        return self.settling.receipt(
            lane,
            lambda: self.spool.append(
                topic,
                partition,
                value,
                key,
                headers,
                timestamp_ms,
                incarnation=incarnation,
                sequence=sequence,
            ),
            on_delivery,
        )

    def keep(self, receipt: DirectReceipt, value: bytes | None, key: bytes | None, poller: Poller) -> None:
        """Put a record that failed into the spool; its receipt is settled when it was sent from there."""
        lane = receipt.stream

        def pass_on(error: GaplessError | None, _stored: Receipt) -> None:
            receipt.settle(error)
            if receipt.on_delivery is not None:
                receipt.on_delivery(error, receipt)

        stream, headers = (lane.incarnation, lane.topic, lane.partition), receipt.headers or ()
        record = Spooled(0, *stream, receipt.sequence, receipt.timestamp_ms, key, value, headers)
        self.store(lane, record, pass_on)

    def close(self) -> int:
        """How many are left; those who wait for them are told where they are."""
        left = self.drain.left
        try:
            self.spool.close()
        finally:
            self.settling.end(
                LeftInSpool("the producer was closed before the record was sent: it is in the spool")
            )
        return left


def _may_pass(error: KafkaError) -> bool:
    return error.code() not in _FOR_EVER


def _failure(receipt: Receipt, error: KafkaError) -> DeliveryFailed:
    doubt = "" if error.code() in _NEVER_SENT else "; it may have arrived all the same"
    where = f"{receipt.topic}-{receipt.partition} #{receipt.sequence}"
    return DeliveryFailed(f"{where} was not acknowledged: {error.str()}{doubt}")
