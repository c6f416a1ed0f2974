"""Sends what is in a spool, in its order, for as long as it takes.

Used where the spool is there to fall back on, and where all records go through it without transactions. What
was acknowledged is noted locally, chunk by chunk. A crash may therefore repeat some of one chunk: with the
same identities, in the same partitions.

A record that the cluster refuses is tried again and again, with the reason in `problem`; those behind it
wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from gapless.client.formats import SEQUENCE_HEADER, SOURCE_HEADER, sequence_header, source_header
from gapless.client.producing.asking import refusal
from gapless.client.producing.guarding import Guard
from gapless.client.producing.polling import Poller, ProducedHeaders
from gapless.client.producing.settling import Settling, SpooledReceipt
from gapless.client.spool import Spool, Spooled, SpoolRestored
from gapless.errors import GaplessError

CHUNK_RECORDS = 5_000
CHUNK_BYTES = 4 << 20
_LOOK_S = 0.2
_SERVE_S = 0.05
_ROOM_S = 0.001
_END_S = 0.5

_logger = logging.getLogger("gapless.client")


class DrainSettling(Settling):
    """Receipts of records in the spool. Callbacks run on the poller's thread, as all others do."""

    def __init__(self, spool: Spool, poller: Poller) -> None:
        super().__init__(spool)
        self._poller = poller
        self.committed = spool.sent

    def refuse_in_callback(self, what: str) -> None:
        self._poller.refuse_in_callback(what)

    def _call(self, receipt: SpooledReceipt) -> None:
        self._poller.settled(receipt)
        self._poller.run_late_callbacks()


class _Attempt:
    """Some records on their way."""

    def __init__(self, count: int) -> None:
        self._open = count
        self.ended = threading.Event()
        self.failed: list[Spooled] = []
        self.why = "refused"

    def count(self, record: Spooled, error: KafkaError | None, _message: Message | None = None) -> None:
        """What became of a record. Only one thread at a time is here."""
        if error is not None:
            self.why = refusal(record.topic, record.partition, error)
            self.failed.append(record)
        self._open -= 1
        if not self._open:
            self.ended.set()


