"""What each replica of a topic holds: its own log's start and end, and how far it knows all to be committed.

Every replica is asked itself, as a debugging replica asks: followers answer that, too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import kafka.errors
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest

from gapless.cli.single_brokers import SingleBrokers, broker_errors
from gapless.errors import GaplessError

DEBUGGING_REPLICA = -2
LATEST = -1
LAST_VERSION_WITH_NAMES = 12
PAGE = 2000


class Replica(NamedTuple):
    """One copy of a partition; without offsets if its broker does not answer for it."""

    broker: int
    role: str
    """leader, in sync, eligible, behind or offline."""
    log_start: int | None = None
    log_end: int | None = None
    high_watermark: int | None = None


class PartitionState(NamedTuple):
    """A partition and its replicas."""

    partition: int
    leader: int | None
    leader_epoch: int
    isr: list[int]
    eligible: list[int]
    replicas: list[Replica]


def ask_replicas(brokers: SingleBrokers, topic: str) -> list[PartitionState]:
    """The state of all partitions, in their order."""
    with broker_errors(f"cannot describe {topic}"):
        described = _describe(brokers, topic)
    ends: dict[tuple[int, int], Replica] = {}
    asked: dict[int, list[dict[str, Any]]] = {}
    for partition in described:
        for broker in partition["replica_nodes"]:
            asked.setdefault(broker, []).append(partition)
    for broker, partitions in asked.items():
        online = [p for p in partitions if broker not in p["offline_replicas"]]
        for index, offsets in _ask_offsets(brokers, broker, topic, online).items():
            ends[index, broker] = Replica(broker, "", *offsets)
    return [_state(partition, ends) for partition in described]


def _describe(brokers: SingleBrokers, topic: str) -> list[dict[str, Any]]:
    partitions: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = brokers.admin.describe_topic_partitions([topic], PAGE, cursor)
        for found in page["topics"]:
            if found["error_code"]:
                raise GaplessError(f"cannot describe {topic}: there is no such topic")
            partitions += found["partitions"]
        cursor = page["next_cursor"]
        if cursor is None:
            return sorted(partitions, key=lambda partition: int(partition["partition_index"]))


def _state(partition: dict[str, Any], ends: dict[tuple[int, int], Replica]) -> PartitionState:
    index, leader = partition["partition_index"], partition["leader_id"]
    eligible = list(partition["eligible_leader_replicas"] or [])
    isr = list(partition["isr_nodes"])

    def role(broker: int) -> str:
        if broker in partition["offline_replicas"]:
            return "offline"
        if broker == leader:
            return "leader"
        if broker in isr:
            return "in sync"
        return "eligible" if broker in eligible else "behind"

    replicas = [
        ends.get((index, broker), Replica(broker, ""))._replace(role=role(broker))
        for broker in partition["replica_nodes"]
    ]
    return PartitionState(
        index, leader if leader >= 0 else None, partition["leader_epoch"], isr, eligible, replicas
    )


Offsets = tuple[int, int, int]
"""Start and end of a replica's log, and its high watermark."""


def _ask_offsets(
    brokers: SingleBrokers, broker: int, topic: str, partitions: list[dict[str, Any]]
) -> dict[int, Offsets]:
    """What one broker says of its replicas; nothing of those that it does not (or no longer) hold."""
    if not partitions:
        return {}
    try:
        ends = _ask_ends(brokers, broker, topic, [p["partition_index"] for p in partitions])
        return _ask_watermarks(brokers, broker, topic, ends) if ends else {}
    except (
        kafka.errors.KafkaConnectionError,
        kafka.errors.KafkaTimeoutError,
        kafka.errors.NodeNotReadyError,
    ):
        return {}  # it died a moment ago: shown without offsets


def _ask_ends(brokers: SingleBrokers, broker: int, topic: str, indexes: list[int]) -> dict[int, int]:
    kind = ListOffsetsRequest.ListOffsetsTopic
    request = ListOffsetsRequest(
        replica_id=DEBUGGING_REPLICA,
        isolation_level=0,
        topics=[
            kind(
                name=topic,
                partitions=[
                    kind.ListOffsetsPartition(
                        partition_index=index, current_leader_epoch=-1, timestamp=LATEST
                    )
                    for index in indexes
                ],
            )
        ],
    )
    answer = brokers.ask(request, broker)
    return {
        part.partition_index: part.offset
        for found in answer.topics
        for part in found.partitions
        if part.error_code == 0
    }


def _ask_watermarks(
    brokers: SingleBrokers, broker: int, topic: str, ends: dict[int, int]
) -> dict[int, Offsets]:
    kind = FetchRequest.FetchTopic
    request = FetchRequest(
        replica_id=DEBUGGING_REPLICA,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[
            kind(
                topic=topic,
                partitions=[
                    kind.FetchPartition(
                        partition=index,
                        current_leader_epoch=-1,
                        fetch_offset=end,
                        last_fetched_epoch=-1,
                        log_start_offset=-1,
                        partition_max_bytes=1,
                    )
                    for index, end in ends.items()
                ],
            )
        ],
        forgotten_topics_data=[],
        rack_id="",
        max_version=LAST_VERSION_WITH_NAMES,
    )
    answer = brokers.ask(request, broker)
    return {
        part.partition_index: (part.log_start_offset, ends[part.partition_index], part.high_watermark)
        for found in answer.responses
        for part in found.partitions
        if part.error_code == 0
    }
