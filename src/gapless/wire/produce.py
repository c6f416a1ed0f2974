"""Produce, versions 3 to 13: requests decoded without copying records, replies encoded.

The payload of a partition is a writable view of the request's frame; nothing in it has been checked
(see `batch.check_batches`). A name is None from version 13 on, where an id stands for the topic; an id is
None before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID


@dataclass(slots=True)
class ProducePartition:
    partition: int
    payload: memoryview | None


@dataclass(slots=True)
class ProduceTopic:
    name: str | None
    topic_id: UUID | None
    partitions: list[ProducePartition] = field(default_factory=list)


@dataclass(slots=True)
class ProduceRequest:
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic] = field(default_factory=list)


@dataclass(slots=True)
class ProducePartitionResult:
    partition: int
    error: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    current_leader: tuple[int, int] | None = None


@dataclass(slots=True)
class ProduceTopicResult:
    name: str | None
    topic_id: UUID | None
    partitions: list[ProducePartitionResult] = field(default_factory=list)


@dataclass(slots=True)
class ProduceResponse:
    topics: list[ProduceTopicResult] = field(default_factory=list)
    throttle_time_ms: int = 0
