"""A leader's answers to its followers.

A follower has one session with each leader (KIP-227): it names a partition once, and again when its own log
has grown. Only partitions with something to tell are looked at, so that an answer costs by what happened and
not by how many partitions there are. What was given is not given again before the follower names the
partition anew. A second fetch of the same session makes the first one return at once, so that a follower can
name more partitions while it waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from gapless.core.contract import Request, TopicPartition
from gapless.core.log import LogFailed
from gapless.core.partition import Partition, ReplicaKey
from gapless.core.sessions import EPOCH_MAX, FINAL_EPOCH, INITIAL_EPOCH
from gapless.wire.errors import ErrorCode
from gapless.wire.fetch import (
    FIRST_VERSION_WITH_TOPIC_IDS,
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResult,
    ForgottenTopic,
)

if TYPE_CHECKING:
    from gapless.core.node import Node

NO_ID = UUID(int=0)


class _Asked:
    """What a follower wants of one partition, and what it was told last."""

    __slots__ = ("given", "request", "seen", "told", "topic_id")

    def __init__(self, topic_id: UUID, request: FetchPartition) -> None:
        self.topic_id = topic_id
        self.request = request
        self.seen = False
        """Whether its progress has been noted."""
        self.given = False
        """Whether it must name the partition again before it gets more."""
        self.told: tuple[int, int] | None = None
        """High watermark and log start."""


class _Found:
    """What there is to tell a follower."""

    __slots__ = ("is_urgent", "results", "size_bytes")

    def __init__(self) -> None:
        self.results: list[tuple[ReplicaKey, FetchPartitionResult]] = []
        self.size_bytes = 0
        self.is_urgent = False
        """Whether it is worth an answer, though there are no records."""


class ReplicaSession:
    """One follower's standing wishes."""

    __slots__ = ("due", "epoch", "name", "replica_id", "session_id", "turn", "wanted")

    def __init__(self, replica_id: int, session_id: int) -> None:
        self.replica_id = replica_id
        self.session_id = session_id
        self.epoch = INITIAL_EPOCH + 1
        self.turn = 0
        self.wanted: dict[ReplicaKey, _Asked] = {}
        self.due: dict[ReplicaKey, None] = {}
        # Waiting fetches watch a name that no partition has: one for all that the follower wants.
        self.name = TopicPartition("", replica_id)


