"""The simulator's world for tests that play by hand: with clients, and shapes of the cluster as they want.

Messages between nodes go through the real encoding where records are in them. Each pair of nodes has one
connection per direction and purpose, with answers in the order of requests, as the shell keeps them.
Everything is deterministic: the same calls give the same run.

    world = ClusterWorld(3)
    world.create_topic("t", replicas=(1, 2, 3))
    answer = world.produce(1, "t", batch(b"x"))
    world.run(100)
    assert answer.done
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from gapless.core.contract import Request
from gapless.core.records import ConfigSet, MetadataRecord, PartitionChanged, TopicCreated
from gapless.simulator.world import Host, World
from gapless.wire.apis import ApiKey
from gapless.wire.batch import parse_header
from gapless.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from gapless.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from gapless.wire.records import iterate_records
from gapless.wire.request import RequestHeader

__all__ = ["Answer", "ClusterWorld", "Host"]


FIRST_CLIENT_CONNECTION = 1_000_000


@dataclass(eq=False)
class Answer:
    """What became of a client's request; `message` is its reply once `done`."""

    request: Request
    node_id: int
    done: bool = False
    message: Any = None

    @property
    def partition(self) -> Any:
        """The first partition's result of a produce or fetch response."""
        if not self.done:
            raise AssertionError("the request still waits")
        return self.message.topics[0].partitions[0]


class ClusterWorld(World):
    """What `World` does, with clients, and shapes of the cluster made by hand."""

    def __init__(self, brokers: int = 3, *, started: bool = True, **options: Any) -> None:
        self._answers: dict[Request, Answer] = {}
        self._clients = FIRST_CLIENT_CONNECTION
        super().__init__(brokers, started=False, **options)
        self.network.through_bytes = True
        if started:
            for node_id in self.hosts:
                self.start(node_id)
            self.run(50)

    def crash(self, node_id: int, *, noticed: bool = True) -> None:
        for answer in list(self._answers.values()):
            if answer.node_id == node_id:
                del self._answers[answer.request]
        super().crash(node_id, noticed=noticed)

    def replied(self, request: Request, message: Any) -> None:
        answer = self._answers.pop(request, None)
        if answer is None:
            super().replied(request, message)
        else:
            answer.done, answer.message = True, message

    # ---------------------------------------------------------------------------------------- clients

    def send(
        self, node_id: int, key: ApiKey, version: int, body: Any, connection: int | None = None
    ) -> Answer:
        """Send a client's request; its answer comes when it comes."""
        if connection is None:
            self._clients += 1
            connection = self._clients
        request = Request(connection, RequestHeader(int(key), version, 0, "test"), body)
        answer = self._answers[request] = Answer(request, node_id)
        self.step(node_id, request)
        return answer

    def produce(
        self,
        node_id: int,
        topic: str,
        *payloads: bytes | bytearray,
        acks: int = -1,
        partition: int = 0,
        timeout_ms: int = 1000,
    ) -> Answer:
        payload = memoryview(bytearray(b"".join(payloads)))
        parts = [ProducePartition(partition, payload)]
        body = ProduceRequest(None, acks, timeout_ms, [ProduceTopic(topic, None, parts)])
        return self.send(node_id, ApiKey.PRODUCE, 11, body)

    def consume(self, node_id: int, topic: str, offset: int = 0, partition: int = 0, **more: Any) -> Answer:
        """One fetch of a consumer."""
        parts = [FetchPartition(partition, fetch_offset=offset, max_bytes=1 << 20)]
        body = FetchRequest(topics=[FetchTopic(topic, None, parts)], **more)
        return self.send(node_id, ApiKey.FETCH, 11, body)

    def values(
        self, node_id: int, topic: str = "t", partition: int = 0, *, below: int | None = None
    ) -> list[bytes]:
        """The values of all records in a replica's log, in order; below an offset if given."""
        log = self.partition(node_id, topic, partition).log
        end = log.end_offset if below is None else below
        found: list[bytes] = []
        offset = log.start_offset
        while offset < end and (data := log.bytes_from(offset, 1 << 20)):
            view = memoryview(data)
            position = 0
            while position < len(view):
                header = parse_header(view, position)
                found += [
                    bytes(record.value)
                    for record in iterate_records(view, header)
                    if record.value is not None and record.offset < end and not header.is_control
                ]
                position += header.size_bytes
                offset = header.next_offset
        return found

    # ------------------------------------------------------------------------------ shapes made by hand

    def create_topic(
        self,
        name: str = "t",
        partitions: int = 1,
        *,
        replicas: tuple[int, ...] = (1, 2, 3),
        isr: tuple[int, ...] | None = None,
        leader: int | None = None,
        **configs: str,
    ) -> UUID:
        """Append a topic to the journal and let everybody see it. All partitions have the same replicas."""
        topic_id = UUID(int=self.random.getrandbits(128), version=4)
        flushed = configs.get("flush_messages") == "1"
        records: list[MetadataRecord] = [TopicCreated(name, topic_id, flushed)]
        records += [ConfigSet(2, name, key.replace("_", "."), value) for key, value in configs.items()]
        records += [
            PartitionChanged(
                topic_id, index, replicas[0] if leader is None else leader, 0, replicas, isr or replicas
            )
            for index in range(partitions)
        ]
        self.append(*records)
        self.run(5)
        return topic_id

    def assignment(self, topic: str = "t", partition: int = 0) -> PartitionChanged:
        """What the journal says of a partition."""
        return self.journal.image.topics[topic].partitions[partition]

    def elect(self, leader: int, topic: str = "t", partition: int = 0, **changes: Any) -> None:
        """Make a node lead, under a new epoch; `changes` to other fields (isr=...)."""
        now = self.assignment(topic, partition)
        changed = replace(
            now,
            leader=leader,
            leader_epoch=now.leader_epoch + 1,
            partition_epoch=now.partition_epoch + 1,
            **changes,
        )
        self.append(changed)

    def change(self, topic: str = "t", partition: int = 0, **changes: Any) -> None:
        """Change a partition's assignment under the same leader epoch."""
        now = self.assignment(topic, partition)
        self.append(replace(now, partition_epoch=now.partition_epoch + 1, **changes))
