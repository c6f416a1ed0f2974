"""One transactional producer, for one slot: everything or nothing of what it is given arrives.

Its errors say what is known. `RowRefused`: no repetition helps. `TransactionLost`: nothing was written.
`Fenced`: another producer has come after this one, or the transaction took too long. `InDoubt`: the commit
was not answered, so only the marker can tell. After any of them the sender is of no more use.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from gapless.client.formats import LEDGER_TOPIC, POSITION_PARTITION
from gapless.errors import GaplessError, Unreachable, UsageError
from gapless.pipeline.sinks.kafka.clients import Target
from gapless.pipeline.sinks.kafka.markers import PATIENCE_S, Marker, Register
from gapless.pipeline.sinks.kafka.rows import Record, records
from gapless.pipeline.tasks import RowRefused

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_SLICE_S = 1.0
_ABORT_S = 5.0
_FULL_QUEUE_S = 0.01
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
_FENCED = (
    KafkaError._FENCED,
    KafkaError._FATAL,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
)
# What is wrong with a record, or with where it is to go, and stays wrong.
_FINAL = (
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._INVALID_ARG,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_RECORD,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.POLICY_VIOLATION,
)


class TransactionLost(GaplessError):
    """Nothing of the transaction was written. It may be tried again."""


class Fenced(TransactionLost):
    """The producer has been replaced, or was too slow."""


class InDoubt(GaplessError):
    """Nobody answered whether the transaction is committed."""


class Sender:
    """`init`, then `send`, `mark` and `commit`, any number of times."""

    def __init__(self, target: Target, name: str) -> None:
        self.instance = os.urandom(8).hex()
        self._name = name
        self._timeout_s = target.transaction_timeout_ms / 1000
        self._limit_ms = target.transaction_timeout_ms
        self._bootstrap = target.bootstrap
        self._cause: KafkaError | None = None
        self._where = ""
        self._producer: Producer = target.producer(name, self._note_failed)

    def init(self) -> None:
        """Fence all earlier senders of this name; return when their transactions are decided."""
        try:
            self._insist(self._producer.init_transactions, PATIENCE_S)
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            if reason.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
                raise UsageError(
                    f"transaction_timeout_ms is {self._limit_ms}, which is more than the output cluster "
                    "allows (its transaction.max.timeout.ms): set less"
                ) from error
            if reason.code() in (
                KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            ):
                raise UsageError(
                    f"the user may not write under the transactional id {self._name} ({reason.str()}): "
                    "allow all ids with the prefix gapless.pipeline."
                ) from error
            raise Unreachable(
                f"the output cluster at {self._bootstrap} gives {self._name} no transaction: {reason.str()}"
            ) from error

    def begin(self) -> None:
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            raise self._lost(error) from error

    def send(self, batches: Iterable[RecordBatch], topic: str | None) -> int:
        """Hand all rows to librdkafka, which sends them meanwhile. How many they were."""
        produce, count = self._producer.produce, 0
        try:
            for batch in batches:
                for record in records(batch, topic):
                    name, value, key, partition, timestamp_ms, headers = record
                    try:
                        produce(name, value, key, partition, None, None, timestamp_ms, headers)
                    except BufferError:
                        self._produce_slowly(record)
                    except KafkaException as error:
                        self._note(error.args[0], str(name), partition)
                        raise self._lost(error) from error
                    except (TypeError, ValueError) as error:
                        raise RowRefused(
                            f"a row is no Kafka record (topic {name!r}, partition {partition}): {error}"
                        ) from error
                count += batch.num_rows
                self._poll(0)
                if self._cause is not None:
                    raise self._lost(KafkaException(self._cause))
            return count
        finally:
            del produce  # the traceback of an error would keep the client open after `discard`

    def mark(self, register: Register, marker: Marker) -> None:
        """Move the marker, in the transaction that is open."""
        offset = TopicPartition(LEDGER_TOPIC, POSITION_PARTITION, marker.position, marker.metadata)
        try:
            self._insist(
                lambda timeout_s: self._producer.send_offsets_to_transaction(
                    [offset], register.group, timeout_s
                ),
                self._timeout_s,
            )
        except KafkaException as error:
            raise self._lost(error) from error

    def commit(self) -> None:
        try:
            self._insist(self._producer.commit_transaction, self._timeout_s + PATIENCE_S)
        except KafkaException as error:
            lost = self._lost(error)
            reason: KafkaError = error.args[0]
            if isinstance(lost, Fenced | RowRefused) or reason.txn_requires_abort():
                raise lost from error
            raise InDoubt(f"{self._name}: nobody knows whether it is committed: {reason.str()}") from error

    def abort(self) -> None:
        """Undo what is open as soon as can be, for those who read behind it. The end of the sender."""
        with suppress(KafkaException):  # then the next sender's `init` does it, or the timeout
            self._producer.abort_transaction(_ABORT_S)
        self.discard()

    def discard(self) -> None:
        """Forget everything; nothing is waited for."""
        self._producer.purge(blocking=False)
        self._poll(0)
        del self._producer  # it holds us by its callback: now it goes at once, with its threads

    def _insist(self, call: Callable[[float], object], patience_s: float) -> None:
        """Call again for as long as librdkafka says that it may be."""
        give_up_at = time.monotonic() + patience_s
        try:
            while True:
                try:
                    call(_SLICE_S)
                    return
                except KafkaException as error:
                    if not error.args[0].retriable() or time.monotonic() >= give_up_at:
                        self._poll(0)
                        raise
                self._poll(0)
        finally:
            del call  # a method of the client: the traceback of an error would keep the client open

    def _poll(self, seconds: float) -> None:
        """Let failed records be noted. A fatal error, which may be raised here, is told by the next call."""
        with suppress(KafkaException):
            self._producer.poll(seconds)

    def _produce_slowly(self, record: Record) -> None:
        """The queue is full: records leave it while we wait."""
        topic, value, key, partition, timestamp_ms, headers = record
        give_up_at = time.monotonic() + self._timeout_s
        while time.monotonic() < give_up_at:
            self._poll(_FULL_QUEUE_S)
            if self._cause is not None:
                raise self._lost(KafkaException(self._cause))
            try:
                self._producer.produce(topic, value, key, partition, None, None, timestamp_ms, headers)
                return
            except BufferError:
                continue
        raise TransactionLost(f"{self._name}: the cluster takes no records for {self._timeout_s:g} s")

    def _note_failed(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and error.code() not in _PURGED:
            self._note(error, message.topic() or "", message.partition())

    def _note(self, error: KafkaError, topic: str, partition: int | None) -> None:
        """The first failure of a record is the cause; later ones only follow from it."""
        if self._cause is None:
            self._cause = error
            self._where = topic if partition is None or partition < 0 else f"{topic}-{partition}"

    def _lost(self, error: KafkaException) -> TransactionLost | RowRefused:
        reason: KafkaError = self._cause or error.args[0]
        if self._cause is not None and self._cause.code() in _FINAL:
            return RowRefused(f"{self._where} does not take a record: {reason.str()}")
        kind = Fenced if {reason.code(), error.args[0].code()} & set(_FENCED) else TransactionLost
        return kind(f"{self._name}: {reason.str()}")
