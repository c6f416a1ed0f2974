"""The protocol itself, request by request: what no client would send, versions that none would choose.

Messages are kafka-python's, so that our own codec is not its own judge.
"""

from __future__ import annotations

import socket
import struct
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from uuid import UUID

import crc32c
from kafka.protocol.admin import DeleteRecordsRequest, DescribeProducersRequest, DescribeTransactionsRequest
from kafka.protocol.admin.groups import DeleteGroupsRequest, DescribeGroupsRequest
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest
from kafka.protocol.consumer.group import OffsetFetchRequest
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.parser import KafkaProtocol
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    WriteTxnMarkersRequest,
)
from kafka.record import MemoryRecords, MemoryRecordsBuilder

from gapless.core.shard import shard_of
from gapless.wire.errors import ErrorCode

from .clients import Deadline
from .sample import AN_HOUR_AGO_MS, Record

ANSWER_TIMEOUT_S = 20.0
NEWEST_PRODUCE_BY_NAME = 12
NEWEST_FETCH_BY_NAME = 12
GROUP, TRANSACTION = 0, 1
"""FindCoordinator's types of keys."""
COORDINATORS = 50
"""Partitions of each internal topic. One coordinator is in charge of each."""
_LOADING = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
)
_SIZE_AT, _SIZE_END, _CRC_AT, _ATTRIBUTES_AT = 8, 12, 17, 21
_CODEC_MASK = 7

_NEW_PRODUCER = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000, version=1)

Address = tuple[str, int]
Place = tuple[str | UUID, int]


