"""Find a spool's lost position again: from the identities of the records that are in the topics.

A spool is sent in order, and each transaction whole. So a record of it that is found in its topic, by
a reader who sees only what is committed, proves that all before it were sent. The position is behind the last
record that is found, or that a seal in the ledger promises, or that the spool itself remembers as sent.
(A record of another incarnation, which fell back to the spool, proves nothing: it may have been sent before.)

What cannot be found is sent again. That is right unless a topic has lost its newest records since (they
expired, or the topic was deleted): then readers who had them before get them a second time.

    with Spool("./spool", "orders-api") as spool:
        recover(spool, "orders-api", {"bootstrap.servers": "localhost:9092"})
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from gapless.client.formats import LEDGER_TOPIC, Seal, UnreadableSeal, identity_of, position_group
from gapless.client.logs import quiet_unless_told
from gapless.client.producing.ledger import Ledger, connection_properties, register
from gapless.client.producing.ownership import (
    NO_FINGERPRINT,
    Position,
    fingerprint,
    new_instance,
    record_before,
    restored,
)
from gapless.client.producing.session import Session
from gapless.client.records import Headers
from gapless.client.spool import Spool
from gapless.errors import GaplessError, Unreachable

StreamKey = tuple[bytes, str, int]
FIRST_WINDOW = 10_000
"""How many of a partition's newest offsets are looked at first; then four times as many, and so on."""
READ_RECORDS = 2_000
_POLL_S = 0.5


class Recovered(NamedTuple):
    """What was found out."""

    position: int
    was: int | None
    """What the cluster had: None for nothing."""
    found: int
    """The position that the topics and seals prove, whatever the spool remembers."""
    unsent: int


def recover(
    spool: Spool, source: str, properties: Mapping[str, Any], *, timeout_s: float = 600.0
) -> Recovered:
    """Commit the position that the topics tell, so that a producer can go on from there.

    Nobody else may send for the source meanwhile: whoever does is fenced. Raises SpoolRestored if the topics
    have records of this spool that it does not have itself.
    """
    give_up_at = time.monotonic() + timeout_s
    ledger = Ledger(properties)
    ledger.ensure_topic()
    session = Session(properties, source, wanted=lambda: time.monotonic() < give_up_at, patience_s=timeout_s)
    try:
        session.init()  # nothing of ours is undecided from here on
        group = position_group(source, spool.incarnation)
        was = ledger.read(group)
        lasts = _last_in_topics(spool, source, properties, give_up_at)
        for stream, last in last_in_seals(spool, source, properties, give_up_at).items():
            lasts[stream] = max(last, lasts.get(stream, -1))
        refuse_old_copy(spool, source, lasts, spool.stored)
        found = _position_behind(spool, lasts)
        position = max(found, spool.sent)
        session.begin()
        mark = Position(position, new_instance(), _fingerprint_before(spool, position))
        session.set(ledger.group(group), register(position, mark.metadata))
        session.commit()
    except KafkaException as error:
        raise Unreachable(
            f"the position of {source!r} could not be recovered: {error.args[0].str()}"
        ) from error
    finally:
        session.discard()
        ledger.rest()
    spool.note_claimed()
    spool.note_sent(position)
    return Recovered(position, None if was is None else was.offset, found, spool.stored - position)


def _position_behind(spool: Spool, lasts: Mapping[StreamKey, int]) -> int:
    """The position behind the newest record of the spool that is among those found."""
    position, at = spool.sent, spool.sent
    while records := spool.read(at, READ_RECORDS):
        for record in records:
            stream = (record.incarnation, record.topic, record.partition)
            if record.sequence <= lasts.get(stream, -1):
                position = record.position + 1
        at = records[-1].position + 1
    return position


def refuse_old_copy(spool: Spool, source: str, lasts: Mapping[StreamKey, int], stored: int) -> None:
    """Raises SpoolRestored if more was found than the folder had when that much was stored."""
    following = spool.sequences_at(stored)
    for stream, last in lasts.items():
        if stream[0] == spool.incarnation and last >= following.get(stream, 0):
            where = f"{stream[1]}-{stream[2]}"
            raise restored(
                source, f"{where} has its record {last}, the folder only {following.get(stream, 0)}"
            )


