"""A client of bare sockets that says exactly what a test wants said, right or wrong.

Requests are made of kafka-python's message classes, so nothing of the broker's own codec is trusted here.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Any, Self

import gapless.wire.kafka_package  # noqa: F401  must come before anything of kafka

# isort: split
from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest, MetadataResponse
from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse

from gapless.wire.records import build_batch

__all__ = [
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "ClosedByBroker",
    "FetchRequest",
    "FetchResponse",
    "MetadataRequest",
    "MetadataResponse",
    "Partition",
    "ProduceRequest",
    "ProduceResponse",
    "RawClient",
    "batch_of",
    "correlation_of",
    "decode_reply",
    "fetch_request",
    "frame_of",
    "framed",
    "produce_request",
]

PATIENCE_S = 20.0
Partition = ProduceRequest.TopicProduceData.PartitionProduceData


class ClosedByBroker(Exception):
    """The broker ended the connection."""


class RawClient:
    """One connection."""

    def __init__(self, address: str, *, receive_buffer_bytes: int | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect((host, int(port)))
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    @property
    def name(self) -> str:
        """What the broker calls this connection in its log."""
        host, port = self.socket.getsockname()
        return f"{host}:{port}"

    # ------------------------------------------------------------------------------------------- bytes

    def send(self, data: bytes | bytearray | memoryview) -> None:
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ClosedByBroker from error

    def receive_exactly(self, size: int) -> bytes:
        parts = []
        while size:
            try:
                part = self.socket.recv(min(size, 1 << 20))
            except ConnectionResetError as error:
                raise ClosedByBroker from error
            if not part:
                raise ClosedByBroker
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self.receive_exactly(4))
        return self.receive_exactly(size)

    def wait_until_closed(self) -> None:
        """Read on until the broker ends the connection."""
        while True:
            try:
                if not self.socket.recv(1 << 16):
                    return
            except ConnectionResetError:
                return

    # ---------------------------------------------------------------------------------------- messages

    def send_message(self, message: Any, version: int) -> int:
        """Send a request; its correlation id."""
        self._correlation_id += 1
        self.send(frame_of(message, version, self._correlation_id))
        return self._correlation_id

    def receive_message(self, response: Any, version: int) -> Any:
        """The next reply, taken for one to the request that was sent last."""
        return decode_reply(response, version, self.receive_frame())

    def call(self, message: Any, version: int, response: Any) -> Any:
        correlation_id = self.send_message(message, version)
        frame = self.receive_frame()
        if correlation_of(frame) != correlation_id:
            raise AssertionError(f"reply {correlation_of(frame)} to request {correlation_id}")
        return decode_reply(response, version, frame)

    # ------------------------------------------------------------------------------------ common calls

    def api_versions(self) -> dict[int, tuple[int, int]]:
        reply = self.call(ApiVersionsRequest(), 0, ApiVersionsResponse)
        return {api.api_key: (api.min_version, api.max_version) for api in reply.api_keys}

    def metadata(self, *topics: str, create: bool = True) -> Any:
        """Describe topics, creating missing ones; all topics if none is named."""
        asked = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        message = MetadataRequest(topics=asked or None, allow_auto_topic_creation=create)
        return self.call(message, 9, MetadataResponse)

    def produce(self, topic: str, batch: bytes | bytearray, *, partition: int = 0, acks: int = -1) -> Any:
        """Send one batch; the partition's result."""
        reply = self.call(produce_request(topic, batch, partition, acks), 9, ProduceResponse)
        return reply.responses[0].partition_responses[0]

    def fetch(self, topic: str, offset: int, *, partition: int = 0, **options: int) -> Any:
        """Read from one partition without a session; the partition's result."""
        reply = self.call(fetch_request(topic, offset, partition, **options), 11, FetchResponse)
        return reply.responses[0].partitions[0]


def frame_of(message: Any, version: int, correlation_id: int = 1, client_id: str | None = "raw") -> bytes:
    """A request as it goes over the wire, its length in front."""
    message.API_VERSION = version
    message.with_header(correlation_id=correlation_id, client_id=client_id)
    return framed(message.encode(version=version, header=True))


def framed(body: bytes | bytearray | memoryview) -> bytes:
    return struct.pack(">i", len(body)) + bytes(body)


def correlation_of(frame: bytes) -> int:
    return int(struct.unpack_from(">i", frame)[0])


def decode_reply(response: Any, version: int, frame: bytes) -> Any:
    return response.decode(frame, version=version, header=True)


def batch_of(*values: bytes, **options: Any) -> bytearray:
    """One batch, as a good client sends it."""
    timestamp_ms = options.pop("timestamp_ms", int(time.time() * 1000))
    return build_batch([(timestamp_ms, None, value) for value in values], **options)


def produce_request(
    topic: str, batch: bytes | bytearray | None, partition: int = 0, acks: int = -1, timeout_ms: int = 10_000
) -> Any:
    part = Partition(index=partition, records=None if batch is None else bytes(batch))
    data = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
    return ProduceRequest(transactional_id=None, acks=acks, timeout_ms=timeout_ms, topic_data=[data])


def fetch_request(
    topic: str,
    offset: int,
    partition: int = 0,
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    copies: int = 1,
) -> Any:
    """A fetch of one partition, `copies` times over."""
    part = FetchRequest.FetchTopic.FetchPartition(
        partition=partition,
        current_leader_epoch=-1,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=max_bytes,
    )
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[part] * copies)],
        forgotten_topics_data=[],
        rack_id="",
    )
