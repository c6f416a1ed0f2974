"""From topics to topics, exactly once: consume → function → produce, with the offsets in the transaction.

    relay(
        "localhost:9092",
        group="invoices",
        topics=["orders"],
        function=lambda record: Output("invoices", make_invoice(record.value), key=record.key),
    )

The function gives nothing, one output or several. What it gave for some records, and the offsets behind
them, commit together or not at all: whoever reads `read_committed` sees each output once, whatever dies.

An open transaction is aborted and its records are done again when anything of it fails. Offsets are accepted
only from a member of the group's current generation, so a relay that was away too long (a zombie) can change
nothing. A transactional id belongs to one process: a second one with the same takes over from the first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as LibraryPartition

from gapless.client.consuming.failures import DeadLetters, ProcessingFailed, dead_letter_headers
from gapless.client.consuming.processing import check_function
from gapless.client.consuming.settings import Settings, check_number, settle
from gapless.client.consuming.signals import StopOnSignals
from gapless.client.consuming.starting import (
    check_topics,
    is_hopeless,
    is_of_rebalance,
    new_consumer,
    refused,
    subscribe,
    translate,
)
from gapless.client.giving import GivenHeaders, as_bytes, check_timestamp, header_pairs
from gapless.client.producing.limits import SizeLimit
from gapless.client.producing.settings import KNOWN_BROKERS_ONLY
from gapless.client.records import Record
from gapless.errors import GaplessError, UsageError

_log = logging.getLogger(__name__)

_POLL_S = 0.1
_TRANSACTION_TIMEOUT_S = 60.0
_ABORTED_S = 0.1
_MAX_POLL_SHARE = 3
"""The group must see us at least so often within max.poll.interval.ms."""

_FENCED = {
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
}


class Output(NamedTuple):
    """A record to be written. Without a partition, the key decides."""

    topic: str
    value: bytes | str | None
    key: bytes | str | None = None
    headers: GivenHeaders = ()
    partition: int | None = None
    timestamp_ms: int | None = None


Outputs = Output | tuple[Any, ...] | Iterable[Output | tuple[Any, ...]] | None
"""What a function may give: an Output, a tuple (topic, value, key, ...) like one, several, or None."""
Function = Callable[[Record], Outputs]


class RelayFenced(GaplessError):
    """Another process has taken over the transactional id; nothing of the open transaction will be seen."""


class RelayFailed(GaplessError):
    """A transaction failed again and again; the last reason is told."""


class _Stopped(Exception):
    """`stop` came before a record's last attempt: it is left undone."""


def relay(
    bootstrap: str, *, group: str, topics: Sequence[str] | str, function: Function, **options: Any
) -> None:
    """Run a Relay until SIGINT or SIGTERM; for `options` see there."""
    Relay(bootstrap, group=group, topics=topics, function=function, **options).run()


