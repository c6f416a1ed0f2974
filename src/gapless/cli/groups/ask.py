"""What is known of a group: its state and members, and what it has committed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription

from gapless.cli.connection import kafka_errors
from gapless.errors import GaplessError

ANSWER_TIMEOUT_S = 10.0
RETRY_S = 0.1
NOT_READY = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}

STATES: dict[object, str] = {
    ConsumerGroupState.STABLE: "stable",
    ConsumerGroupState.EMPTY: "empty",
    ConsumerGroupState.DEAD: "dead",
    ConsumerGroupState.PREPARING_REBALANCING: "rebalancing",
    ConsumerGroupState.COMPLETING_REBALANCING: "rebalancing",
}

Partition = tuple[str, int]


Answer = TypeVar("Answer")


def patiently(ask: Callable[[], Future[Answer]]) -> Answer:
    """The answer of a group's coordinator, which may just be starting or moving; raises `KafkaException`."""
    ends_at = time.monotonic() + ANSWER_TIMEOUT_S
    while True:
        try:
            return ask().result()
        except KafkaException as error:
            if error.args[0].code() not in NOT_READY or time.monotonic() > ends_at:
                raise
        time.sleep(RETRY_S)


def ask_group(admin: AdminClient, name: str) -> ConsumerGroupDescription:
    """A group's description; a group that nobody knows is described as dead."""
    with kafka_errors(f"cannot describe {name}"):
        description: ConsumerGroupDescription = patiently(
            lambda: admin.describe_consumer_groups([name], request_timeout=ANSWER_TIMEOUT_S)[name]
        )
    return description


def state_of(description: ConsumerGroupDescription) -> str:
    return STATES.get(description.state, "unknown")


def ask_committed(admin: AdminClient, name: str) -> dict[Partition, int]:
    """The offsets that a group has committed, by topic and partition."""
    asked = [ConsumerGroupTopicPartitions(name)]
    with kafka_errors(f"cannot read the offsets of {name}"):
        answer = patiently(
            lambda: admin.list_consumer_group_offsets(asked, request_timeout=ANSWER_TIMEOUT_S)[name]
        )
    found: list[TopicPartition] = sorted(answer.topic_partitions or [], key=_place)
    return {_place(each): each.offset for each in found if each.offset >= 0}


def partitions_of(admin: AdminClient, topics: Sequence[str]) -> list[Partition]:
    """All partitions of these topics; one that does not exist is an error."""
    with kafka_errors("cannot look up topics"):
        existing = admin.list_topics(timeout=ANSWER_TIMEOUT_S).topics  # asking for one might create it
    found = []
    for topic in topics:
        if topic not in existing:
            raise GaplessError(f"there is no topic {topic}")
        found += [(topic, number) for number in sorted(existing[topic].partitions)]
    return found


def _place(partition: TopicPartition) -> Partition:
    return partition.topic, partition.partition
