"""Produce: append batches, answer once they are as safe as the client asked.

Version notes: 3 is the first with today's record format; 9 is flexible; 10 tells the leader on an error;
12 relies on the broker to add partitions to transactions; 13 names topics by id. Versions 0 to 2 are
advertised, though refused, because librdkafka concludes from their absence that compression is not supported
(KAFKA-18659).

acks=0 gets no answer, not even an error: Kafka closes the connection then, so that the client refreshes its
metadata, and so do we.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gapless.core.api.registry import handles
from gapless.core.contract import Request, TopicPartition
from gapless.core.coordinators import INTERNAL_TOPICS
from gapless.core.partition import Partition
from gapless.core.producers import RefusedBatch
from gapless.core.transactions.joining import Joined, Joining, join
from gapless.core.transactions.replies import produce_error
from gapless.wire.apis import ApiKey
from gapless.wire.batch import HEADER_SIZE, Opening, parse_header
from gapless.wire.errors import ErrorCode
from gapless.wire.produce import (
    ProducePartition,
    ProducePartitionResult,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    ProduceTopicResult,
)

if TYPE_CHECKING:
    from gapless.core.node import Node


BROKER_ADDS_FROM = 12
PASSING = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)
"""Reasons to refuse a batch that may be gone when the next one arrives on the same connection."""


class _Unsettled:
    """An append that is not yet as safe as was asked."""

    __slots__ = ("acks", "end_offset", "leader_epoch", "partition", "result")

    def __init__(
        self, partition: Partition, end_offset: int, acks: int, result: ProducePartitionResult
    ) -> None:
        self.partition = partition
        self.end_offset = end_offset
        self.leader_epoch = partition.leader_epoch
        self.acks = acks
        self.result = result

    def settled(self) -> bool:
        """Whether it is decided: safe enough, or failed (the result says which)."""
        partition = self.partition
        if partition.leader_epoch != self.leader_epoch or not partition.is_leader:
            return self._fail(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, "leadership changed while replicas were awaited"
            )
        if self._is_safe():
            return True
        if self.acks == -1 and len(partition.isr) < partition.insync_floor:
            return self._fail(
                ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
                "written, but too few replicas are in sync to confirm it",
            )
        if partition.offline is not None:
            return self._fail(ErrorCode.KAFKA_STORAGE_ERROR, partition.offline)
        return False

    def _is_safe(self) -> bool:
        """Whether it is where the client wants it: with acks=all on every replica in sync, else here."""
        partition = self.partition
        if self.acks == -1:
            return partition.high_watermark >= self.end_offset
        return not partition.config.flush_before_ack or partition.flushed_offset >= self.end_offset

    def time_out(self) -> None:
        self._fail(ErrorCode.REQUEST_TIMED_OUT, "the replicas did not confirm in time")

    def _fail(self, code: ErrorCode, message: str) -> bool:
        self.result.error, self.result.error_message = code, message
        self.result.base_offset = self.result.log_append_time_ms = -1
        return True


class _Work:
    """One request on its way into the logs."""

    __slots__ = ("acks", "admissions", "opening", "unsettled", "version")

    def __init__(self, request: Request) -> None:
        self.admissions: Joined = {}
        """The coordinator's decision on partitions in which no transaction of the producer was open."""
        self.acks: int = request.body.acks
        self.version = request.header.api_version
        self.opening = Opening()
        self.unsettled: list[_Unsettled] = []


@handles(ApiKey.PRODUCE, 3, 13, advertised_min=0)
def produce(node: Node, request: Request) -> Any | None:
    """Append everything at once; wait only if something is not safe yet.

    If a transaction begins in a partition, its coordinator is asked first, and later requests of the producer
    for this partition wait until then.
    """
    work = _Work(request)
    transactional_id = request.body.transactional_id
    if transactional_id is None:
        return _append_all(node, request, work)
    node.produce_queues.enter(
        transactional_id, _named(node, request.body), lambda done: _join(node, request, work, done)
    )
    return None


def _named(node: Node, body: ProduceRequest) -> list[TopicPartition]:
    """Return the partitions that a request is for, as far as their topics exist."""
    topics = ((node.topic(asked.name, asked.topic_id), asked.partitions) for asked in body.topics)
    return [
        TopicPartition(topic.name, part.partition)
        for topic, parts in topics
        if topic is not None
        for part in parts
    ]


def _join(node: Node, request: Request, work: _Work, done: Callable[[], None]) -> None:
    """Ask the coordinator if necessary, then append, except where it refused."""

    def joined(decisions: Joined) -> None:
        work.admissions |= {
            name: produce_error(decision, work.version) if isinstance(decision, ErrorCode) else decision
            for name, decision in decisions.items()
        }
        response = _append_all(node, request, work)
        if response is not None:
            node.reply(request, response)
        done()

    joining = _unjoined(node, work, request)
    if joining is None:
        joined({})
    else:
        join(node, joining, joined)