class Relay:
    """The same, to be stopped from another thread."""

    def __init__(
        self,
        bootstrap: str,
        *,
        group: str,
        topics: Sequence[str] | str,
        function: Function,
        transactional_id: str | None = None,
        transaction_ms: float = 100,
        transaction_records: int = 1000,
        retries: int = 3,
        backoff_ms: float = 300,
        on_failure: DeadLetters | str = "stop",
        connect_timeout_s: float = 30,
        consumer_properties: Mapping[str, Any] | None = None,
        producer_properties: Mapping[str, Any] | None = None,
    ) -> None:
        """
        :param transactional_id: each process must have its own; `<group>.relay` if there is only one
        :param transaction_ms: about how long a transaction takes records, of at most `transaction_records`
        :param retries: of the function, with `backoff_ms` that doubles; then `on_failure`: "stop", or
            DeadLetters(topic), written in the same transaction. Transactions are tried as often, too.
        """
        check_function(function, "function")
        check_number("transaction_records", transaction_records, least=1, whole=True)
        check_number("transaction_ms", transaction_ms)
        self._settings = _settle(
            bootstrap,
            group=group,
            topics=topics,
            retries=retries,
            backoff_ms=backoff_ms,
            on_failure=on_failure,
            connect_timeout_s=connect_timeout_s,
            properties=consumer_properties,
        )
        self._function = function
        self._transactional_id = transactional_id or f"{group}.relay"
        self._producer_properties = _producer_properties(
            self._settings, self._transactional_id, producer_properties or {}
        )
        self._size_limit = SizeLimit(self._producer_properties, source=None)
        self._transaction_s = transaction_ms / 1000
        self._transaction_records = transaction_records
        self._stopping = threading.Event()
        self._pending: deque[Record] = deque()
        """Fetched, of partitions that are ours, and in no committed transaction."""
        self._refusals: list[KafkaError] = []
        self._aborts = 0
        self._late = False
        self._last_poll = 0.0
        self._last_error: KafkaError | None = None
        self.relayed = 0
        """Records whose outputs are committed."""

    def stop(self) -> None:
        """End `run` after the transaction that is open; from any thread."""
        self._stopping.set()

    def run(self) -> None:
        """Relay until `stop`, SIGINT or SIGTERM. Raises GaplessErrors that say why it cannot go on."""
        with StopOnSignals(self.stop):
            consumer = new_consumer({**self._settings.properties, "error_cb": self._on_error})
            try:
                check_topics(consumer, self._settings.topics, self._settings, lambda: self._last_error)
                producer = self._new_producer()
                producer.init_transactions(_TRANSACTION_TIMEOUT_S)
                subscribe(consumer, self._settings.topics, on_revoke=self._not_ours, on_lost=self._not_ours)
                while not self._stopping.is_set():
                    self._turn(consumer, producer)
            except KafkaException as error:
                raise self._explain(error) from error
            finally:
                consumer.close()

    def _new_producer(self) -> Producer:
        try:
            return Producer({**self._producer_properties, "error_cb": self._on_error})
        except (KafkaException, TypeError, ValueError) as error:
            raise refused(error) from error

    def _on_error(self, error: KafkaError) -> None:
        """Called by librdkafka while it polls; what matters is raised by the call that it breaks."""
        self._last_error = error
        _log.info("librdkafka: %s", error)

    def _turn(self, consumer: Consumer, producer: Producer) -> None:
        self._fetch(consumer)
        if not self._pending:
            return
        taken: list[Record] = []
        try:
            producer.begin_transaction()
            failed = self._fill(producer, taken)
            if taken:
                producer.send_offsets_to_transaction(
                    _offsets_behind(taken), consumer.consumer_group_metadata(), _TRANSACTION_TIMEOUT_S
                )
            _commit(producer)
        except KafkaException as error:
            self._abort(producer, taken, error)
            return
        except BaseException:
            # The user interrupts: nobody may see half of it.
            _abort(producer)
            raise
        self._aborts, self._late = 0, False
        self.relayed += len(taken)
        if failed is not None:
            raise failed

    # Reading

    def _fetch(self, consumer: Consumer) -> None:
        """Serve the group, and take what is there; wait only if there is nothing to do."""
        now = time.monotonic()
        if (
            self._pending
            and now - self._last_poll < self._settings.max_poll_s / _MAX_POLL_SHARE
            and not self._aborts
        ):
            return
        self._last_poll = now
        room = 1 if self._pending else self._transaction_records
        messages = consumer.consume(room, 0)
        if not messages and not self._pending:
            message = consumer.poll(_POLL_S)
            messages = [message] if message is not None else []
        for message in messages:
            problem = message.error()
            if problem is None:
                self._pending.append(Record.of(message))
            elif problem.code() == KafkaError._MAX_POLL_EXCEEDED and not self._late:
                # Once may be a machine that slept. Again, before anything is done: it would go on for ever.
                self._late = True
            elif is_hopeless(problem) or problem.code() == KafkaError._MAX_POLL_EXCEEDED:
                raise KafkaException(problem)

    def _not_ours(self, _consumer: Consumer, partitions: list[LibraryPartition]) -> None:
        """Called by librdkafka while it polls: between two transactions, never within one."""
        gone = {(each.topic, each.partition) for each in partitions}
        self._pending = deque(record for record in self._pending if record[:2] not in gone)

    # One transaction

    def _fill(self, producer: Producer, taken: list[Record]) -> ProcessingFailed | None:
        """Move records from pending to taken, with their outputs in the transaction.

        Up to one that fails for good, which is told, or that a stop leaves for the next relay.
        """
        self._refusals.clear()
        until = time.monotonic() + self._transaction_s
        while self._pending and len(taken) < self._transaction_records:
            try:
                outputs = self._outputs(self._pending[0])
            except ProcessingFailed as failed:
                return failed
            except _Stopped:
                break
            taken.append(self._pending.popleft())
            for output in outputs:
                self._produce(producer, output)
            if time.monotonic() >= until or self._stopping.is_set():
                break
        return None

    def _outputs(self, record: Record) -> list[Output]:
        """What the function gives; after its last failure a dead letter, or ProcessingFailed; or _Stopped."""
        attempts = 0
        while True:
            try:
                return [self._checked(output) for output in _as_outputs(self._function(record))]
            except Exception as error:  # noqa: BLE001 - the user's code may raise anything
                attempts += 1
                if attempts > self._settings.retries:
                    return [self._dead_letter(record, error, attempts)]
            pause_s = self._settings.backoff_ms / 1000 * 2 ** (attempts - 1)
            if self._stopping.wait(pause_s):
                raise _Stopped

    def _checked(self, output: Output) -> Output:
        """What could never be written is the record's failure: it must not stop the others for ever."""
        given: tuple[Any, ...] = output  # whatever the user's function has put there
        topic, given_value, given_key, given_headers, partition, timestamp_ms = given
        if not isinstance(topic, str) or "\0" in topic:
            raise UsageError(f"{topic!r} cannot name a topic: give text")
        if partition is not None and not (isinstance(partition, int) and 0 <= partition < 1 << 31):
            raise UsageError(f"a partition is a number, not {partition!r}")
        if timestamp_ms is not None:
            check_timestamp(timestamp_ms)
        value, key = as_bytes("value", given_value), as_bytes("key", given_key)
        headers = header_pairs(given_headers)
        self._size_limit.check(value, key, headers)
        return Output(topic, value, key, headers, partition, timestamp_ms)

    def _dead_letter(self, record: Record, error: Exception, attempts: int) -> Output:
        letters = self._settings.on_failure
        if letters is None:
            raise ProcessingFailed(record, error, attempts) from error
        headers = dead_letter_headers(record, error, attempts, self._settings.group)
        return Output(letters.topic, record.value, record.key, headers)

    def _produce(self, producer: Producer, output: Output) -> None:
        rest: dict[str, Any] = {}
        if output.partition is not None:
            rest["partition"] = output.partition
        if output.timestamp_ms is not None:
            rest["timestamp"] = output.timestamp_ms
        while True:
            try:
                producer.produce(
                    output.topic,
                    output.value,
                    output.key,
                    headers=[*output.headers],
                    on_delivery=self._delivered,
                    **rest,
                )
                return
            except BufferError:
                producer.poll(_POLL_S)

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._refusals.append(error)

    def _abort(self, producer: Producer, taken: list[Record], error: KafkaException) -> None:
        """Back to before the transaction: its records are the next again."""
        cause = error.args[0]
        if not isinstance(cause, KafkaError) or cause.fatal() or cause.code() in _FENCED:
            raise error
        self._aborts += 1
        why = self._refusals[0] if self._refusals else cause
        _log.warning("a transaction of %d records is aborted and done again: %s", len(taken), why)
        _abort(producer)
        self._pending.extendleft(reversed(taken))
        if self._aborts > self._settings.retries and not is_of_rebalance(cause):
            raise RelayFailed(f"a transaction failed {self._aborts} times: {why.str()}") from error
        self._stopping.wait(_ABORTED_S)

    def _explain(self, error: KafkaException) -> GaplessError:
        cause = error.args[0]
        if isinstance(cause, KafkaError) and cause.code() in _FENCED:
            return RelayFenced(
                f"transactional id {self._transactional_id!r} is fenced: another process uses it (give each "
                f"its own), or a transaction was open longer than transaction.timeout.ms: {cause.str()}"
            )
        if isinstance(cause, KafkaError) and cause.code() == KafkaError._MAX_POLL_EXCEEDED:
            return RelayFailed(
                f"the function took longer than max.poll.interval.ms for one record: {cause.str()}; raise it "
                "in consumer_properties"
            )
        return translate(error, self._settings)


