"""Asks the cluster how many partitions a topic has."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import ClusterMetadata

from gapless.client.logs import quiet_unless_told
from gapless.client.producing.ledger import connection_properties
from gapless.errors import Unreachable, UsageError

_AGAIN_S = 0.05
_FOR_EVER = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.TOPIC_EXCEPTION)
_APPEARS_S = 5.0
"""How long a topic may take to appear that the cluster makes when it is first asked for."""


class Client(Protocol):
    """Any client of librdkafka."""

    def list_topics(self, topic: str, timeout: float) -> ClusterMetadata: ...


def count_partitions(client: Client, bootstrap: str, topic: str, timeout_s: float) -> int:
    """Raises Unreachable if the cluster does not answer, UsageError if it has no such topic for us."""
    began = time.monotonic()
    while True:
        left_s = max(began + timeout_s - time.monotonic(), 0.1)
        try:
            found = client.list_topics(topic, timeout=left_s).topics[topic]
        except KafkaException as error:
            raise Unreachable(f"{bootstrap} does not answer: {error.args[0].str()}") from error
        if found.error is None and found.partitions:
            return len(found.partitions)
        if found.error is not None and found.error.code() in _FOR_EVER:
            raise UsageError(f"nothing can be sent to {topic}: {found.error.str()}")
        if time.monotonic() > began + min(timeout_s, _APPEARS_S):
            raise UsageError(f"there is no topic {topic}: create it first")
        time.sleep(_AGAIN_S)


def refusal(topic: str, partition: int, error: KafkaError) -> str:
    """That the cluster does not take a record from a spool, and where it can be told, what to do."""
    reason = error.str().removeprefix("Unable to produce message: ")
    said = f"{topic}-{partition} does not take a record: {reason}"
    if error.code() == KafkaError._UNKNOWN_PARTITION:
        said += (
            f"; the topic had more partitions when the record was made: give it at least {partition + 1} "
            f"(gapless topics alter {topic} --partitions {partition + 1})"
        )
    return said


class Asking:
    """Asks with a client of its own, made when it is first needed.

    A producer, since for others clusters do not make topics that are missing.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._properties = quiet_unless_told(connection_properties(properties))
        self._client: Producer | None = None

    def count_partitions(self, topic: str, timeout_s: float) -> int:
        client = self._client
        if client is None:
            client = self._client = Producer(dict(self._properties))
        return count_partitions(client, self._properties["bootstrap.servers"], topic, timeout_s)

    def rest(self) -> None:
        """Close the connection, until it is needed again."""
        self._client = None
