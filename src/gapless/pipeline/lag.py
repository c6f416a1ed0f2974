"""A consumer group that shows how far a pipeline is, for every Kafka tool, on the cluster that it reads from.

    group = SourceGroup(properties.for_librdkafka(bootstrap), "gapless.pipeline.orders", ["orders"])
    group.commit({TopicPartition("orders", 0): 17})
    group.lag()          # {TopicPartition("orders", 0): 3}

It is for showing only: the checkpoint decides where a pipeline goes on. So no failure here stops anything; it
is told to the logger `gapless.pipeline`, once for as long as it stays the same.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from gapless.pipeline.progress import TopicPartition

_logger = logging.getLogger("gapless.pipeline")
_PATIENCE_S = 10.0
_AGAIN_S = 0.1
_STARTING = {"NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE"}
_PROGRESS, _ENDS = "does not show the pipeline's progress", "is not known"


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
        self._warned: dict[str, str] = {}

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Let the group be at these offsets, each the next one to be read."""
        self._next.update(offsets)
        problem = self._try_to_commit(offsets) if offsets else None
        if problem is None:
            self._warned.pop(_PROGRESS, None)
        else:
            self._warn(_PROGRESS, f"the group {self._group} {_PROGRESS}: {problem}")

    def _try_to_commit(self, offsets: Mapping[TopicPartition, int]) -> str | None:
        """What went wrong, if anything. A coordinator that is just starting is given a moment."""
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
        from confluent_kafka import TopicPartition as At

        places = [At(where.topic, where.partition, offset) for where, offset in offsets.items()]
        request = ConsumerGroupTopicPartitions(self._group, places)
        deadline_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                asked = self._admin.alter_consumer_group_offsets([request], request_timeout=_PATIENCE_S)
                done = _result(asked[self._group])
            except (KafkaException, TimeoutError) as error:
                return _words(error)
            failed = [each.error for each in done.topic_partitions if each.error is not None]
            if not failed:
                return None
            if failed[0].name() not in _STARTING or time.monotonic() > deadline_s:
                return str(failed[0].str())
            time.sleep(_AGAIN_S)

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
            found = edges_of(self._admin, self._topics)
        except (KafkaException, TimeoutError) as error:
            self._warn(_ENDS, f"the end of {', '.join(self._topics)} {_ENDS}: {_words(error)}")
            return {}
        self._warned.pop(_ENDS, None)
        return found

    def _warn(self, about: str, message: str) -> None:
        if self._warned.get(about) != message:
            self._warned[about] = message
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