class Leading:
    """The sessions of all followers of one broker."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._sessions: dict[int, ReplicaSession] = {}

    def news(self, partition: Partition, urgent: bool) -> None:
        """A partition has something to tell its followers; urgent news ends their waiting."""
        key = partition.replica_key
        for session in self._sessions.values():
            asked = session.wanted.get(key)
            if asked is not None and not asked.given:
                session.due[key] = None
                if urgent:
                    self._node.mark_touched(session.name)

    def fetch(self, request: Request) -> FetchResponse | None:
        """Answer a follower at once, or let it wait."""
        node = self._node
        body: FetchRequest = request.body
        if request.header.api_version < FIRST_VERSION_WITH_TOPIC_IDS:
            return FetchResponse(error=ErrorCode.UNSUPPORTED_VERSION)
        if not node.serving:
            # Until this life is registered the journal may call this broker a leader for what it has lost.
            return FetchResponse(error=ErrorCode.BROKER_NOT_AVAILABLE)
        session = self._session(body)
        if isinstance(session, ErrorCode):
            return FetchResponse(error=session)
        self._end_waiting(session)
        self._take_wishes(session, body)
        poll = self._poll(session, body)
        response = poll(body.max_wait_ms <= 0)
        if response is None:
            node.waiting.add(request, node.now_ms + body.max_wait_ms, (session.name,), poll)
        return response

    def _session(self, body: FetchRequest) -> ReplicaSession | ErrorCode:
        session = self._sessions.get(body.replica_id)
        if body.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            # A former session of this follower is of no use: its waiting fetches, if any, return as outdated.
            if session is not None:
                self._end_waiting(session)
            session_id = 0
            while session_id == 0 and body.session_epoch == INITIAL_EPOCH:
                session_id = self._node.randomness.getrandbits(31)
            session = ReplicaSession(body.replica_id, session_id)
            if body.replica_id in self._node.image.brokers:  # not for any number that a stranger makes up
                self._sessions[body.replica_id] = session
            return session
        if session is None or session.session_id != body.session_id:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != body.session_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        return session

    def _end_waiting(self, session: ReplicaSession) -> None:
        """A new fetch has come: one that waits returns, as outdated."""
        session.turn += 1
        for request, message in self._node.waiting.touched(session.name):
            self._node.reply(request, message)

    @staticmethod
    def _take_wishes(session: ReplicaSession, body: FetchRequest) -> None:
        for gone in body.forgotten:
            for index in gone.partitions:
                key = (_id(gone).int, index)
                session.wanted.pop(key, None)
                session.due.pop(key, None)
        for topic in body.topics:
            topic_id = _id(topic)
            for wish in topic.partitions:
                key = (topic_id.int, wish.partition)
                session.wanted[key] = _Asked(topic_id, wish)
                session.due.pop(key, None)
                session.due[key] = None

    def _poll(self, session: ReplicaSession, body: FetchRequest) -> Callable[[bool], FetchResponse | None]:
        turn = session.turn

        def poll(timed_out: bool) -> FetchResponse | None:
            if session.turn != turn:
                return FetchResponse(session_id=session.session_id)
            found = self._look(session, body)
            if timed_out or found.is_urgent or found.size_bytes >= max(1, body.min_bytes):
                return _give(session, found.results)
            return None

        return poll

    # --------------------------------------------------------------------------------------- reading

    def _look(self, session: ReplicaSession, body: FetchRequest) -> _Found:
        found = _Found()
        limit_bytes = max(1, body.max_bytes)
        for key in list(session.due):
            left_bytes = limit_bytes - found.size_bytes
            if left_bytes <= 0:
                break
            asked = session.wanted[key]
            result = self._read(body, key, asked, left_bytes, found.size_bytes == 0)
            if result.records is not None:
                found.size_bytes += result.records.size
            elif _is_urgent(result):
                found.is_urgent = True
            elif found.size_bytes and self._has_more(key, asked):
                continue  # Its next batch does not fit into this answer. It stays due for the next answer.
            elif asked.told == (result.high_watermark, result.log_start_offset):
                del session.due[key]
                continue
            found.results.append((key, result))
        return found

    def _read(
        self, body: FetchRequest, key: ReplicaKey, asked: _Asked, left_bytes: int, first: bool
    ) -> FetchPartitionResult:
        wish = asked.request
        partition = self._node.replicas.by_key.get(key)
        if partition is None:
            return FetchPartitionResult(wish.partition, self._absence(asked))
        error = self._fencing_error(partition, body, wish)
        if error:
            leader = (partition.leader, partition.leader_epoch)
            return FetchPartitionResult(wish.partition, error, current_leader=leader)
        result = FetchPartitionResult(
            wish.partition, 0, partition.high_watermark, -1, partition.log.start_offset
        )
        agreement = agrees(partition, wish)
        if isinstance(agreement, ErrorCode):
            result.error = agreement
            return result
        if agreement is not None:
            result.diverging_epoch = agreement
            return result
        if not asked.seen:
            asked.seen = True
            self._note_progress(partition, body, wish)
            result.high_watermark = partition.high_watermark
        try:
            limit = min(wish.max_bytes, left_bytes)
            records = partition.log.read(wish.fetch_offset, limit, partition.end_for_followers, first)
        except LogFailed as failure:
            partition.damage = str(failure)
            result.error = ErrorCode.KAFKA_STORAGE_ERROR
            return result
        result.records = records if records.size else None
        return result

    def _has_more(self, key: ReplicaKey, asked: _Asked) -> bool:
        partition = self._node.replicas.by_key[key]
        return asked.request.fetch_offset < partition.end_for_followers

    def _absence(self, asked: _Asked) -> ErrorCode:
        topic = self._node.topic(None, asked.topic_id)
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        return self._node.absence(topic.name, asked.request.partition)

    def _fencing_error(self, partition: Partition, body: FetchRequest, wish: FetchPartition) -> ErrorCode:
        """Why this follower, or this life of it, may not fetch; the codes are Kafka's."""
        error = partition.leadership_error(wish.current_leader_epoch)
        if error:
            return error
        if partition.followers is None or body.replica_id not in partition.followers.by_id:
            return (
                ErrorCode.NOT_LEADER_OR_FOLLOWER
                if wish.current_leader_epoch < 0
                else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
        known = self._node.image.brokers.get(body.replica_id)
        if known is not None and -1 < body.replica_epoch < known.epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER  # an earlier life (KIP-903)
        return ErrorCode.NONE

    def _note_progress(self, partition: Partition, body: FetchRequest, wish: FetchPartition) -> None:
        node = self._node
        if partition.followers is None:
            return
        follower = partition.followers.by_id[body.replica_id]
        watermark = partition.high_watermark
        end = partition.end_for_followers
        follower.fetched(wish.fetch_offset, end, body.replica_epoch, node.now_ms)
        partition.advance_high_watermark()
        if partition.high_watermark != watermark:
            node.touch(partition)
        if body.replica_id not in partition.isr:
            node.replicas.insync.consider(partition)


def agrees(partition: Partition, wish: FetchPartition) -> tuple[int, int] | ErrorCode | None:
    """None if the fetcher's log is a beginning of this one; else where they part, or why nobody knows."""
    log, offset, last_epoch = partition.log, wish.fetch_offset, wish.last_fetched_epoch
    start_offset = log.start_offset
    if last_epoch >= 0:
        epoch, end_offset = partition.end_of_epoch(last_epoch)
        if end_offset < 0 or offset < start_offset:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        if epoch < last_epoch or end_offset < offset:
            return epoch, end_offset
    if not start_offset <= offset <= log.end_offset:
        return ErrorCode.OFFSET_OUT_OF_RANGE
    return None


def _id(topic: FetchTopic | ForgottenTopic) -> UUID:
    """By what a follower names a topic: in the versions that brokers speak, always by its id."""
    return topic.topic_id or NO_ID


def _is_urgent(result: FetchPartitionResult) -> bool:
    return result.error != 0 or result.diverging_epoch is not None


def _give(session: ReplicaSession, found: list[tuple[ReplicaKey, FetchPartitionResult]]) -> FetchResponse:
    """All that was found goes to the follower."""
    topics: dict[int, FetchTopicResult] = {}
    for key, result in found:
        asked = session.wanted[key]
        asked.told = (result.high_watermark, result.log_start_offset)
        asked.given = result.records is not None or _is_urgent(result)
        del session.due[key]
        topic = topics.get(key[0])
        if topic is None:
            topic = topics[key[0]] = FetchTopicResult(None, asked.topic_id, [])
        topic.partitions.append(result)
    return FetchResponse(session_id=session.session_id, topics=list(topics.values()))