def _settle(bootstrap: str, **given: Any) -> Settings:
    return settle(
        bootstrap,
        semantics="at-least-once",
        store=None,
        order=None,
        workers=1,
        parallel_by="partition",
        batch_records=1,
        batch_ms=1,
        queue_records=1,
        queue_bytes=1,
        commit_every_ms=0,
        store_timeout_s=0,
        close_timeout_s=0,
        **given,
    )


def _producer_properties(
    settings: Settings, transactional_id: str, given: Mapping[str, Any]
) -> dict[str, Any]:
    for name in ("bootstrap.servers", "transactional.id"):
        if name in given:
            raise UsageError(f"producer_properties: {name} has an argument of its own")
    if str(given.get("acks", "all")) not in ("all", "-1"):
        raise UsageError(f"acks={given['acks']} would lose what a transaction promises; leave it out")
    if str(given.get("enable.idempotence", "true")).lower() != "true":
        raise UsageError("transactions need enable.idempotence; leave it out")
    if str(settings.properties["isolation.level"]) != "read_committed":
        raise UsageError("isolation.level=read_uncommitted would relay aborted records; leave it out")
    return {
        **KNOWN_BROKERS_ONLY,
        **settings.producer_properties(),
        **given,
        "transactional.id": transactional_id,
    }


def _as_outputs(given: Outputs) -> list[Output]:
    if given is None:
        return []
    if isinstance(given, Output):
        return [given]
    if isinstance(given, tuple) and given and isinstance(given[0], str):
        return [Output(*given)]
    several: list[Output] = []
    for each in given:
        if not isinstance(each, tuple):
            raise TypeError(
                f"a relay's function gives Output(topic, value, ...), several, or None: not {each!r}"
            )
        several.append(each if isinstance(each, Output) else Output(*each))
    return several


def _offsets_behind(records: Sequence[Record]) -> list[LibraryPartition]:
    behind = {record[:2]: record.offset + 1 for record in records}
    return [LibraryPartition(topic, partition, offset) for (topic, partition), offset in behind.items()]


def _abort(producer: Producer) -> None:
    """With nothing under way any more: else the end could overtake the beginning at the coordinator."""
    producer.flush(_TRANSACTION_TIMEOUT_S)
    producer.abort_transaction(_TRANSACTION_TIMEOUT_S)


def _commit(producer: Producer) -> None:
    """Ask until the answer is known."""
    while True:
        try:
            producer.commit_transaction(_TRANSACTION_TIMEOUT_S)
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
