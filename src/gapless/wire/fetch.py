"""Fetch, versions 4 to 18: requests decoded, replies encoded as parts around records that are never copied.

What a partition returns is a `RecordsRef`: anything that knows its size. The encoder puts it between the
bytes that describe it and leaves it to the shell to turn it into bytes when it writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

NO_HIGH_WATERMARK = 2**63 - 1
"""What a fetcher that does not know the high watermark sends (it is the protocol's default)."""


class RecordsRef(Protocol):
    """Whole batches that lie elsewhere."""

    @property
    def size(self) -> int: ...


@dataclass(slots=True)
class FetchPartition:
    partition: int
    current_leader_epoch: int = -1
    fetch_offset: int = 0
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    max_bytes: int = 0
    high_watermark: int = NO_HIGH_WATERMARK


@dataclass(slots=True)
class FetchTopic:
    name: str | None
    topic_id: UUID | None
    partitions: list[FetchPartition] = field(default_factory=list)


@dataclass(slots=True)
class ForgottenTopic:
    name: str | None
    topic_id: UUID | None
    partitions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class FetchRequest:
    replica_id: int = -1
    replica_epoch: int = -1
    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = 0x7FFFFFFF
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = -1
    topics: list[FetchTopic] = field(default_factory=list)
    forgotten: list[ForgottenTopic] = field(default_factory=list)
    rack_id: str = ""
    cluster_id: str | None = None


@dataclass(slots=True)
class FetchPartitionResult:
    partition: int
    error: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: list[tuple[int, int]] | None = None
    preferred_read_replica: int = -1
    records: RecordsRef | None = None
    diverging_epoch: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None


@dataclass(slots=True)
class FetchTopicResult:
    name: str | None
    topic_id: UUID | None
    partitions: list[FetchPartitionResult] = field(default_factory=list)


@dataclass(slots=True)
class FetchResponse:
    error: int = 0
    session_id: int = 0
    topics: list[FetchTopicResult] = field(default_factory=list)
    throttle_time_ms: int = 0
