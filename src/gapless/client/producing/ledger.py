"""The ledger topic, and the offsets that are committed under it: where a source's state lives in the cluster.

Seals are records of the topic. Positions and owners are offsets of groups that have no members: nobody reads
the topic through them, they are small registers that a transaction can change together with records. They are
always read *stable*: while a transaction that changes one is undecided, the reader waits.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from gapless.client.formats import LEDGER_TOPIC, POSITION_PARTITION
from gapless.client.logs import quiet_unless_told
from gapless.errors import GaplessError

REQUEST_TIMEOUT_S = 10.0
_RETRY_S = 0.05
_PASSING = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
)

# What a client needs to reach a cluster; everything else is about producing, and other clients warn about it.
_CONNECTION = ("security.", "sasl.", "ssl.", "enable.ssl.", "socket.", "broker.", "client.", "reconnect.")
_CONNECTION_NAMES = frozenset(
    ("bootstrap.servers", "metadata.broker.list", "log_level", "logger", "oauth_cb", "error_cb", "debug")
)


class LedgerMissing(GaplessError):
    """The ledger topic is not there, and we may not make it."""


class Committed(NamedTuple):
    """An offset that a group has committed under the ledger, and what was written beside it."""

    offset: int
    metadata: str


def connection_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a producer's properties that any client of the same cluster needs."""
    return {
        name: value
        for name, value in properties.items()
        if name in _CONNECTION_NAMES or name.startswith(_CONNECTION)
    }


def register(offset: int, metadata: str) -> TopicPartition:
    """What to commit for a group."""
    return TopicPartition(LEDGER_TOPIC, POSITION_PARTITION, offset, metadata)


class Ledger:
    """Reads what is committed, and makes the topic. Raises KafkaException while the cluster is away."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._properties = quiet_unless_told(connection_properties(properties))
        self._admin: AdminClient | None = None
        self._groups: dict[str, object] = {}
        self._consumers: dict[str, Consumer] = {}

    def ensure_topic(self, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        """Make the topic if it is missing: kept for ever, copied as often as the cluster does by default.

        `timeout_s` is that of each request.
        """
        if self._exists(timeout_s):
            return
        topic = NewTopic(LEDGER_TOPIC, num_partitions=1, replication_factor=-1, config={"retention.ms": "-1"})
        made = self._administrator().create_topics([topic], request_timeout=timeout_s)[LEDGER_TOPIC]
        try:
            made.result()
        except KafkaException as error:
            reason = error.args[0]
            if reason.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            if reason.code() in (
                KafkaError.TOPIC_AUTHORIZATION_FAILED,
                KafkaError.CLUSTER_AUTHORIZATION_FAILED,
                KafkaError.POLICY_VIOLATION,
                KafkaError.INVALID_REPLICATION_FACTOR,
            ):
                raise LedgerMissing(
                    f"topic {LEDGER_TOPIC} is missing and cannot be made ({reason.str()}): "
                    f"make it, with retention.ms=-1, or allow this user to"
                ) from error
            raise

    def read(self, group: str, timeout_s: float = REQUEST_TIMEOUT_S) -> Committed | None:
        """What the group has committed; None if nothing. Waits for a transaction that is not yet decided."""
        # Not by an AdminClient: librdkafka 2.16 crashes in it when the coordinator has just moved.
        where = TopicPartition(LEDGER_TOPIC, POSITION_PARTITION)
        give_up_at = time.monotonic() + timeout_s
        while True:
            try:
                [found] = self._consumer(group).committed([where], timeout=timeout_s)
                if found.error is not None:
                    raise KafkaException(found.error)
                return None if found.offset < 0 else Committed(found.offset, found.metadata or "")
            except KafkaException as error:
                if error.args[0].code() not in _PASSING or time.monotonic() > give_up_at:
                    raise
                time.sleep(_RETRY_S)

    def write(self, group: str, offset: int, metadata: str) -> None:
        """Commit for a group, outside of a transaction."""
        [done] = self._consumer(group).commit(offsets=[register(offset, metadata)], asynchronous=False)
        if done.error is not None:
            raise KafkaException(done.error)

    def group(self, name: str) -> object:
        """What librdkafka wants to be told about a group whose offsets a transaction commits."""
        if name not in self._groups:
            self._groups[name] = self._consumer(name).consumer_group_metadata()
        return self._groups[name]

    def rest(self) -> None:
        """Close connections that are needed again only when a session begins."""
        self._admin = None
        while self._consumers:
            self._consumers.popitem()[1].close()

    def _administrator(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient(dict(self._properties))
        return self._admin

    def _consumer(self, group: str) -> Consumer:
        if group not in self._consumers:
            self._consumers[group] = Consumer(
                {
                    **self._properties,
                    "group.id": group,
                    "enable.auto.commit": False,
                    "isolation.level": "read_committed",
                }
            )
        return self._consumers[group]

    def _exists(self, timeout_s: float) -> bool:
        described = self._administrator().describe_topics(
            TopicCollection([LEDGER_TOPIC]), request_timeout=timeout_s
        )
        try:
            described[LEDGER_TOPIC].result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return False
            raise
        return True
