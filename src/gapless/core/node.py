"""One broker's rules. `step` is the only entry; everything that happens comes in as an event.

Handlers of single APIs live in `core/api/`, one file per API or small family. A handler returns the reply, or
None if it has put the request among the waiting ones. Changes to the cluster's shape are decided here,
written by the shell's journal, and take effect when they come back as `Committed`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any
from uuid import UUID

from gapless.core.api.registry import APIS
from gapless.core.changes import Change, Decision
from gapless.core.compaction import Compaction
from gapless.core.config_keys import BROKER, TOPIC
from gapless.core.configs import Settings, TopicConfig
from gapless.core.contract import (
    BrokerDied,
    Call,
    CatchUp,
    CaughtUp,
    Close,
    Committed,
    ConnectionClosed,
    DiskFailed,
    Effect,
    Event,
    Flush,
    Flushed,
    InvariantViolated,
    PeerAnswered,
    PeerLost,
    Propose,
    Randomness,
    Refused,
    Reply,
    Request,
    Started,
    Stop,
    StopAsked,
    Tell,
    Tick,
    TopicPartition,
)
from gapless.core.image import Image, Topic
from gapless.core.log import LogStore
from gapless.core.membership.membership import Membership
from gapless.core.partition import NEVER_MS, Partition
from gapless.core.produce_queues import ProduceQueues
from gapless.core.records import ConfigSet, MetadataRecord, PartitionChanged, TopicDeleted
from gapless.core.replicas import Replicas
from gapless.core.sessions import FetchSessions
from gapless.core.timers import Timers
from gapless.core.waiting import WaitingRequests
from gapless.core.watches import Watches
from gapless.wire.errors import ErrorCode


class Node:
    """The rules of one broker."""

    def __init__(
        self, node_id: int, cluster_id: str, settings: Settings, store: LogStore, randomness: Randomness
    ) -> None:
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.settings = settings
        self.store = store
        self.randomness = randomness
        self.now_ms = 0
        self.image = Image()
        self.replicas = Replicas(self)
        self.partitions = self.replicas.partitions
        self.failed_partitions = self.replicas.failed
        self.shards = self.replicas.shards
        self.waiting = WaitingRequests()
        self.watches = Watches()
        self.produce_queues = ProduceQueues()
        self.timers = Timers()
        self.compaction = Compaction(self)
        self.membership = Membership(self)
        self.sessions = FetchSessions(settings.get("max.incremental.fetch.session.cache.slots"), randomness)
        self.producer_ids: range = range(0)
        self.serving = False
        self._started = False
        self._effects: list[Effect] = []
        self._calls: dict[Call, Callable[[Any], None]] = {}
        self._touched: dict[TopicPartition, None] = {}
        self._changes: deque[Change] = deque()
        self._proposal: tuple[Change, Decision] | None = None
        self._flush_deadlines: list[tuple[int, TopicPartition]] = []
        self._retention_due_ms = NEVER_MS

    # ------------------------------------------------------------------------------------------ entry

    def step(self, now_ms: int, event: Event) -> list[Effect]:
        """Let one thing happen at `now_ms`; what must follow from it, in order."""
        self.now_ms = now_ms
        effects = self._effects = []
        if self.membership.pause.admits(event):
            self._dispatch(event)
        self._settle()
        return effects

    def _dispatch(self, event: Event) -> None:
        match event:
            case Request():
                self._on_request(event)
            case PeerAnswered():
                self._calls.pop(event.call)(event.message)
            case Flushed():
                self._on_flushed(event)
            case Tick():
                self._on_tick()
            case ConnectionClosed():
                self.waiting.drop_connection(event.connection)
                self.sessions.drop_connection(event.connection)
            case Committed():
                self._on_committed(event)
            case Refused():
                self._on_refused(event)
            case DiskFailed():
                self._on_disk_failed(event)
            case Started():
                self._on_started(event)
            case _:
                self._dispatch_membership(event)

    def _dispatch_membership(self, event: Event) -> None:
        match event:
            case PeerLost():
                self.membership.departures.suspect(event.node_id)
            case BrokerDied():
                self.membership.broker_died(event)
            case StopAsked():
                self.membership.stop_asked()
            case CaughtUp():
                for held in self.membership.pause.resume():
                    self._dispatch(held)
                self._on_tick()

    def next_deadline(self) -> int | None:
        """When to `Tick` next, if nothing else happens."""
        if self.membership.pause.holding:
            return None
        due_ms = self._retention_due_ms
        answer_ms = self.waiting.next_deadline()
        if answer_ms is not None and answer_ms < due_ms:
            due_ms = answer_ms
        timer_ms = self.timers.next_due()
        if timer_ms is not None and timer_ms < due_ms:
            due_ms = timer_ms
        if self._flush_deadlines:
            due_ms = min(due_ms, self._flush_deadlines[0][0])
        return None if due_ms == NEVER_MS else due_ms

    # ------------------------------------------------------------------------- services for API handlers

    def reply(self, request: Request, message: Any) -> None:
        """Answer a request now."""
        self._effects.append(Reply(request, message))

    def close(self, connection: int, reason: str) -> None:
        """End a connection."""
        self._effects.append(Close(connection, reason))

    def touch(self, partition: Partition) -> None:
        """Something that requests may wait for has changed in this partition."""
        self._touched[partition.name] = None

    def call(self, to: tuple[int, int, int], body: Any, timeout_ms: int, then: Callable[[Any], None]) -> None:
        """Ask another broker (its id, the API, the version); `then` gets the answer, or None for none."""
        call = Call(*to, body, timeout_ms)
        self._calls[call] = then
        self._effects.append(call)

    def tell(self, text: str, *, is_problem: bool = False) -> None:
        """Let the operator know, once."""
        self._effects.append(Tell(text, is_problem))

    def catch_up(self) -> None:
        """Ask for all that is in the journal."""
        self._effects.append(CatchUp())

    def stop(self) -> None:
        """Let the process end."""
        self._effects.append(Stop())

    def flush_later(self, partition: Partition) -> None:
        """After an append: see that it is flushed within the topic's flush.ms."""
        if partition.config.flush_ms != NEVER_MS and partition.flush_due_ms == NEVER_MS:
            partition.flush_due_ms = self.now_ms + partition.config.flush_ms
            heappush(self._flush_deadlines, (partition.flush_due_ms, partition.name))

    def save_producers(self) -> None:
        """Before a clean stop: keep what partitions know of their producers, so that nothing is replayed."""
        for partition in self.partitions.values():
            partition.save_producers()

    def change(self, request: Request, decide: Callable[[], Decision], failed: Callable[[str], Any]) -> None:
        """Answer a request by a change of the cluster's shape; `failed` makes the reply if it cannot be."""
        self.propose(
            Change(
                decide,
                done=lambda message: self.reply(request, message),
                failed=lambda reason: self.reply(request, failed(reason)),
            )
        )

    def propose(self, change: Change) -> None:
        """Queue a change: one is under way at a time, so each is decided on the newest image."""
        self._changes.append(change)
        self._propose_next()

    def new_uuid(self) -> UUID:
        """A random topic id, never one of Kafka's reserved ones (which begin with a zero half)."""
        while True:
            value = UUID(int=self.randomness.getrandbits(128), version=4)
            # Kafka prints ids in url-safe base64, and its tools take a leading "-" for an option.
            if value.bytes[0] >> 2 != 62:
                return value

    def topic(self, name: str | None, topic_id: UUID | None) -> Topic | None:
        """A topic by whichever of name and id the client gave."""
        if name is not None:
            return self.image.topics.get(name)
        return self.image.topics_by_id.get(topic_id) if topic_id is not None else None

    def absence(self, topic: str, partition: int) -> ErrorCode:
        """Why a partition is not among those that are open here."""
        if (topic, partition) in self.failed_partitions:
            return ErrorCode.KAFKA_STORAGE_ERROR
        known = self.image.topics.get(topic)
        if known is not None and 0 <= partition < len(known.partitions):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def dynamic_configs(self) -> tuple[dict[str, str], dict[str, str]]:
        """This broker's dynamic settings, and the cluster-wide ones."""
        configs = self.image.configs
        return configs.get((BROKER, str(self.node_id)), {}), configs.get((BROKER, ""), {})

    def topic_config(self, topic: str) -> TopicConfig:
        """A topic's settings in force."""
        return self.settings.topic_config(self.image.configs.get((TOPIC, topic), {}), *self.dynamic_configs())

    def mark_touched(self, name: TopicPartition) -> None:
        """Like `touch`, for a partition that is gone from here."""
        self._touched[name] = None

    # ----------------------------------------------------------------------------------------- requests

    def _on_request(self, request: Request) -> None:
        message = APIS[request.header.api_key].handler(self, request)
        if message is not None:
            self.reply(request, message)

    def _settle(self) -> None:
        """Look again at what waited for the partitions that this step touched."""
        while self._touched:
            name = next(iter(self._touched))
            del self._touched[name]
            partition = self.partitions.get(name)
            if partition is not None and partition.flush_wanted(self.now_ms):
                self._effects.append(Flush(name, partition.flush_started()))
            self.watches.touched(name)
            for request, message in self.waiting.touched(name):
                self.reply(request, message)

    # ----------------------------------------------------------------------------------------- the disk

    def _on_flushed(self, event: Flushed) -> None:
        partition = self.partitions.get(event.partition)
        if partition is not None:
            partition.flushed(event.offset)
            self.touch(partition)

    def _on_disk_failed(self, event: DiskFailed) -> None:
        partition = self.partitions.get(event.partition)
        if partition is not None:
            partition.offline = event.reason
            self.touch(partition)
            self.replicas.handover.consider(partition)

    # ------------------------------------------------------------------------------------------- time

    def _on_tick(self) -> None:
        for request, message in self.waiting.expired(self.now_ms):
            self.reply(request, message)
        self.timers.run_due(self.now_ms)
        while self._flush_deadlines and self._flush_deadlines[0][0] <= self.now_ms:
            partition = self.partitions.get(heappop(self._flush_deadlines)[1])
            if partition is None or partition.flush_due_ms > self.now_ms:
                continue  # flushed meanwhile, by number; a later deadline has an entry of its own
            if partition.flush_wanted(self.now_ms):
                self._effects.append(Flush(partition.name, partition.flush_started()))
            partition.flush_due_ms = NEVER_MS
        if self.now_ms >= self._retention_due_ms:
            self._retention_due_ms = self.now_ms + self.settings.get("log.retention.check.interval.ms")
            silence_ms = self.settings.get("producer.id.expiration.ms")
            for partition in self.partitions.values():
                partition.apply_retention(self.now_ms)
                partition.producers.expire(self.now_ms, silence_ms)

    # ---------------------------------------------------------------------------- the cluster's shape

    def _on_started(self, event: Started) -> None:
        """Open every log of ours, then lead under a new epoch: clients notice a log cut by a crash."""
        self._started = True
        for topic in list(self.image.topics.values()):
            for assignment in topic.partitions:
                self.replicas.take_up(topic, assignment)

        self.membership.register(event, then=self._begin_serving)

    def _begin_serving(self) -> None:
        self.serving = True
        self.replicas.begin_serving()
        self.compaction.begin()
        self._retention_due_ms = self.now_ms + self.settings.get("log.retention.check.interval.ms")
        self.membership.begin()

    def _propose_next(self) -> None:
        while self._proposal is None and self._changes:
            change = self._changes.popleft()
            decision = change.decide()
            if decision.records:
                self._proposal = (change, decision)
                self._effects.append(Propose(self.image.version, decision.records))
            else:
                change.done(decision.answer())

    def _on_committed(self, event: Committed) -> None:
        self._replay(event.records)
        self.image.version = event.version
        if event.own:
            if self._proposal is None:
                raise InvariantViolated("a proposal was committed that was never made")
            change, decision = self._proposal
            self._proposal = None
            change.done(decision.answer())
        self.membership.replayed(event.records)
        self._propose_next()

    def _on_refused(self, event: Refused) -> None:
        if self._proposal is None:
            raise InvariantViolated("a proposal was refused that was never made")
        change, _ = self._proposal
        self._proposal = None
        if event.retry:
            self._changes.appendleft(change)
        else:
            change.failed(event.reason)
        self._propose_next()

    def _replay(self, records: list[MetadataRecord]) -> None:
        reconfigured: dict[tuple[int, str], None] = {}
        for record in records:
            deleted = self.image.topics_by_id[record.topic_id] if isinstance(record, TopicDeleted) else None
            self.image.replay(record)
            if not self._started:
                continue
            if isinstance(record, PartitionChanged):
                self.replicas.take_up(self.image.topics_by_id[record.topic_id], record)
            elif isinstance(record, ConfigSet):
                reconfigured[record.resource_type, record.resource_name] = None
            elif deleted is not None:
                self.replicas.drop_topic(deleted)
        self.replicas.reconfigure(reconfigured)
