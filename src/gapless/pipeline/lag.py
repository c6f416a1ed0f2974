"""A consumer group that shows how far a pipeline is, for every Kafka tool, on the cluster that it reads from.

    group = SourceGroup(properties.for_librdkafka(bootstrap), "gapless.pipeline.orders", ["orders"])
    group.commit({TopicPartition("orders", 0): 17})
    group.lag()          # {TopicPartition("orders", 0): 3}

It is for showing only: the checkpoint decides where a pipeline goes on. So no failure here stops anything; it
is told to the logger `gapless.pipeline`, once for as long as it stays the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from gapless.pipeline.progress import TopicPartition

_logger = logging.getLogger("gapless.pipeline")
_PATIENCE_S = 10.0


class Edges(NamedTuple):
    """The offsets of a partition that can be read: from `earliest`, before `end`."""

    earliest: int
    end: int


class SourceGroup:
    """The group of one pipeline. Nobody is a member of it."""

    def __init__(self, properties: Mapping[str, Any], group: str, topics: Sequence[str]) -> None:
        from confluent_kafka.admin import AdminClient

        self._admin = AdminClient(dict(properties))
        self._group = group
        self._topics = list(topics)
        self._next: dict[TopicPartition, int] = {}
        self._warned = ""

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Let the group be at these offsets, each the next one to be read."""
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
        from confluent_kafka import TopicPartition as At

        self._next.update(offsets)
        if not offsets:
            return
        places = [At(where.topic, where.partition, offset) for where, offset in offsets.items()]
        request = ConsumerGroupTopicPartitions(self._group, places)
        try:
            [answer] = self._admin.alter_consumer_group_offsets(
                [request], request_timeout=_PATIENCE_S
            ).values()
            done = _result(answer)
        except (KafkaException, TimeoutError) as error:
            self._warn(f"the group {self._group} does not show the pipeline's progress: {_words(error)}")
            return
        failed = [each for each in done.topic_partitions if each.error is not None]
        if failed:
            self._warn(f"the group {self._group} does not show the pipeline's progress: {failed[0].error}")
        else:
            self._warned = ""

    def lag(self) -> dict[TopicPartition, int]:
        """Records between what was committed and the end, by partition; nothing where nobody answers.

        Partitions that were never committed count from their first record. Offsets that hold no records
        (markers of transactions, what compaction removed) count as records, as in every tool.
        """
        found = self.edges()
        return {
            where: max(0, edges.end - max(self._next.get(where, 0), edges.earliest))
            for where, edges in found.items()
        }

    def edges(self) -> dict[TopicPartition, Edges]:
        """The offsets that there are in each partition of the topics; nothing where nobody answers."""
        from confluent_kafka import KafkaException

        try:
            return edges_of(self._admin, self._topics)
        except (KafkaException, TimeoutError) as error:
            self._warn(f"the end of {', '.join(self._topics)} is not known: {_words(error)}")
            return {}

    def _warn(self, message: str) -> None:
        if message != self._warned:
            self._warned = message
            _logger.warning(message)


def edges_of(admin: Any, topics: Iterable[str]) -> dict[TopicPartition, Edges]:
    """The offsets of every partition of topics, those that exist. `end` is that of committed records."""
    from confluent_kafka import IsolationLevel
    from confluent_kafka import TopicPartition as At
    from confluent_kafka.admin import OffsetSpec

    known = admin.list_topics(timeout=_PATIENCE_S).topics
    places = [
        At(topic, partition)
        for topic in topics
        if topic in known and known[topic].error is None
        for partition in sorted(known[topic].partitions)
    ]
    if not places:
        return {}
    options = {"isolation_level": IsolationLevel.READ_COMMITTED, "request_timeout": _PATIENCE_S}
    asked = [
        admin.list_offsets(dict.fromkeys(places, spec), **options)
        for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
    ]
    starts, ends = (
        {(at.topic, at.partition): _result(answer).offset for at, answer in answers.items()}
        for answers in asked
    )
    return {TopicPartition(*place): Edges(starts[place], ends[place]) for place in starts}


def _result(answer: Future[Any]) -> Any:
    return answer.result(_PATIENCE_S + 1)  # the client gives up first


def _words(error: BaseException) -> str:
    return (
        str(error.args[0].str())
        if error.args and hasattr(error.args[0], "str")
        else str(error) or "no answer"
    )
