"""The protocol itself, request by request: what no client would send, versions that none would choose.

Messages are kafka-python's, so that our own codec is not its own judge.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import crc32c
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest
from kafka.protocol.parser import KafkaProtocol
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest
from kafka.record import MemoryRecords, MemoryRecordsBuilder

from .clients import Deadline
from .sample import AN_HOUR_AGO_MS, Record

ANSWER_TIMEOUT_S = 20.0
NEWEST_PRODUCE_BY_NAME = 12
NEWEST_FETCH_BY_NAME = 12
_SIZE_AT, _SIZE_END, _CRC_AT, _ATTRIBUTES_AT = 8, 12, 17, 21
_CODEC_MASK = 7


class RawClient:
    """One connection. Made by `connected`."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._protocol = KafkaProtocol(client_id="compat-raw")
        self._answers: list[Any] = []

    def send(self, request: Any) -> None:
        self._protocol.send_request(request)
        self._connection.sendall(self._protocol.send_bytes())

    def receive(self) -> Any:
        """The next answer; ConnectionError if the broker closed the connection instead."""
        while not self._answers:
            received = self._connection.recv(1 << 20)
            if not received:
                raise ConnectionError("closed by the broker")
            self._answers += [answer for _, answer in self._protocol.receive_bytes(received)]
        return self._answers.pop(0)

    def ask(self, request: Any) -> Any:
        self.send(request)
        return self.receive()

    def expect(self, request: Any, correlation_id: int) -> None:
        """What was sent as bytes is to be answered like this request."""
        self._protocol.send_request(request, correlation_id)
        self._protocol.send_bytes()

    def send_bytes(self, data: bytes) -> None:
        self._connection.sendall(data)

    def is_closed_by_broker(self) -> bool:
        """Wait for the end of the connection; false if something else came."""
        try:
            return self._connection.recv(1) == b""
        except ConnectionResetError:
            return True

    def api_versions(self) -> dict[int, tuple[int, int]]:
        answer = self.ask(ApiVersionsRequest(version=0))
        return {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}

    def new_producer_id(self) -> int:
        asked = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000, version=1)
        answer = self.ask(asked)
        if answer.error_code:
            raise RuntimeError(f"no producer id: error {answer.error_code}")
        return int(answer.producer_id)

    def topic_id(self, topic: str) -> UUID:
        wanted = MetadataRequest.MetadataRequestTopic(name=topic)
        answer = self.ask(MetadataRequest(topics=[wanted], allow_auto_topic_creation=False, version=12))
        (found,) = answer.topics
        return UUID(str(found.topic_id))

    def wait_for_leaders(self, topic: str, partitions: int) -> None:
        """Until every partition answers: the first writes to a new topic must not need a second try."""
        deadline = Deadline(f"leaders of {topic}")
        while deadline.open():
            (found,) = self.ask(list_offsets_request(topic, range(partitions), version=7)).topics
            if not any(place.error_code for place in found.partitions):
                return

    def wait_until_unknown(self, topic: str) -> None:
        """Until a deleted topic has gone from metadata."""
        deadline = Deadline(f"end of {topic}")
        wanted = MetadataRequest.MetadataRequestTopic(name=topic)
        while deadline.open():
            asked = MetadataRequest(topics=[wanted], allow_auto_topic_creation=False, version=12)
            (found,) = self.ask(asked).topics
            if found.error_code:
                return

    def produce(
        self,
        topic: str | UUID,
        payload: bytes,
        *,
        partition: int = 0,
        acks: int = -1,
        version: int = NEWEST_PRODUCE_BY_NAME,
    ) -> Any:
        """The answer for the one partition."""
        answer = self.ask(produce_request(topic, payload, partition=partition, acks=acks, version=version))
        (responded,) = answer.responses
        (outcome,) = responded.partition_responses
        return outcome

    def fetch(
        self, topic: str, *, partition: int = 0, leader_epoch: int = -1, version: int = NEWEST_FETCH_BY_NAME
    ) -> Any:
        """The answer for the one partition from its beginning, outside of any session."""
        wanted = [fetch_partition(partition, 0, leader_epoch)]
        answer = self.ask(fetch_request({topic: wanted}, version=version))
        (responded,) = answer.responses
        (outcome,) = responded.partitions
        return outcome


