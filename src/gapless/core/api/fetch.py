"""Fetch: whole batches from an offset on, waiting for enough of them if asked to.

Version notes: 7 brings sessions, 12 is flexible, 13 names topics by id, 15 moves the replica's state.
The answer holds slices of the log; the shell reads them when the client takes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from gapless.core.api.registry import handles
from gapless.core.contract import Request, TopicPartition
from gapless.core.log import LogFailed, LogSlice
from gapless.core.partition import Partition
from gapless.core.replication.serving import agrees
from gapless.core.sessions import FetchKey, Session, SessionError
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.fetch import (
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchTopicResult,
)

if TYPE_CHECKING:
    from gapless.core.node import Node

DEBUGGING_REPLICA = -2
"""Tools that look at one replica, a follower perhaps, ask by this number."""
Results = list[tuple[FetchKey, FetchPartitionResult]]


class _Reading:
    """One look at all partitions that a fetch wants; it may take several until there is enough."""

    __slots__ = ("_given", "failed", "remaining_bytes", "results", "size_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.results: Results = []
        self.size_bytes = 0
        self.remaining_bytes = max(0, limit_bytes)
        self.failed = False
        self._given: list[tuple[Partition, int, int]] = []

    def take(self, partition: Partition, asked: FetchPartition, records: LogSlice) -> None:
        """Count in what was found in a partition."""
        if records.size:
            self.size_bytes += records.size
            self.remaining_bytes = max(0, self.remaining_bytes - records.size)
            # A slice may begin before the offset that was asked for; clients skip that part.
            self._given.append((partition, records.size, records.end_offset - asked.fetch_offset))

    def give_out(self) -> None:
        """All that was found goes to the client."""
        for partition, size_bytes, records in self._given:
            partition.bytes_out += size_bytes
            partition.records_out += records


@handles(ApiKey.FETCH, 4, 18)
def fetch(node: Node, request: Request) -> Any | None:
    """Answer at once if there is enough, or something to report; else wait."""
    body: FetchRequest = request.body
    if body.replica_id >= 0:
        return node.replicas.leading.fetch(request)
    try:
        session, wanted = node.sessions.resolve(
            body, request.connection, request.header.api_version >= 13, node.now_ms
        )
    except SessionError as error:
        return FetchResponse(error=error.code)

    def poll(timed_out: bool) -> FetchResponse | None:
        if not timed_out and body.min_bytes > 0 and all(_is_quiet(node, body, *each) for each in wanted):
            return None
        reading = _read(node, body, wanted)
        if timed_out or reading.failed or reading.size_bytes >= body.min_bytes:
            reading.give_out()
            return _respond(session, reading.results)
        return None

    response = poll(body.max_wait_ms <= 0 or not wanted)
    if response is None:
        watched = (
            TopicPartition(name, key.partition) for key, _ in wanted if (name := _name(node, key)) is not None
        )
        node.waiting.add(request, node.now_ms + body.max_wait_ms, watched, poll)
    return response


def _is_quiet(node: Node, body: FetchRequest, key: FetchKey, asked: FetchPartition) -> bool:
    """Whether a partition has neither records nor anything else to tell: that need not be read."""
    partition = node.partitions.get((_name(node, key) or "", asked.partition))
    if partition is None or partition.leadership_error(asked.current_leader_epoch):
        return False
    end = partition.end_for_consumers(body.isolation_level == 1)
    return asked.fetch_offset >= end and agrees(partition, asked) is None


def _name(node: Node, key: FetchKey) -> str | None:
    topic = node.topic(key.name, key.topic_id)
    return None if topic is None else topic.name


def _read(node: Node, body: FetchRequest, wanted: list[tuple[FetchKey, FetchPartition]]) -> _Reading:
    """Every partition's answer."""
    reading = _Reading(min(body.max_bytes, node.settings.get("fetch.max.bytes")))
    for key, asked in wanted:
        result = _read_partition(node, key, asked, reading, body)
        reading.failed = reading.failed or result.error != 0
        reading.results.append((key, result))
    return reading


def _read_partition(
    node: Node, key: FetchKey, asked: FetchPartition, reading: _Reading, body: FetchRequest
) -> FetchPartitionResult:
    committed = body.isolation_level == 1
    name = _name(node, key)
    if name is None:
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if key.topic_id is None else ErrorCode.UNKNOWN_TOPIC_ID
        return FetchPartitionResult(asked.partition, missing)
    partition = node.partitions.get((name, asked.partition))
    if partition is None:
        return FetchPartitionResult(asked.partition, node.absence(name, asked.partition))
    error = partition.leadership_error(asked.current_leader_epoch)
    if error and body.replica_id != DEBUGGING_REPLICA:
        leader = (partition.leader, partition.leader_epoch)
        return FetchPartitionResult(asked.partition, error, current_leader=leader)
    agreement = agrees(partition, asked)
    if isinstance(agreement, ErrorCode):
        return _answer(partition, agreement)
    if agreement is not None:
        diverged = _answer(partition, ErrorCode.NONE)
        diverged.diverging_epoch = agreement
        reading.failed = True
        return diverged
    try:
        max_bytes = max(0, min(asked.max_bytes, reading.remaining_bytes))
        records = partition.read(asked.fetch_offset, max_bytes, reading.size_bytes == 0, committed)
        aborted = partition.aborted_in(asked.fetch_offset, records) if committed else None
    except LogFailed as failure:
        partition.damage = str(failure)
        return _answer(partition, ErrorCode.KAFKA_STORAGE_ERROR)
    reading.take(partition, asked, records)
    result = _answer(partition, ErrorCode.NONE)
    result.records = records
    result.aborted = aborted
    return result


def _answer(partition: Partition, error: ErrorCode) -> FetchPartitionResult:
    return FetchPartitionResult(
        partition.name.partition,
        error,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.log.start_offset,
    )


def _respond(session: Session | None, results: Results) -> FetchResponse:
    if session is not None:
        results = session.keep_changes(results)
    topics: dict[tuple[str | None, UUID | None], FetchTopicResult] = {}
    for key, result in results:
        topic = topics.get((key.name, key.topic_id))
        if topic is None:
            topic = topics[key.name, key.topic_id] = FetchTopicResult(key.name, key.topic_id, [])
        topic.partitions.append(result)
    return FetchResponse(
        session_id=0 if session is None else session.session_id, topics=list(topics.values())
    )