def _fingerprint_before(spool: Spool, position: int) -> str:
    last = record_before(spool, position)
    return NO_FINGERPRINT if last is None else fingerprint(last)


# --------------------------------------------------------------------------------------- what topics tell


def _last_in_topics(
    spool: Spool, source: str, properties: Mapping[str, Any], give_up_at: float
) -> dict[StreamKey, int]:
    """The newest sequence of each stream that its partition has."""
    reader = _reader(properties, source)
    lasts: dict[StreamKey, int] = {}
    try:
        for stream in sorted(spool.sequences_at(spool.stored)):
            if stream[0] == spool.incarnation:
                lasts[stream] = _last_in_partition(reader, stream, source, give_up_at)
    finally:
        reader.close()
    return lasts


def _last_in_partition(reader: Consumer, stream: StreamKey, source: str, give_up_at: float) -> int:
    """Look back from the end, farther and farther, until a record is found or all is read; -1 if none is."""
    incarnation, topic, partition = stream
    try:
        low, high = reader.get_watermark_offsets(TopicPartition(topic, partition), timeout=30.0)
    except KafkaException as error:
        if error.args[0].code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION):
            return -1  # with the topic went its records
        raise
    window, end = FIRST_WINDOW, high
    last = -1
    while end > low and last < 0:
        start = max(low, end - window)
        for message in _messages(reader, topic, partition, start, end, give_up_at):
            identity = identity_of(_headers(message))
            if identity and (identity.source, identity.incarnation) == (source, incarnation):
                last = max(last, identity.sequence)
        window, end = window * 4, start
    return last


def last_in_seals(
    spool: Spool, source: str, properties: Mapping[str, Any], give_up_at: float
) -> dict[StreamKey, int]:
    """The newest sequence of each stream that seals promise, as far as there are any."""
    reader = _reader(properties, source)
    lasts: dict[StreamKey, int] = {}
    try:
        partitions = reader.list_topics(LEDGER_TOPIC, timeout=30.0).topics[LEDGER_TOPIC].partitions
        for partition in sorted(partitions):
            low, high = reader.get_watermark_offsets(TopicPartition(LEDGER_TOPIC, partition), timeout=30.0)
            for message in _messages(reader, LEDGER_TOPIC, partition, low, high, give_up_at):
                _note_seal(message.value(), source, spool.incarnation, lasts)
    finally:
        reader.close()
    return lasts


def _note_seal(value: bytes | None, source: str, incarnation: bytes, lasts: dict[StreamKey, int]) -> None:
    try:
        seal = Seal.from_bytes(value or b"")
    except UnreadableSeal:
        return  # of a later version, or not ours: it proves nothing to us
    if (seal.source, seal.incarnation) == (source, incarnation):
        for topic, partition, _, last in seal.intervals:
            stream = (incarnation, topic, partition)
            lasts[stream] = max(last, lasts.get(stream, -1))


def _reader(properties: Mapping[str, Any], source: str) -> Consumer:
    return Consumer(
        {
            **quiet_unless_told(connection_properties(properties)),
            "group.id": f"gapless.recover.{source}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )


def _messages(
    reader: Consumer, topic: str, partition: int, start: int, end: int, give_up_at: float
) -> Iterator[Message]:
    """What is committed from `start` to `end` (excluded) of a partition."""
    reader.assign([TopicPartition(topic, partition, start)])
    try:
        while True:
            for message in reader.consume(READ_RECORDS, _POLL_S):
                problem, is_before_end = message.error(), (message.offset() or 0) < end
                if problem is None and is_before_end:
                    yield message
                elif problem is None or problem.code() == KafkaError._PARTITION_EOF:
                    if not is_before_end:  # else a new leader does not know yet how much is committed
                        return
                elif not problem.retriable():
                    raise KafkaException(problem)
            if reader.position([TopicPartition(topic, partition)])[0].offset >= end:
                return
            if time.monotonic() > give_up_at:
                raise GaplessError(f"{topic}-{partition} could not be read to its end in time: try again")
    finally:
        reader.unassign()


def _headers(message: Message) -> Headers:
    headers: Any = message.headers()
    return headers or ()