def produce_request(
    topic: str | UUID, payload: bytes, *, partition: int = 0, acks: int = -1, version: int
) -> Any:
    topics = ProduceRequest.TopicProduceData
    part = topics.PartitionProduceData(index=partition, records=payload)
    named = {"topic_id": topic} if isinstance(topic, UUID) else {"name": topic}
    return ProduceRequest(
        transactional_id=None,
        acks=acks,
        timeout_ms=10_000,
        topic_data=[topics(partition_data=[part], **named)],
        version=version,
    )


def list_offsets_request(topic: str, partitions: Iterable[int], *, version: int) -> Any:
    """Asks where the partitions end."""
    topics = ListOffsetsRequest.ListOffsetsTopic
    places = [
        topics.ListOffsetsPartition(partition_index=partition, current_leader_epoch=-1, timestamp=-1)
        for partition in partitions
    ]
    return ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=[topics(name=topic, partitions=places)], version=version
    )


def fetch_partition(partition: int, offset: int, leader_epoch: int = -1) -> Any:
    return FetchRequest.FetchTopic.FetchPartition(
        partition=partition,
        current_leader_epoch=leader_epoch,
        fetch_offset=offset,
        log_start_offset=-1,
        partition_max_bytes=1_000_000,
    )


def fetch_request(
    topics: dict[str, list[Any]] | dict[UUID, list[Any]],
    *,
    forgotten: Sequence[Any] = (),
    session_id: int = 0,
    session_epoch: int = -1,
    version: int = NEWEST_FETCH_BY_NAME,
) -> Any:
    wanted = [
        FetchRequest.FetchTopic(
            **({"topic_id": topic} if isinstance(topic, UUID) else {"topic": topic}), partitions=partitions
        )
        for topic, partitions in topics.items()
    ]
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=100,
        min_bytes=1,
        max_bytes=10_000_000,
        isolation_level=0,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=wanted,
        forgotten_topics_data=list(forgotten),
        version=version,
    )


def batch(
    values: Sequence[bytes], *, producer_id: int = -1, epoch: int = -1, sequence: int = -1, codec: int = 0
) -> bytes:
    """A record batch as a client makes it."""
    builder = MemoryRecordsBuilder(
        magic=2,
        compression_type=codec,
        batch_size=10_000_000,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    for value in values:
        builder.append(timestamp=AN_HOUR_AGO_MS, key=None, value=value)
    builder.close()
    return bytes(builder.buffer())


def tampered(made: bytes, form: str, position: int, value: int) -> bytes:
    """A batch with a field overwritten, and the checksum as if that were meant."""
    changed = bytearray(made)
    struct.pack_into(form, changed, position, value)
    struct.pack_into(">I", changed, _CRC_AT, crc32c.crc32c(changed[_ATTRIBUTES_AT:]))
    return bytes(changed)


def records_in(payload: bytes) -> list[Record]:
    """The records of fetched batches."""
    return [
        Record(record.value, record.key, tuple(record.headers), record.timestamp, 0, record.offset)
        for each in MemoryRecords(payload)
        for record in each
    ]


def codecs_in(payload: bytes) -> list[int]:
    """The number of each batch's compression."""
    codecs, position = [], 0
    while position + _ATTRIBUTES_AT + 2 <= len(payload):
        (attributes,) = struct.unpack_from(">h", payload, position + _ATTRIBUTES_AT)
        codecs.append(attributes & _CODEC_MASK)
        position += _SIZE_END + struct.unpack_from(">i", payload, position + _SIZE_AT)[0]
    return codecs


@contextmanager
def connected(bootstrap: str) -> Iterator[RawClient]:
    """A connection for the time of the block."""
    host, port = bootstrap.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=ANSWER_TIMEOUT_S) as connection:
        yield RawClient(connection)