class Drain:
    """A thread that drains a spool. `on_sent` is called on it after each chunk.

    If the guard refuses the folder, `on_refused` is called, and that is the end; without it, all waits.
    """

    def __init__(
        self,
        spool: Spool,
        source: str,
        poller: Poller,
        backoff_s: float,
        settling: Settling,
        on_sent: Callable[[list[Spooled]], None],
        guard: Guard | None = None,
        on_refused: Callable[[SpoolRestored], None] | None = None,
    ) -> None:
        self.position = spool.sent
        """All below is in the cluster."""
        self.problem: str | None = None
        self._spool = spool
        self._source = source
        self._poller = poller
        self._backoff_s = backoff_s
        self._settling = settling
        self._on_sent = on_sent
        self._guard = guard
        self._on_refused = on_refused
        self._has_begun = threading.Event()
        self._made_by: dict[bytes, tuple[str, bytes]] = {}
        self._moved = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"gapless-drain-{source}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait_begun(self, timeout_s: float) -> None:
        """Until it is known whether the folder may be sent, or that this takes longer."""
        self._has_begun.wait(timeout_s)

    def stop(self) -> None:
        """Leave the rest in the spool."""
        self._stopping.set()
        if self._guard is not None:
            self._guard.end()
        give_up_at = time.monotonic() + _END_S
        while self._thread.is_alive():
            self._thread.join(_SERVE_S)
            is_asking = self._guard is not None and self._guard.is_asking
            if is_asking and time.monotonic() > give_up_at:
                break  # it sends nothing any more, whatever the answer will be

    @property
    def left(self) -> int:
        """Records in the spool that are not known to be sent."""
        return max(self._spool.end - self.position, 0)

    def wait_for(self, position: int, timeout_s: float | None) -> int:
        """Wait until all below the position is in the cluster; how many records are not when time is up."""
        give_up_at = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        with self._moved:
            # The spool ends before the position when the disk has refused some: those have failed.
            while self.position < (position := min(position, self._spool.end)) and self._thread.is_alive():
                left_s = give_up_at - time.monotonic()
                if left_s <= 0:
                    break
                self._moved.wait(min(left_s, _LOOK_S))
        return max(position - self.position, 0)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._go_on()
            except SpoolRestored as error:
                self._complain(str(error))
                self._refuse(error)
            # A disk that cannot be read may be well again, and a cluster that is away come back.
            except (GaplessError, OSError) as error:
                self._complain(str(error))
                self._stopping.wait(self._backoff_s)
            self._has_begun.set()
        if self._guard is not None:
            self._guard.rest()

    def _go_on(self) -> None:
        if self._guard is not None:
            self._guard.check()
            self._has_begun.set()
        if self._spool.wait_for(self.position, _LOOK_S):
            self._send_chunk()
        self._settling.tell_refused()
        self._settling.tell_sent()

    def _refuse(self, error: SpoolRestored) -> None:
        if self._on_refused is None:
            self._stopping.wait(_LOOK_S)
        else:
            self._stopping.set()
            self._on_refused(error)

    def _send_chunk(self) -> None:
        records = self._spool.read(self.position, CHUNK_RECORDS, CHUNK_BYTES)
        if not records:
            return
        if self._guard is not None:
            self._guard.cover(records[-1].position + 1)
        to_send = records
        while to_send:
            if self._stopping.is_set():
                return
            attempt = self._attempt(to_send)
            if attempt is None:
                return
            to_send = sorted(attempt.failed)  # by position, which comes first
            if to_send:
                self._complain(attempt.why)
                if self._stopping.wait(self._backoff_s):
                    return
                self._poller.look_at(to_send[0].topic)
        self.problem = None
        self.position = records[-1].position + 1
        self._spool.note_sent(self.position)
        self._on_sent(records)
        self._settling.advance(self.position)
        with self._moved:
            self._moved.notify_all()

    def _attempt(self, records: list[Spooled]) -> _Attempt | None:
        """Send them all and wait for every report; None if it was stopped before that."""
        attempt = _Attempt(len(records))
        producer = self._poller.producer
        produce, count, sequence_of = producer.produce, attempt.count, sequence_header
        known, made_by = b"", ("", b"")
        for record in records:  # this loop is what bounds the throughput
            _, incarnation, topic, partition, sequence, timestamp_ms, key, value, others = record
            if incarnation != known:
                known, made_by = incarnation, self._source_of(incarnation)
            headers: ProducedHeaders = [made_by, (SEQUENCE_HEADER, sequence_of(sequence)), *others]
            report = partial(count, record)
            try:
                produce(topic, value, key, partition, report, None, timestamp_ms or 0, headers)
            except (BufferError, KafkaException):
                if not self._produce_slowly(producer, record, headers, report, attempt):
                    return None
        while not attempt.ended.wait(_SERVE_S):
            if self._stopping.is_set():
                return None
            if self._poller.producer is not producer:  # it was renewed, and may never tell of some of them
                attempt.failed = records
                return attempt
            self._settling.tell_refused()
            # Not left to the poller's own thread: that one may be waiting for room in the spool.
            self._poller.serve(0.0)
        return attempt

    def _produce_slowly(
        self,
        producer: Producer,
        record: Spooled,
        headers: ProducedHeaders,
        report: Callable[[KafkaError | None, Message], None],
        attempt: _Attempt,
    ) -> bool:
        """The queue is full, or the record is refused. Whether it is on its way, or counted as failed."""
        _, _, topic, partition, _, timestamp_ms, key, value, _ = record
        while not self._stopping.is_set():
            try:
                producer.produce(topic, value, key, partition, report, None, timestamp_ms or 0, headers)
            except BufferError:
                self._poller.serve(0.0)
                self._stopping.wait(_ROOM_S)
            except KafkaException as error:
                if error.args[0].code() == KafkaError._FATAL and self._poller.producer is producer:
                    self._poller.fatal = True
                with self._poller.polling:  # where reports are counted, only one thread may be
                    attempt.count(record, error.args[0])
                return True
            else:
                return True
        return False

    def _source_of(self, incarnation: bytes) -> tuple[str, bytes]:
        if incarnation not in self._made_by:
            self._made_by[incarnation] = (SOURCE_HEADER, source_header(self._source, incarnation))
        return self._made_by[incarnation]

    def _complain(self, problem: str) -> None:
        if problem != self.problem and not self._stopping.is_set():
            self.problem = problem
            _logger.warning("the spool of %s waits at %s: %s", self._source, self.position, problem)
