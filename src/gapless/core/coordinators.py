"""The internal topics, and who coordinates by means of them.

A coordinator registers the state that it keeps in a topic's partitions; the node makes one shard for each
partition that it leads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from gapless.core.shard import CoordinatorError, Shard, ShardState, shard_of
from gapless.wire.errors import ErrorCode

if TYPE_CHECKING:
    from gapless.core.node import Node

CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
INTERNAL_TOPICS = frozenset((CONSUMER_OFFSETS, TRANSACTION_STATE))


class InternalTopic(NamedTuple):
    """How an internal topic is made when it is first needed."""

    partitions_setting: str
    replication_setting: str
    configs: dict[str, str]


INTERNAL_TOPIC_SHAPES = {
    CONSUMER_OFFSETS: InternalTopic(
        "offsets.topic.num.partitions",
        "offsets.topic.replication.factor",
        {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"},
    ),
    TRANSACTION_STATE: InternalTopic(
        "transaction.state.log.num.partitions",
        "transaction.state.log.replication.factor",
        {"cleanup.policy": "compact", "compression.type": "uncompressed", "segment.bytes": "104857600"},
    ),
}

COORDINATORS: dict[str, Callable[[Shard], ShardState]] = {}


def find_shard(node: Node, topic: str, key: str) -> Shard:
    """The shard here that coordinates `key`; raises `CoordinatorError` if it is elsewhere or not ready."""
    internal = node.image.topics.get(topic)
    if internal is None:
        raise CoordinatorError(ErrorCode.NOT_COORDINATOR)
    shard = node.shards.get((topic, shard_of(key, len(internal.partitions))))
    if shard is None:
        raise CoordinatorError(ErrorCode.NOT_COORDINATOR)
    shard.check_ready()
    return shard


def coordinator_of(node: Node, topic: str, key: str) -> int:
    """The broker that coordinates `key`; -1 if there is none now."""
    internal = node.image.topics.get(topic)
    if internal is None:
        return -1
    return internal.partitions[shard_of(key, len(internal.partitions))].leader


def coordinates(topic: str, new_state: Callable[[Shard], ShardState]) -> None:
    """Register what is kept in an internal topic."""
    COORDINATORS[topic] = new_state
