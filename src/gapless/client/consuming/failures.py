"""What becomes of a record whose handler raises, after all retries: stop, or a dead-letter topic.

A dead letter is the record as it was (key, value, headers, and so its identity), with headers that tell why
it is there and where it came from:

    gapless.reason      the exception: its type and text
    gapless.attempts    how often the handler was called
    gapless.group       who gave up
    gapless.topic, gapless.partition, gapless.offset

It is written before the record counts as done. A crash between the two writes it again: who reads a
dead-letter topic tells such copies apart by the last three.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from gapless.client.records import Record, TopicPartition
from gapless.errors import GaplessError

REASON_HEADER = "gapless.reason"
ATTEMPTS_HEADER = "gapless.attempts"
GROUP_HEADER = "gapless.group"
TOPIC_HEADER = "gapless.topic"
PARTITION_HEADER = "gapless.partition"
OFFSET_HEADER = "gapless.offset"

_LONGEST_REASON = 1000
_PATIENCE_S = 60.0


class ProcessingFailed(GaplessError):
    """The handler failed for good, and the consumer stopped there."""

    def __init__(self, record: Record, cause: Exception, attempts: int) -> None:
        times = "once" if attempts == 1 else f"{attempts} times"
        super().__init__(
            f"the handler failed {times} for {record.topic}-{record.partition} offset {record.offset}: "
            f"{describe(cause)}"
        )
        self.record = record


class DeadLettersUnwritable(GaplessError):
    """A record could be neither handled nor put aside; it stays undone, and so does all after it."""


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Records that cannot be handled go to this topic, and the consumer goes on.

    `properties` are librdkafka's, for the producer that writes there; the consumer's own for security and
    sockets hold as well.
    """

    topic: str
    properties: Mapping[str, Any] = field(default_factory=dict)


def describe(cause: Exception) -> str:
    text = str(cause)
    return f"{type(cause).__name__}: {text}" if text else type(cause).__name__


def dead_letter_headers(
    record: Record, cause: Exception, attempts: int, group: str | None
) -> list[tuple[str, bytes | None]]:
    """The record's own headers, and why and whence."""
    about = {
        REASON_HEADER: describe(cause)[:_LONGEST_REASON],
        ATTEMPTS_HEADER: str(attempts),
        GROUP_HEADER: group or "",
        TOPIC_HEADER: record.topic,
        PARTITION_HEADER: str(record.partition),
        OFFSET_HEADER: str(record.offset),
    }
    kept: list[tuple[str, bytes | None]] = [
        (name, value) for name, value in record.headers if name not in about
    ]
    # An exception may quote what no UTF-8 can carry: it is written as an escape.
    return kept + [(name, value.encode(errors="backslashreplace")) for name, value in about.items()]


def origin_of(headers: Sequence[tuple[str, bytes | None]]) -> tuple[TopicPartition, int] | None:
    """The partition and offset from which a dead letter came; None for another record."""
    told = dict(headers)
    topic, partition, offset = (told.get(name) for name in (TOPIC_HEADER, PARTITION_HEADER, OFFSET_HEADER))
    if topic is None or partition is None or offset is None:
        return None
    return TopicPartition(topic.decode(), int(partition)), int(offset)


class DeadLetterWriter:
    """Writes dead letters one by one, each acknowledged by all replicas before it counts."""

    def __init__(self, letters: DeadLetters, group: str | None, properties: Mapping[str, Any]) -> None:
        self._topic = letters.topic
        self._group = group
        # One that cannot be written must be told in time, not after librdkafka's five minutes.
        self._properties = {"delivery.timeout.ms": 30_000, **properties, **letters.properties}
        self._properties |= {"acks": "all", "enable.idempotence": True}
        self._producer: Producer | None = None

    def write(self, record: Record, cause: Exception, attempts: int) -> None:
        """Returns when it is written; raises DeadLettersUnwritable."""
        refused: list[KafkaError] = []

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                refused.append(error)

        try:
            if self._producer is None:
                self._producer = Producer(self._properties)
            self._producer.produce(
                self._topic,
                record.value,
                record.key,
                headers=[*dead_letter_headers(record, cause, attempts, self._group)],
                on_delivery=delivered,
            )
            unsent = self._producer.flush(_PATIENCE_S)
        except (KafkaException, BufferError, ValueError) as error:
            raise self._unwritable(record, str(error), cause) from error
        if refused or unsent:
            why = refused[0].str() if refused else f"no answer within {_PATIENCE_S:.0f} s"
            raise self._unwritable(record, why, cause)

    def _unwritable(self, record: Record, why: str, cause: Exception) -> DeadLettersUnwritable:
        return DeadLettersUnwritable(
            f"{record.topic}-{record.partition} offset {record.offset} cannot be handled "
            f"({describe(cause)}) and the dead-letter topic {self._topic!r} cannot be written: {why}"
        )
