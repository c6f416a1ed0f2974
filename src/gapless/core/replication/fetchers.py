"""A follower's side: one fetcher per leader copies all partitions that are followed there.

A partition is *ready* to be named when its own end, or the epoch under which it is followed, is new to the
leader. At most two fetches are under way: one that waits at the leader for news, and one that names more
partitions meanwhile and makes the first return. An answer counts only if the partition is still followed
under the epoch, and from the offset, for which it was asked (KIP-320): not if it answers a fetch from before
the partition was named anew, for that answer is still to come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from gapless.core.log import LogFailed
from gapless.core.partition import Partition, ReplicaKey
from gapless.core.replication.copying import copy_batches, follow_watermark, start_over, truncate_by_epoch
from gapless.wire.apis import ApiKey
from gapless.wire.batch import InvalidBatch
from gapless.wire.errors import ErrorCode
from gapless.wire.fetch import (
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from gapless.wire.fetch_peer import FetchedRecords

if TYPE_CHECKING:
    from gapless.core.node import Node

VERSION = 17
PATIENCE_MS = 2500
"""How long past its waiting time a fetch may take."""
FIRST_BACKOFF_MS = 5
"""A new leader may learn of it an instant later than its followers."""


class _Named(NamedTuple):
    """How a partition was named last."""

    leader_epoch: int
    offset: int
    fetch: int
    """The number of the fetch that named it."""


class Fetcher:
    """Copies from one leader."""

    def __init__(self, node: Node, leader: int) -> None:
        get = node.settings.get
        self._node = node
        self._leader = leader
        self._wait_max_ms: int = get("replica.fetch.wait.max.ms")
        self._response_max_bytes: int = get("replica.fetch.response.max.bytes")
        self._max_bytes: int = get("replica.fetch.max.bytes")
        self._followed: dict[ReplicaKey, Partition] = {}
        self._named: dict[ReplicaKey, _Named] = {}
        self._ready: dict[ReplicaKey, None] = {}
        self._forgotten: dict[ReplicaKey, None] = {}
        self._refusals: dict[ReplicaKey, int] = {}
        """How often in a row a partition could not be served."""
        self._session_id = 0
        self._session_epoch = 0
        self._broker_epoch = -1
        self._under_way = 0
        self._fetches = 0
        """How many have been sent: each has its number."""
        self._first_of_session = 1
        """Answers to earlier fetches than this do not count."""
        self._resting = False

    # ------------------------------------------------------------------------------- what is followed

    def follow(self, key: ReplicaKey, partition: Partition) -> None:
        """Copy a partition, from now on or under a new epoch."""
        self._followed[key] = partition
        self._forgotten.pop(key, None)
        self._make_ready(key)

    def forget(self, key: ReplicaKey) -> None:
        """Copy a partition no more."""
        if self._followed.pop(key, None) is not None:
            self._ready.pop(key, None)
            self._refusals.pop(key, None)
            if self._named.pop(key, None) is not None:
                self._forgotten[key] = None

    def _make_ready(self, key: ReplicaKey) -> None:
        """Name a partition as soon as what it has counts; if acknowledging needs that, once it is flushed."""
        partition = self._followed.get(key)
        if partition is None or partition.offline is not None:
            return
        if partition.config.flush_before_ack and partition.flushed_offset < partition.log.end_offset:
            self._await_flush(key, partition)
            return
        self._ready[key] = None
        self._go_on()

    def _await_flush(self, key: ReplicaKey, partition: Partition) -> None:
        epoch, end_offset = partition.leader_epoch, partition.log.end_offset

        def look() -> bool:
            if self._followed.get(key) is not partition or partition.leader_epoch != epoch:
                return True
            if partition.flushed_offset < min(end_offset, partition.log.end_offset):
                return partition.offline is not None
            self._make_ready(key)
            return True

        self._node.touch(partition)
        self._node.watches.add(partition.name, look)

    # ---------------------------------------------------------------------------------------- asking

    def _go_on(self) -> None:
        """Ask again, if there is a reason to and it may be done now."""
        if self._resting or not self._followed or not self._node.serving:
            return
        if self._under_way == 0 or (self._under_way == 1 and self._session_id and self._ready):
            self._ask()

    def _ask(self) -> None:
        node = self._node
        me = node.image.brokers.get(node.node_id)
        broker_epoch = -1 if me is None else me.epoch
        if broker_epoch != self._broker_epoch:
            # What was named in an earlier life, before this broker registered anew, does not count for this.
            self._begin_anew()
            self._broker_epoch = broker_epoch
        self._fetches += 1
        begins = self._session_id == 0
        if begins:
            self._forgotten.clear()
        request = FetchRequest(
            replica_id=node.node_id,
            replica_epoch=broker_epoch,
            # A session begins with an answer at once: before that, nothing more could be named.
            max_wait_ms=0 if begins else self._wait_max_ms,
            min_bytes=1,
            max_bytes=self._response_max_bytes,
            session_id=self._session_id,
            session_epoch=0 if begins else self._session_epoch,
            topics=self._wishes(),
            forgotten=self._dismissals() if self._forgotten else [],
        )
        self._session_epoch = 1 if begins else self._session_epoch % (2**31 - 1) + 1
        self._under_way += 1
        number = self._fetches
        node.call(
            (self._leader, int(ApiKey.FETCH), VERSION),
            request,
            request.max_wait_ms + PATIENCE_MS,
            lambda message: self._answered(message, number),
        )

    def _wishes(self) -> list[FetchTopic]:
        if not self._ready:
            return []
        ready, self._ready = self._ready, {}
        topics: dict[int, FetchTopic] = {}
        for key in ready:
            partition = self._followed[key]
            log, epoch = partition.log, partition.leader_epoch
            self._named[key] = _Named(epoch, log.end_offset, self._fetches)
            wish = FetchPartition(
                key[1], epoch, log.end_offset, epoch_to_compare(partition), log.start_offset, self._max_bytes
            )
            topic = topics.get(key[0])
            if topic is None:
                topic = topics[key[0]] = FetchTopic(None, partition.topic_id)
            topic.partitions.append(wish)
        return list(topics.values())

    def _dismissals(self) -> list[ForgottenTopic]:
        forgotten, self._forgotten = self._forgotten, {}
        topics: dict[int, ForgottenTopic] = {}
        for topic, index in forgotten:
            if topic not in topics:
                topics[topic] = ForgottenTopic(None, UUID(int=topic))
            topics[topic].partitions.append(index)
        return list(topics.values())

    def _begin_anew(self) -> None:
        """Forget the session: everything will be named again."""
        self._first_of_session = self._fetches + 1
        self._under_way = self._session_id = 0
        for key in self._named:
            if key in self._followed:
                self._ready[key] = None
        self._named.clear()

    def _rest(self) -> None:
        self._resting = True

        def wake() -> None:
            self._resting = False
            self._go_on()

        self._node.timers.at(self._node.now_ms + self._backoff_ms(), wake)

    def _backoff_ms(self) -> int:
        backoff_ms: int = self._node.settings.get("replica.fetch.backoff.ms")
        return backoff_ms

    # --------------------------------------------------------------------------------------- answers

    def _answered(self, message: FetchResponse | None, number: int) -> None:
        if number < self._first_of_session:
            return
        self._under_way -= 1
        if message is None or message.error:
            self._begin_anew()
            if message is None or self._session_epoch == 1:
                self._rest()
        else:
            self._session_id = message.session_id
            for topic in message.topics:
                topic_id = 0 if topic.topic_id is None else topic.topic_id.int
                for result in topic.partitions:
                    self._take((topic_id, result.partition), result, number)
        self._go_on()

    def _take(self, key: ReplicaKey, result: FetchPartitionResult, number: int) -> None:
        partition, named = self._followed.get(key), self._named.get(key)
        if partition is None or named is None or key in self._ready or number < named.fetch:
            return
        if (named.leader_epoch, named.offset) != (partition.leader_epoch, partition.log.end_offset):
            self._make_ready(key)
            return
        try:
            progressed = self._apply(partition, result)
        except LogFailed as failure:
            partition.offline = str(failure)
            self._node.touch(partition)
            return
        except InvalidBatch as fault:
            self._node.tell(f"a fetch of {_text(partition)} failed: {fault}", is_problem=True)
            progressed = False
        if not progressed:
            self._set_aside(key)
            return
        self._refusals.pop(key, None)
        if result.records is not None or named.offset != partition.log.end_offset or result.error:
            self._node.touch(partition)
            self._node.flush_later(partition)
            self._make_ready(key)
        elif result.diverging_epoch is not None:
            self._make_ready(key)

    def _set_aside(self, key: ReplicaKey) -> None:
        """The leader does not serve this partition now: ask again soon, then less and less often."""
        refusals = self._refusals[key] = self._refusals.get(key, 0) + 1
        delay_ms = min(self._backoff_ms(), FIRST_BACKOFF_MS << min(refusals - 1, 10))
        self._node.timers.at(self._node.now_ms + delay_ms, lambda: self._make_ready(key))

    def _apply(self, partition: Partition, result: FetchPartitionResult) -> bool:
        """Do what the leader's answer says; False if it could not be served."""
        if result.error == ErrorCode.OFFSET_OUT_OF_RANGE and result.log_start_offset >= 0:
            self._cut(partition, lambda: start_over(partition, result.log_start_offset))
            return True
        if result.error:
            return False
        if result.diverging_epoch is not None:
            epoch, end_offset = result.diverging_epoch
            self._cut(partition, lambda: truncate_by_epoch(partition, epoch, end_offset))
            return True
        if isinstance(result.records, FetchedRecords):
            copy_batches(partition, result.records.payload)
        follow_watermark(partition, result.high_watermark, result.log_start_offset)
        return True

    def _cut(self, partition: Partition, cut: Callable[[], None]) -> None:
        watermark, end_offset = partition.high_watermark, partition.log.end_offset
        cut()
        given_up = end_offset - partition.log.end_offset
        if given_up > 0:
            self._node.tell(
                f"gave up {given_up} offsets of {_text(partition)}, from {partition.log.end_offset} on: "
                f"broker {self._leader}, which leads it, does not have them",
                is_problem=partition.log.end_offset < watermark,
            )


def epoch_to_compare(partition: Partition) -> int:
    """By which epoch the leader finds where both logs part: named with every fetch, whoever leads."""
    return partition.log.latest_epoch


def _text(partition: Partition) -> str:
    return f"{partition.name.topic}-{partition.name.partition}"


class Fetchers:
    """All fetchers of one broker."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._by_leader: dict[int, Fetcher] = {}
        self._leader_of: dict[ReplicaKey, int] = {}

    def follow(self, partition: Partition) -> None:
        """Copy a partition from whoever leads it, or from nobody if it is led here or not at all."""
        key, leader = partition.replica_key, partition.leader
        before = self._leader_of.pop(key, None)
        if before is not None and before != leader:
            self._by_leader[before].forget(key)
        if leader < 0 or leader == partition.node_id:
            return
        self._leader_of[key] = leader
        fetcher = self._by_leader.get(leader)
        if fetcher is None:
            fetcher = self._by_leader[leader] = Fetcher(self._node, leader)
        fetcher.follow(key, partition)

    def drop(self, partition: Partition) -> None:
        """A replica is gone from here."""
        key = partition.replica_key
        before = self._leader_of.pop(key, None)
        if before is not None:
            self._by_leader[before].forget(key)