def _unjoined(node: Node, work: _Work, request: Request) -> Joining | None:
    """Return the question to the coordinator: which partitions have no open transaction of the producer."""
    body: ProduceRequest = request.body
    unjoined: dict[TopicPartition, None] = {}
    producers: dict[tuple[int, int], None] = {}
    for asked in body.topics:
        topic = node.topic(asked.name, asked.topic_id)
        for part in asked.partitions:
            if topic is None or topic.name in INTERNAL_TOPICS:
                continue
            partition = node.partitions.get((topic.name, part.partition))
            if partition is None or not partition.is_leader:
                continue
            if part.payload is None or len(part.payload) < HEADER_SIZE:
                continue
            batch = parse_header(part.payload, 0)
            producer = batch.producer_id, batch.producer_epoch
            if batch.is_transactional and not partition.producers.has_open(*producer):
                unjoined[partition.name] = None
                producers[producer] = None
    if len(producers) > 1:
        work.admissions = dict.fromkeys(unjoined, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if len(producers) != 1 or body.transactional_id is None:
        return None
    (producer,) = producers
    adds = work.version >= BROKER_ADDS_FROM
    return Joining(body.transactional_id, producer, list(unjoined), adds)


def _append_all(node: Node, request: Request, work: _Work) -> ProduceResponse | None:
    """The response, or None if it follows."""
    body: ProduceRequest = request.body
    response = ProduceResponse([_append_topic(node, work, topic) for topic in body.topics])
    body.topics = []  # the records are in the log: a request that waits must not hold them
    if body.acks == 0:
        _answer_nothing(node, request, response)
        return None
    if not work.unsettled:
        return response
    _wait(node, request, response, work.unsettled)
    return None


def _append_topic(node: Node, work: _Work, asked: ProduceTopic) -> ProduceTopicResult:
    topic = node.topic(asked.name, asked.topic_id)
    results = []
    for part in asked.partitions:
        if work.acks not in (-1, 0, 1):
            result = ProducePartitionResult(part.partition, ErrorCode.INVALID_REQUIRED_ACKS)
        elif topic is None:
            missing = (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if asked.topic_id is None else ErrorCode.UNKNOWN_TOPIC_ID
            )
            result = ProducePartitionResult(part.partition, missing)
        elif topic.name in INTERNAL_TOPICS:
            result = ProducePartitionResult(part.partition, ErrorCode.INVALID_TOPIC_EXCEPTION)
        else:
            result = _append(node, work, topic.name, part)
        results.append(result)
    return ProduceTopicResult(asked.name, asked.topic_id, results)


def _append(node: Node, work: _Work, topic: str, part: ProducePartition) -> ProducePartitionResult:
    partition = node.partitions.get((topic, part.partition))
    if partition is None:
        return ProducePartitionResult(part.partition, node.absence(topic, part.partition))
    watermark = partition.high_watermark
    try:
        if part.payload is None:
            raise RefusedBatch(ErrorCode.INVALID_RECORD, "the request holds no records")
        admission = work.admissions.get(partition.name) if work.admissions else None
        if isinstance(admission, ErrorCode):
            raise RefusedBatch(admission, "the partition is not part of the producer's transaction")
        appended = partition.append(
            part.payload, work.acks, node.now_ms, work.version, work.opening, admission
        )
    except RefusedBatch as refusal:
        if refusal.code in PASSING and part.payload is not None and len(part.payload) >= HEADER_SIZE:
            partition.producers.hold_back(parse_header(part.payload, 0), refusal.code)
        node.replicas.handover.consider(partition)
        leader = None
        if refusal.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            leader = (partition.leader, partition.leader_epoch)
        return ProducePartitionResult(
            part.partition,
            refusal.code,
            log_start_offset=partition.log.start_offset,
            error_message=str(refusal),
            current_leader=leader,
        )
    if partition.high_watermark != watermark or partition.flush_wanted(node.now_ms):
        node.touch(partition)
    node.flush_later(partition)
    result = ProducePartitionResult(
        part.partition, 0, appended.base_offset, appended.log_append_time_ms, partition.log.start_offset
    )
    append = _Unsettled(partition, appended.end_offset, work.acks, result)
    if not append.settled():
        work.unsettled.append(append)
    return result


def _answer_nothing(node: Node, request: Request, response: ProduceResponse) -> None:
    node.reply(request, None)
    for topic in response.topics:
        for result in topic.partitions:
            if result.error:
                reason = f"produce with acks=0 failed: {ErrorCode(result.error).name}"
                node.close(request.connection, reason)
                return


def _wait(node: Node, request: Request, response: ProduceResponse, unsettled: list[_Unsettled]) -> None:
    def poll(timed_out: bool) -> ProduceResponse | None:
        nonlocal unsettled
        unsettled = [append for append in unsettled if not append.settled()]
        if unsettled and not timed_out:
            return None
        for append in unsettled:
            append.time_out()
        return response

    watched = [TopicPartition(*append.partition.name) for append in unsettled]
    node.waiting.add(request, node.now_ms + max(0, request.body.timeout_ms), watched, poll)