class Connection:
    """One connection to one broker."""

    def __init__(self, address: Address, client_socket: socket.socket) -> None:
        self.address = address
        self._socket = client_socket
        self._protocol = KafkaProtocol(client_id="compat-raw")
        self._answers: list[Any] = []

    def send(self, request: Any) -> None:
        self._protocol.send_request(request)
        self._socket.sendall(self._protocol.send_bytes())

    def receive(self) -> Any:
        """Return the next answer; ConnectionError if the broker closed the connection instead."""
        while not self._answers:
            received = self._socket.recv(1 << 20)
            if not received:
                raise ConnectionError("closed by the broker")
            self._answers += [answer for _, answer in self._protocol.receive_bytes(received)]
        return self._answers.pop(0)

    def ask(self, request: Any) -> Any:
        self.send(request)
        return self.receive()

    def expect(self, request: Any, correlation_id: int) -> None:
        """Decode the answer to bytes that were sent as if they had been this request."""
        self._protocol.send_request(request, correlation_id)
        self._protocol.send_bytes()

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def is_closed_by_broker(self) -> bool:
        """Wait for the end of the connection; false if something else came."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def metadata(self, *topics: str | UUID) -> Any:
        """Return what this broker knows of all brokers and some topics, none of which it creates."""
        wanted = MetadataRequest.MetadataRequestTopic
        named = [
            wanted(topic_id=topic, name=None) if isinstance(topic, UUID) else wanted(name=topic)
            for topic in topics
        ]
        return self.ask(MetadataRequest(topics=named, allow_auto_topic_creation=False, version=12))


class RawClient:
    """Sends each request to the broker in charge of it: a partition's leader or a coordinator.

    Other requests go to the first broker, because any broker answers them. Each broker has one connection.
    Look-ups have a connection of their own, because a request that waits delays the requests behind it.
    Made by `connected`.
    """

    def __init__(self, bootstrap: str, sockets: ExitStack) -> None:
        self._bootstrap = [_address(part) for part in bootstrap.split(",")]
        self._sockets = sockets
        self._connections: dict[Address, Connection] = {}
        self._directory = self._connect(self._bootstrap[0])
        self._coordinators: dict[tuple[int, str], Connection] = {}
        self._asked: deque[Connection] = deque()

    # ------------------------------------------------------------------------------------------ requests

    def send(self, request: Any) -> None:
        connection = self._in_charge(request)
        connection.send(request)
        if request.expect_response():
            self._asked.append(connection)

    def receive(self) -> Any:
        """Return the answer to the earliest request that has none yet."""
        return self._asked.popleft().receive()

    def ask(self, request: Any) -> Any:
        self.send(request)
        return self.receive()

    # ------------------------------------------------------------------------------------------- brokers

    @property
    def first_broker(self) -> Connection:
        return self._connection(self._bootstrap[0])

    def brokers(self) -> dict[int, Connection]:
        """Return a connection to each broker, by its id."""
        found = self._directory.metadata().brokers
        return {broker.node_id: self._connection((broker.host, broker.port)) for broker in found}

    def leader(self, topic: str | UUID, partition: int = 0) -> Connection:
        """Return the connection to a partition's leader; to the first broker if there is none."""
        found = self._directory.metadata(topic)
        addresses = {broker.node_id: (broker.host, broker.port) for broker in found.brokers}
        for place in found.topics[0].partitions:
            if place.partition_index == partition and place.leader_id in addresses:
                return self._connection(addresses[place.leader_id])
        return self.first_broker

    def coordinator(self, key_type: int, key: str) -> Connection:
        """Return the connection to the coordinator of a group or a transactional id, which has loaded it."""
        if (key_type, key) not in self._coordinators:
            deadline = Deadline(f"coordinator of {key}")
            asked = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key], version=4)
            while deadline.open():
                (found,) = self._directory.ask(asked).coordinators
                if found.error_code:
                    continue
                connection = self._connection((found.host, found.port))
                if _has_loaded(connection, key_type, key):
                    self._coordinators[key_type, key] = connection
                    break
        return self._coordinators[key_type, key]

    def _in_charge(self, request: Any) -> Connection:
        kind = type(request)
        if kind in _PARTITIONS:
            topic, partition = next(iter(_PARTITIONS[kind](request)), (None, 0))
            return self.first_broker if topic is None else self.leader(topic, partition)
        key_type, key = _coordinator_key(request)
        return self.coordinator(key_type, key) if key else self.first_broker

    def _connection(self, address: Address) -> Connection:
        if address not in self._connections:
            self._connections[address] = self._connect(address)
        return self._connections[address]

    def _connect(self, address: Address) -> Connection:
        opened = socket.create_connection(address, timeout=ANSWER_TIMEOUT_S)
        return Connection(address, self._sockets.enter_context(opened))

    # ---------------------------------------------------------------------------------------- short cuts

    def api_versions(self) -> dict[int, tuple[int, int]]:
        answer = self.ask(ApiVersionsRequest(version=0))
        return {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}

    def wait_until_ready(self) -> None:
        """Wait for what brokers prepare only when it is first requested: producer ids and coordinators."""
        deadline = Deadline("producer ids")
        for broker in self.brokers().values():
            while broker.ask(_NEW_PRODUCER).error_code:
                deadline.open()
        keys = {shard_of(key, COORDINATORS): key for key in map(str, range(20 * COORDINATORS))}
        for key_type in (GROUP, TRANSACTION):
            for key in keys.values():
                self.coordinator(key_type, key)

    def new_producer_id(self) -> int:
        answer = self.ask(_NEW_PRODUCER)
        if answer.error_code:
            raise RuntimeError(f"no producer id: error {answer.error_code}")
        return int(answer.producer_id)

    def topic_id(self, topic: str) -> UUID:
        (found,) = self._directory.metadata(topic).topics
        return UUID(str(found.topic_id))

    def wait_for_leaders(self, topic: str, partitions: int) -> None:
        """Wait until all brokers know the topic and every leader serves it.

        The first request to a new topic must not need a second try.
        """
        deadline = Deadline(f"leaders of {topic}")
        while not self._is_served(topic, partitions):
            deadline.open()

    def _is_served(self, topic: str, partitions: int) -> bool:
        brokers = self.brokers()
        led: dict[int, list[int]] = {}
        for broker in brokers.values():
            led = defaultdict(list)
            for place in broker.metadata(topic).topics[0].partitions:
                led[place.leader_id].append(place.partition_index)
            if sum(map(len, led.values())) < partitions or not led.keys() <= brokers.keys():
                return False
        for leader, indexes in led.items():
            (found,) = brokers[leader].ask(list_offsets_request(topic, indexes, version=7)).topics
            if any(place.error_code for place in found.partitions):
                return False
        return True

    def wait_until_unknown(self, topic: str) -> None:
        """Wait until a deleted topic is gone from all brokers' metadata."""
        deadline = Deadline(f"end of {topic}")
        while not all(broker.metadata(topic).topics[0].error_code for broker in self.brokers().values()):
            deadline.open()

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


