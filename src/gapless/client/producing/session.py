"""One transactional producer of librdkafka, from `init_transactions` to its end.

Whatever goes wrong in a transaction ends the session. An error while committing may mean that the commit has
happened; "fenced" may mean that another producer has taken over, or just that the transaction took too long.
A new session fences this one, which decides all that was open, and then reads what is true.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from gapless.client.formats import (
    LEDGER_TOPIC,
    SEQUENCE_HEADER,
    SOURCE_HEADER,
    Seal,
    sequence_header,
    source_header,
)
from gapless.client.logs import quiet_unless_told
from gapless.client.producing.asking import refusal
from gapless.client.producing.settings import KNOWN_BROKERS_ONLY
from gapless.client.spool.records import Spooled
from gapless.errors import UsageError

SLICE_S = 1.0
"""How long a call into librdkafka may take before we look whether it is still wanted."""
_FULL_QUEUE_S = 0.01
_ANY_PARTITION = -1  # as librdkafka says it
TRANSACTION_TIMEOUT_MS = 60_000
"""librdkafka's default of transaction.timeout.ms. A record is tried for as long, then anew."""
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
_DELIVERY_TIMEOUTS = ("delivery.timeout.ms", "message.timeout.ms")


Headers = list[tuple[str, str | bytes | None]]


class Ended(Exception):
    """The producer is being closed; what was under way is decided by the next session."""


class Session:
    """Begin, produce, commit; any KafkaException means: discard it and open another."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        source: str,
        *,
        wanted: Callable[[], bool],
        patience_s: float,
        transactional_id: str | None = None,
    ) -> None:
        self._source = source
        self._wanted = wanted
        self._patience_s = patience_s
        self._made_by: dict[bytes, tuple[str, bytes]] = {}
        self._cause: KafkaError | None = None
        self._producer = _new_producer(properties, transactional_id or source, self._note_failed)

    def init(self) -> None:
        """Fence every earlier session of this source; return when all its transactions are decided."""
        self._insist(lambda timeout: self._producer.init_transactions(timeout))  # noqa: PLW0108  # see there

    def begin(self) -> None:
        if not self._wanted():
            raise Ended
        self._producer.begin_transaction()

    def produce(self, records: Sequence[Spooled]) -> None:
        """Hand records to librdkafka, with their identities. This loop is what bounds the throughput."""
        produce, sequence_of = self._producer.produce, sequence_header
        known, source = b"", ("", b"")
        for _, incarnation, topic, partition, sequence, timestamp_ms, key, value, others in records:
            if incarnation != known:
                known, source = incarnation, self._source_of(incarnation)
            headers: Headers = [source, (SEQUENCE_HEADER, sequence_of(sequence))]
            if others:
                headers += others
            try:
                produce(topic, value, key, partition, None, None, timestamp_ms or 0, headers)
            except BufferError:
                self._produce_slowly(topic, value, key, partition, timestamp_ms or 0, headers)

    def seal(self, seals: Iterable[Seal]) -> None:
        """Write seals to the ledger, in the transaction that is open."""
        for seal in seals:
            value, key = seal.to_bytes(), seal.key()
            try:
                self._producer.produce(LEDGER_TOPIC, value, key)
            except BufferError:
                self._produce_slowly(LEDGER_TOPIC, value, key, _ANY_PARTITION, 0, [])

    def set(self, group: object, offset: TopicPartition) -> None:
        """Change a register of the ledger, in the transaction that is open."""
        self._insist(lambda timeout: self._producer.send_offsets_to_transaction([offset], group, timeout))

    def commit(self) -> None:
        self._insist(lambda timeout: self._producer.commit_transaction(timeout))  # noqa: PLW0108  # see there

    def discard(self) -> None:
        """Forget everything that is under way; nothing is waited for. The session is of no use afterwards."""
        self._producer.purge(blocking=False)
        self._poll(0)
        del self._producer  # it holds us by its callback: now it goes at once, with its threads

    def _insist(self, call: Callable[[float], object]) -> None:
        """Call again as long as librdkafka says that it may be, for as long as our patience lasts.

        `call` must not be a method of the producer itself: it is a variable of the frames in the traceback of
        an error, and the producer would live on, with its threads, for as long as the error does.
        """
        give_up_at = time.monotonic() + self._patience_s
        while True:
            if not self._wanted():
                raise Ended
            try:
                call(SLICE_S)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() >= give_up_at:
                    self._poll(0)
                    if self._cause is not None:  # librdkafka may only say that its state is erroneous
                        raise KafkaException(self._cause) from error
                    raise
            self._poll(0)

    def _poll(self, seconds: float) -> None:
        """Let failed records be noted. A fatal error, which may be raised here, is told by the next call."""
        with suppress(KafkaException):
            self._producer.poll(seconds)

    def _note_failed(self, error: KafkaError | None, message: Message) -> None:
        """A record was refused: the transaction cannot be committed, and this is why."""
        if error is not None and self._cause is None and error.code() not in _PURGED:
            said = refusal(message.topic() or "", message.partition() or 0, error)
            self._cause = KafkaError(error.code(), said)

    def _produce_slowly(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        timestamp_ms: int,
        headers: Headers,
    ) -> None:
        """The queue is full: records leave it while we wait."""
        while self._wanted():
            self._poll(_FULL_QUEUE_S)
            try:
                self._producer.produce(topic, value, key, partition, None, None, timestamp_ms, headers)
                return
            except BufferError:
                continue
        raise Ended

    def _source_of(self, incarnation: bytes) -> tuple[str, bytes]:
        if incarnation not in self._made_by:
            self._made_by[incarnation] = (SOURCE_HEADER, source_header(self._source, incarnation))
        return self._made_by[incarnation]


def _new_producer(
    properties: Mapping[str, Any],
    transactional_id: str,
    note_failed: Callable[[KafkaError | None, Message], None],
) -> Producer:
    given = {name: value for name, value in properties.items() if name not in _DELIVERY_TIMEOUTS}
    timeout_ms = int(given.get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS))
    try:
        return Producer(
            {
                **KNOWN_BROKERS_ONLY,
                "reconnect.backoff.max.ms": 1_000,
                "socket.timeout.ms": min(10_000, timeout_ms),
                **quiet_unless_told(given),
                "transactional.id": transactional_id,
                # Only failures are told one by one; that the others arrived is what the commit says.
                "delivery.report.only.error": True,
                "on_delivery": note_failed,
            }
        )
    except KafkaException as error:
        raise UsageError(f"no producer can be made with these properties: {error.args[0].str()}") from error
