"""A small world for the rules: one node, virtual time, a journal and disk that obey the test.

Nothing here knows a rule. Requests are built from names and values, replies are returned as messages; time
passes when the test says so, and a flush or a journal write completes when the test lets it.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any
from uuid import UUID

from gapless.core.configs import Settings
from gapless.core.contract import (
    Close,
    Committed,
    ConnectionClosed,
    DiskFailed,
    Effect,
    Event,
    Flush,
    Flushed,
    Propose,
    Refused,
    Reply,
    Request,
    Started,
    Tick,
    TopicPartition,
)
from gapless.core.node import Node
from gapless.core.records import MetadataRecord
from gapless.storage.memory import MemoryFlushJob, MemoryLogStore
from gapless.wire.apis import ApiKey
from gapless.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from gapless.wire.messages import CreateTopicsRequest
from gapless.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from gapless.wire.records import build_batch
from gapless.wire.request import RequestHeader


class World:
    """One node from its first start; `restart` keeps journal and disk."""

    def __init__(self, *, seed: int = 7, now_ms: int = 1_000_000, **settings: str) -> None:
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.random = Random(seed)
        self.now_ms = now_ms
        self.store = MemoryLogStore()
        self.journal: list[list[MetadataRecord]] = []
        self.trace: list[tuple[int, str]] = []
        self.hold_flushes = False
        self.hold_journal = False
        self.flushes: list[Flush] = []
        self.proposals: list[Propose] = []
        self.start()

    def start(self) -> None:
        self.replies: dict[int, Any] = {}
        self.requests: list[Request] = []
        self.closed: dict[int, str] = {}
        self.node = Node(0, "test-cluster", Settings(self.settings), self.store, self.random)
        records = [record for proposal in self.journal for record in proposal]
        self.step(Committed(len(self.journal), records))
        self.step(Started("127.0.0.1", 9092))

    def restart(self) -> None:
        """The process dies and comes back; what is on disk and in the journal stays."""
        self.flushes.clear()
        self.proposals.clear()
        self.start()

    # -------------------------------------------------------------------------------------- the shell

    def step(self, event: Event) -> list[Effect]:
        effects = self.node.step(self.now_ms, event)
        self.trace.append((self.now_ms, repr(event)))
        for effect in effects:
            self.trace.append((self.now_ms, repr(effect)))
            match effect:
                case Reply(request, message):
                    self.replies[id(request)] = message
                case Flush():
                    self.flushes.append(effect)
                case Propose():
                    self.proposals.append(effect)
                case Close(connection, reason):
                    self.closed[connection] = reason
        if not self.hold_flushes:
            self.finish_flushes()
        if not self.hold_journal:
            self.commit()
        return effects

    def finish_flushes(self) -> None:
        while self.flushes:
            flush = self.flushes.pop(0)
            self.reach_disk(flush)
            self.step(Flushed(flush.partition, flush.offset))

    def reach_disk(self, flush: Flush) -> None:
        """What is to be flushed is on disk, though the node has not heard of it."""
        if flush.partition in self.store.logs:
            self.store.logs[flush.partition].flushed(MemoryFlushJob(flush.offset))

    def power_cut(self) -> None:
        """The machine loses its power: what was not flushed is gone."""
        self.store.power_cut()
        self.restart()

    def fail_flushes(self, reason: str) -> None:
        while self.flushes:
            self.step(DiskFailed(self.flushes.pop(0).partition, reason))

    def commit(self) -> None:
        while self.proposals:
            proposal = self.proposals.pop(0)
            if proposal.expected_version != len(self.journal):
                self.step(Refused("the journal moved on", retry=True))
            else:
                self.journal.append(proposal.records)
                self.step(Committed(len(self.journal), proposal.records, own=True))

    def refuse(self, reason: str) -> None:
        self.proposals.pop(0)
        self.step(Refused(reason, retry=False))

    def commit_foreign(self, records: list[MetadataRecord]) -> None:
        """Somebody else's records enter the journal first."""
        self.journal.append(records)
        self.step(Committed(len(self.journal), records))

    def advance(self, ms: int) -> None:
        """Let time pass, ticking whenever the node asked for it."""
        end = self.now_ms + ms
        while (due := self.node.next_deadline()) is not None and due <= end:
            self.now_ms = max(self.now_ms, due)
            self.step(Tick())
        self.now_ms = end

    def disconnect(self, connection: int) -> None:
        self.step(ConnectionClosed(connection))

    # -------------------------------------------------------------------------------------- requests

    def send(self, key: ApiKey, version: int, body: Any, connection: int = 1) -> Request:
        request = Request(connection, RequestHeader(int(key), version, 0, "test"), body)
        self.requests.append(request)  # so that no later one can have its identity
        self.step(request)
        return request

    def reply(self, request: Request) -> Any:
        """The reply to a request; fails if there is none yet."""
        return self.replies[id(request)]

    def answered(self, request: Request) -> bool:
        return id(request) in self.replies

    def call(self, key: ApiKey, version: int, body: Any, connection: int = 1) -> Any:
        return self.reply(self.send(key, version, body, connection))

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> UUID:
        topic_type = CreateTopicsRequest.CreatableTopic
        body = CreateTopicsRequest(
            topics=[
                topic_type(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=1,
                    assignments=[],
                    configs=[
                        topic_type.CreatableTopicConfig(name=key.replace("_", "."), value=value)
                        for key, value in configs.items()
                    ],
                )
            ],
            timeout_ms=1000,
            validate_only=False,
        )
        (result,) = self.call(ApiKey.CREATE_TOPICS, 7, body).topics
        if result.error_code:
            raise AssertionError(result)
        topic_id: UUID = result.topic_id
        return topic_id

    def produce_request(
        self,
        topic: str,
        *payloads: bytes | bytearray,
        acks: int = -1,
        partition: int = 0,
        timeout_ms: int = 1000,
    ) -> ProduceRequest:
        payload = memoryview(bytearray(b"".join(payloads)))
        parts = [ProducePartition(partition, payload)]
        return ProduceRequest(None, acks, timeout_ms, [ProduceTopic(topic, None, parts)])

    def produce(self, topic: str, *payloads: bytes | bytearray, **options: int) -> Any:
        """Send one produce request; the partition's result (fails if it waits)."""
        message = self.call(ApiKey.PRODUCE, 11, self.produce_request(topic, *payloads, **options))
        return message.topics[0].partitions[0]

    def fetch_request(
        self,
        topic: str,
        offset: int = 0,
        *,
        partition: int = 0,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        **more: Any,
    ) -> FetchRequest:
        parts = [FetchPartition(partition, fetch_offset=offset, max_bytes=1 << 20)]
        return FetchRequest(
            max_wait_ms=max_wait_ms, min_bytes=min_bytes, topics=[FetchTopic(topic, None, parts)], **more
        )

    def fetch(self, topic: str, offset: int = 0, **options: Any) -> Any:
        """Send one fetch request; the partition's result."""
        return (
            self.call(ApiKey.FETCH, 11, self.fetch_request(topic, offset, **options)).topics[0].partitions[0]
        )

    def partition(self, topic: str, index: int = 0) -> Any:
        return self.node.partitions[TopicPartition(topic, index)]


def batch(
    *values: bytes, producer: tuple[int, int] = (-1, -1), sequence: int = -1, timestamp_ms: int = 1_000_000
) -> bytearray:
    """One batch of records, as a client would send it."""
    return build_batch(
        [(timestamp_ms, None, value) for value in values],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=sequence,
    )


def numbered(values: Iterable[int]) -> list[bytes]:
    return [str(value).encode() for value in values]
