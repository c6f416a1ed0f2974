"""Incremental fetch sessions (KIP-227): a consumer names its partitions once, and then only what changes.

The session remembers, per partition, what was asked and what was last answered, so that both sides leave out
what is as before. When there is no room for another one, a fetch is simply answered in full, without a
session; clients expect that.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from gapless.core.contract import Randomness
from gapless.wire.errors import ErrorCode
from gapless.wire.fetch import FetchPartition, FetchPartitionResult, FetchRequest

FINAL_EPOCH, INITIAL_EPOCH, EPOCH_MAX = -1, 0, 2**31 - 1
IDLE_MS_BEFORE_EVICTION = 120_000
MAX_CACHED_PARTITIONS = 200_000
"""Over all sessions together: bounds what clients can make the broker remember."""


class FetchKey(NamedTuple):
    """A partition as a fetch names it: by topic id from version 13 on, by name before."""

    name: str | None
    topic_id: UUID | None
    partition: int


class Cached:
    """What a session knows of one partition."""

    __slots__ = ("answered", "asked")

    def __init__(self, asked: FetchPartition) -> None:
        self.asked = asked
        self.answered: tuple[int, int, int] | None = None


class Session:
    """One consumer's session with this broker."""

    __slots__ = ("connection", "epoch", "last_used_ms", "partitions", "session_id", "uses_topic_ids")

    def __init__(self, session_id: int, connection: int, uses_topic_ids: bool, now_ms: int) -> None:
        self.session_id = session_id
        self.connection = connection
        self.uses_topic_ids = uses_topic_ids
        self.epoch = INITIAL_EPOCH + 1
        self.last_used_ms = now_ms
        self.partitions: dict[FetchKey, Cached] = {}

    def keep_changes(
        self, results: list[tuple[FetchKey, FetchPartitionResult]]
    ) -> list[tuple[FetchKey, FetchPartitionResult]]:
        """Of a full answer, what differs from the last one; what was left out is remembered as answered.

        Partitions that had records go to the end, so that all get their turn under a byte limit.
        """
        changed = []
        for key, result in results:
            cached = self.partitions.get(key)
            if cached is None:
                changed.append((key, result))
                continue
            answer = (result.error, result.high_watermark, result.log_start_offset)
            has_records = result.records is not None and result.records.size > 0
            if has_records or answer != cached.answered or result.error or result.diverging_epoch:
                changed.append((key, result))
            # An error is told again until it is gone, as the client asks for the partition all the same.
            cached.answered = None if result.error else answer
            if has_records:
                self.partitions[key] = self.partitions.pop(key)
        return changed


class SessionError(Exception):
    """The client and this broker disagree about a session; the client starts a new one."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class FetchSessions:
    """All sessions, bounded in number and in what they remember."""

    def __init__(self, slots: int, randomness: Randomness) -> None:
        self._slots = slots
        self._randomness = randomness
        self._sessions: dict[int, Session] = {}
        self._cached_partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(
        self, request: FetchRequest, connection: int, uses_topic_ids: bool, now_ms: int
    ) -> tuple[Session | None, list[tuple[FetchKey, FetchPartition]]]:
        """The session that a fetch belongs to, and all partitions that it asks for; raises `SessionError`."""
        # As in Kafka the last word counts, if a partition is named more than once.
        asked = list(
            {
                FetchKey(topic.name, topic.topic_id, partition.partition): partition
                for topic in request.topics
                for partition in topic.partitions
            }.items()
        )
        if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            self._remove(request.session_id)
            if request.session_epoch == FINAL_EPOCH or not asked:
                return None, asked
            return self._create(asked, connection, uses_topic_ids, now_ms), asked
        session = self._continue(request, uses_topic_ids, now_ms)
        self._update(session, request, asked)
        return session, [(key, cached.asked) for key, cached in session.partitions.items()]

    def drop_connection(self, connection: int) -> None:
        """A session ends with the connection it was made on; its client begins anew on the next one."""
        for session in [s for s in self._sessions.values() if s.connection == connection]:
            self._remove(session.session_id)

    def _continue(self, request: FetchRequest, uses_topic_ids: bool, now_ms: int) -> Session:
        session = self._sessions.get(request.session_id)
        if session is None:
            raise SessionError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if request.session_epoch != session.epoch:
            raise SessionError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            raise SessionError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        # The least recently used session stays first in the dictionary.
        session.last_used_ms = now_ms
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        return session

    def _update(
        self, session: Session, request: FetchRequest, asked: list[tuple[FetchKey, FetchPartition]]
    ) -> None:
        before = len(session.partitions)
        for topic in request.forgotten:
            for index in topic.partitions:
                session.partitions.pop(FetchKey(topic.name, topic.topic_id, index), None)
        for key, partition in asked:
            cached = session.partitions.get(key)
            if cached is None:
                session.partitions[key] = Cached(partition)
            else:
                cached.asked = partition
        self._cached_partitions += len(session.partitions) - before
        if self._cached_partitions > MAX_CACHED_PARTITIONS:
            self._remove(session.session_id)
            raise SessionError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)

    def _create(
        self, asked: list[tuple[FetchKey, FetchPartition]], connection: int, uses_topic_ids: bool, now_ms: int
    ) -> Session | None:
        if not self._make_room(len(asked), now_ms):
            return None
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = self._randomness.getrandbits(31)
        session = Session(session_id, connection, uses_topic_ids, now_ms)
        session.partitions = {key: Cached(partition) for key, partition in asked}
        self._sessions[session_id] = session
        self._cached_partitions += len(session.partitions)
        return session

    def _make_room(self, partitions: int, now_ms: int) -> bool:
        while (
            len(self._sessions) >= self._slots or self._cached_partitions + partitions > MAX_CACHED_PARTITIONS
        ):
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.last_used_ms < IDLE_MS_BEFORE_EVICTION:
                return False
            self._remove(oldest.session_id)
        return True

    def _remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._cached_partitions -= len(session.partitions)
