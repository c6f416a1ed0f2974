"""What an audit asks a cluster about a topic: where partitions begin and end, and what removes records."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gapless.errors import Unreachable, UsageError

_OF_BROKERS = {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"}
_PATIENCE_S = 30.0
_SETTLE_S = 5.0
_AGAIN_S = 0.05


class Ends(NamedTuple):
    """Of one partition: its first offset, the end of what is committed, and the end of the log."""

    earliest: int
    end: int
    high: int
    epoch: int | None = None
    """Of its leader: while it is the same, the log can only have grown."""


def may_have_lost(before: Ends, now: Ends | None) -> bool:
    """Whether a log may have been cut since: another leader may have less, and a new topic has nothing."""
    return now is None or now.end < before.end or now.epoch != before.epoch


class Cluster:
    """Asks one cluster. What it does not answer in time is `Unreachable`."""

    def __init__(self, bootstrap: str, properties: Mapping[str, Any]) -> None:
        from confluent_kafka.admin import AdminClient

        self._bootstrap = bootstrap
        self._properties = dict(properties)
        self._admin = AdminClient(self._properties)

    def has(self, topic: str) -> bool:
        return topic in self._topics()

    def ends(self, topic: str) -> dict[int, Ends]:
        """By partition. The ends are asked in an order that makes `end` never greater than `high`."""
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        if topic in _OF_BROKERS:
            raise UsageError(f"{topic} is the brokers' own topic: they write and compact it as they need it")
        known = self._topics()
        if topic not in known:
            raise UsageError(f"there is no topic {topic} at {self._bootstrap}")
        places = [TopicPartition(topic, partition) for partition in sorted(known[topic].partitions)]
        asked = (
            (OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED),
            (OffsetSpec.latest(), IsolationLevel.READ_COMMITTED),
            (OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED),
        )
        columns = []
        for spec, isolation in asked:
            answers = self._admin.list_offsets(
                dict.fromkeys(places, spec), isolation_level=isolation, request_timeout=_PATIENCE_S
            )
            columns.append({each.partition: self._result(answer) for each, answer in answers.items()})
        return {
            each: Ends(earliest.offset, end.offset, max(high.offset, end.offset), high.leader_epoch)
            for each, earliest, end, high in (
                (each, *(column[each] for column in columns)) for each in columns[0]
            )
        }

    def settled_ends(self, topic: str, patience_s: float = _SETTLE_S) -> dict[int, Ends]:
        """The ends of now, once the transactions that are open now have ended, if that is soon.

        On a topic with several exactly-once producers there is nearly always one open. `high` is what the
        log's end was when this was asked; beyond `end` if a transaction stays open.
        """
        asked = now = self.ends(topic)
        give_up_at = time.monotonic() + patience_s
        while any(now[each].end < asked[each].high for each in asked if each in now):
            if time.monotonic() > give_up_at:
                break
            time.sleep(_AGAIN_S)
            now = self.ends(topic)
        return {
            each: at._replace(high=max(asked[each].high, at.end) if each in asked else at.end)
            for each, at in now.items()
        }

    def is_compacted(self, topic: str) -> bool:
        from confluent_kafka.admin import ConfigResource, ResourceType

        resource = ConfigResource(ResourceType.TOPIC, topic)
        answer = self._admin.describe_configs([resource], request_timeout=_PATIENCE_S)[resource]
        return "compact" in str(self._result(answer)["cleanup.policy"].value)

    def committed(self, group: str, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """How far a group is: the next offset of each partition, 0 where it has none."""
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        places = [TopicPartition(topic, partition) for partition in partitions]
        # A consumer that never subscribes is no member of the group.
        asking = Consumer({**self._properties, "group.id": group, "enable.auto.commit": False})
        try:
            found = asking.committed(places, timeout=_PATIENCE_S)
        except KafkaException as error:
            raise self._unreachable(error) from None
        finally:
            asking.close()
        return {each.partition: max(each.offset, 0) for each in found}

    def _topics(self) -> dict[str, Any]:
        from confluent_kafka import KafkaException

        try:
            known = self._admin.list_topics(timeout=_PATIENCE_S).topics
        except KafkaException as error:
            raise self._unreachable(error) from None
        return {name: topic for name, topic in known.items() if topic.error is None}

    def _result(self, answer: Any) -> Any:
        from confluent_kafka import KafkaException

        try:
            return answer.result(_PATIENCE_S + 1)  # the client gives up first
        except (KafkaException, TimeoutError) as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: Exception) -> Unreachable:
        words = error.args[0].str() if error.args and hasattr(error.args[0], "str") else error
        return Unreachable(f"cannot reach a Kafka broker at {self._bootstrap}: {words}")