def _named(topic: Any) -> str | UUID:
    """Return how a Produce or Fetch request names a topic: by name, or from version 13 on by id."""
    name = getattr(topic, "name", None) or getattr(topic, "topic", None)
    return name or UUID(str(topic.topic_id))


# The partitions of requests that only their leader answers, in the request's order.
_PARTITIONS: dict[type, Callable[[Any], Iterator[Place]]] = {
    ProduceRequest: lambda asked: (
        (_named(topic), part.index) for topic in asked.topic_data for part in topic.partition_data
    ),
    FetchRequest: lambda asked: (
        (_named(topic), part.partition) for topic in asked.topics for part in topic.partitions
    ),
    ListOffsetsRequest: lambda asked: (
        (topic.name, part.partition_index) for topic in asked.topics for part in topic.partitions
    ),
    OffsetForLeaderEpochRequest: lambda asked: (
        (topic.topic, part.partition) for topic in asked.topics for part in topic.partitions
    ),
    DeleteRecordsRequest: lambda asked: (
        (topic.name, part.partition_index) for topic in asked.topics for part in topic.partitions
    ),
    DescribeProducersRequest: lambda asked: (
        (topic.name, index) for topic in asked.topics for index in topic.partition_indexes
    ),
    WriteTxnMarkersRequest: lambda asked: (
        (topic.name, index)
        for marker in asked.markers
        for topic in marker.topics
        for index in topic.partition_indexes
    ),
}


def _coordinator_key(request: Any) -> tuple[int, str]:
    """Return the type and the key whose coordinator answers a request. Any broker does if the key is empty.

    A request about several groups goes to the coordinator of the first group.
    """
    match request:
        case DescribeGroupsRequest():
            return GROUP, request.groups[0]
        case DeleteGroupsRequest():
            return GROUP, request.groups_names[0]
        case OffsetFetchRequest(version=int(version)) if version >= 8:
            return GROUP, request.groups[0].group_id
        case DescribeTransactionsRequest():
            return TRANSACTION, request.transactional_ids[0]
        case AddPartitionsToTxnRequest(version=int(version)) if version >= 4:
            return TRANSACTION, request.transactions[0].transactional_id
        case AddPartitionsToTxnRequest():
            return TRANSACTION, request.v3_and_below_transactional_id
        case InitProducerIdRequest() | AddOffsetsToTxnRequest() | EndTxnRequest():
            return TRANSACTION, request.transactional_id or ""
    return GROUP, getattr(request, "group_id", "")


def _has_loaded(coordinator: Connection, key_type: int, key: str) -> bool:
    """Whether a coordinator serves a key: it may have become the key's coordinator just now."""
    if key_type == GROUP:
        (found,) = coordinator.ask(DescribeGroupsRequest(groups=[key], version=5)).groups
    else:
        asked = DescribeTransactionsRequest(transactional_ids=[key], version=0)
        (found,) = coordinator.ask(asked).transaction_states
    return found.error_code not in _LOADING


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
    """A client whose connections end with the block."""
    with ExitStack() as sockets:
        yield RawClient(bootstrap, sockets)


def _address(text: str) -> Address:
    host, port = text.rsplit(":", 1)
    return host, int(port)
