"""Whether a consumer can begin: is the cluster there, the topics, the offset? And what librdkafka means.

Each question is asked before anything is done, and its answer, where it is no, is one line for a person.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as LibraryPartition

from gapless.client.consuming.settings import Settings
from gapless.client.records import TopicPartition
from gapless.errors import GaplessError, Unreachable, UsageError

_log = logging.getLogger(__name__)
_WATERMARKS_TIMEOUT_S = 10.0

_AWAY = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE}
_REFUSED = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL}

# The cluster will not change its mind about these; about all others librdkafka tries on by itself.
_HOPELESS = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.INVALID_GROUP_ID,
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError.UNSUPPORTED_ASSIGNOR,
    KafkaError.INCONSISTENT_GROUP_PROTOCOL,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError._AUTHENTICATION,
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError._INVALID_ARG,
    KafkaError._FATAL,
}


class NotAuthorized(GaplessError):
    """The cluster knows us and does not let us."""


class OffsetsAhead(GaplessError):
    """The store is further than the log: not the log that it knew."""


def translate(error: KafkaException, settings: Settings) -> GaplessError:
    """What librdkafka says, for a person."""
    cause = error.args[0]
    if not isinstance(cause, KafkaError):
        return GaplessError(str(error))
    code, said = cause.code(), cause.str()
    if code in _AWAY:
        return Unreachable(f"no broker answers at {settings.bootstrap}: {said}")
    if code in _REFUSED:
        return Unreachable(f"{settings.bootstrap} refuses our credentials: {said}")
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return NotAuthorized(f"not allowed to read {', '.join(settings.topics)}: {said}")
    if code == KafkaError.GROUP_AUTHORIZATION_FAILED:
        return NotAuthorized(f"not allowed to be in group {settings.group!r}: {said}")
    if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return UsageError(f"a topic is not there: {said}")
    if code == KafkaError._AUTO_OFFSET_RESET:
        return GaplessError(f"the group's offset is not in the log, and auto.offset.reset is 'error': {said}")
    return GaplessError(f"the consumer cannot go on: {said}")


def refused(error: Exception) -> UsageError:
    """What librdkafka says of properties that it does not take."""
    cause = error.args[0]
    said = cause.str() if isinstance(cause, KafkaError) else str(error)
    return UsageError(f"librdkafka refuses the properties: {said.strip()}")


def new_consumer(properties: Mapping[str, Any]) -> Consumer:
    """Raises UsageError if the properties cannot be."""
    try:
        return Consumer(dict(properties))
    except (KafkaException, TypeError, ValueError) as error:
        raise refused(error) from error


def subscribe(consumer: Consumer, topics: Sequence[str], **callbacks: Callable[..., None]) -> None:
    """Raises UsageError for a pattern that is none."""
    try:
        consumer.subscribe(list(topics), **callbacks)
    except KafkaException as error:
        raise UsageError(
            f"{', '.join(topics)} cannot be subscribed to; is a pattern (^...) right?"
        ) from error


def check_partitions(
    consumer: Consumer,
    partitions: Iterable[TopicPartition],
    settings: Settings,
    last_error: Callable[[], KafkaError | None],
) -> None:
    """As check_topics, and that each topic has the partition."""
    for topic, ours in groupby(sorted(partitions), attrgetter("topic")):
        count = check_topics(consumer, [topic], settings, last_error)[topic]
        for partition in ours:
            if not 0 <= partition.partition < count:
                raise UsageError(f"{topic} has no partition {partition.partition}: it has 0 to {count - 1}")


def check_topics(
    consumer: Consumer,
    topics: Sequence[str],
    settings: Settings,
    last_error: Callable[[], KafkaError | None],
) -> dict[str, int]:
    """How many partitions each has. Raises Unreachable, NotAuthorized or UsageError.

    Patterns (`^...`) match what is there, or will be: they are left out.
    """
    counts = {}
    for topic in topics:
        if topic.startswith("^"):
            continue
        try:
            found = consumer.list_topics(topic, timeout=settings.connect_timeout_s).topics[topic]
        except KafkaException as error:
            consumer.poll(0)  # serves error_cb, which knows more than that nobody answered
            known = last_error()
            raise translate(error if known is None else KafkaException(known), settings) from error
        if found.error is None:
            counts[topic] = len(found.partitions)
            continue
        if found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise UsageError(f"topic {topic!r} is not there: create it, or correct its name")
        raise translate(KafkaException(found.error), settings)
    return counts


def check_offset(consumer: Consumer, partition: TopicPartition, start: int) -> None:
    """That the log still has what the store wants next."""
    try:
        low, high = consumer.get_watermark_offsets(
            LibraryPartition(partition.topic, partition.partition), timeout=_WATERMARKS_TIMEOUT_S
        )
    except KafkaException as error:
        _log.warning("%s: cannot compare the store's offset with the log: %s", partition, error)
        return
    if start > high:
        raise OffsetsAhead(
            f"the store has done {partition} up to offset {start}, but the log ends at {high}: was the topic "
            "deleted and made again? Use another group, or remove this one's rows from the store"
        )
    if start < low:
        _log.error("%s: offsets %d to %d were deleted before they were read", partition, start, low - 1)


def is_of_rebalance(error: object) -> bool:
    """Whether it only says that the group has moved on: the partitions will be shared out anew."""
    return isinstance(error, KafkaError) and error.code() in (
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError._ASSIGNMENT_LOST,
        KafkaError._STATE,
    )


def is_hopeless(error: KafkaError) -> bool:
    """Whether waiting will not help: somebody has to do something."""
    return bool(error.fatal()) or error.code() in _HOPELESS
