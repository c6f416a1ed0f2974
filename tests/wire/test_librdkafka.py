"""What librdkafka really sends, for every codec, through all of the wire."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer

from gapless.wire.apis import ApiKey
from gapless.wire.batch import check_batch
from gapless.wire.frames import FrameReader
from gapless.wire.messages import ApiVersionsResponse, MetadataResponse
from gapless.wire.produce import ProducePartitionResult, ProduceRequest, ProduceResponse, ProduceTopicResult
from gapless.wire.records import CODECS, Record, iterate_records
from gapless.wire.request import RequestHeader, Response, decode_body, decode_header, encode_reply, peek

TOPIC = "numbers"
VERSIONS = {
    ApiKey.PRODUCE: 10,
    ApiKey.METADATA: 12,
    ApiKey.API_VERSIONS: 3,
    # Never asked for, but without them librdkafka sends batches of format 1, and no lz4.
    ApiKey.FETCH: 16,
    ApiKey.FIND_COORDINATOR: 2,
}


class OneTopic:
    """Just enough of a broker for a producer: it keeps the payloads it was sent."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]

    def serve(self) -> None:
        """Serve connections, each to its end, until the listener is closed."""
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve_one, args=(connection,), daemon=True).start()

    def _serve_one(self, connection: socket.socket) -> None:
        reader = FrameReader(10_000_000)
        with connection:
            while count := connection.recv_into(reader.get_buffer(-1)):
                for frame in reader.received(count):
                    connection.sendall(
                        b"".join(part for part in self._answer(frame) if isinstance(part, bytes))
                    )

    def _answer(self, frame: memoryview) -> list[object]:
        key, version, correlation_id = peek(frame)
        if key == ApiKey.API_VERSIONS and version > VERSIONS[ApiKey.API_VERSIONS]:
            header = RequestHeader(key, 0, correlation_id, None)
            return [*encode_reply(header, ApiVersionsResponse(error_code=35, api_keys=[]))]
        header, offset = decode_header(frame)
        request = decode_body(header, frame, offset)
        reply: Response
        if isinstance(request, ProduceRequest):
            reply = self._produce(request)
        elif key == ApiKey.METADATA:
            reply = self._metadata()
        else:
            ranges = [
                ApiVersionsResponse.ApiVersion(api_key=int(api), min_version=0, max_version=version)
                for api, version in VERSIONS.items()
            ]
            reply = ApiVersionsResponse(error_code=0, api_keys=ranges)
        return [*encode_reply(header, reply)]

    def _produce(self, request: ProduceRequest) -> ProduceResponse:
        (topic,) = request.topics
        (partition,) = topic.partitions
        assert partition.payload is not None
        self.payloads.append(bytes(partition.payload))
        result = ProducePartitionResult(partition.partition, base_offset=len(self.payloads))
        return ProduceResponse([ProduceTopicResult(topic.name, None, [result])])

    def _metadata(self) -> MetadataResponse:
        partition = MetadataResponse.MetadataResponseTopic.MetadataResponsePartition(
            partition_index=0,
            leader_id=1,
            leader_epoch=0,
            replica_nodes=[1],
            isr_nodes=[1],
            offline_replicas=[],
        )
        return MetadataResponse(
            brokers=[MetadataResponse.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port)],
            cluster_id="tests",
            controller_id=1,
            topics=[MetadataResponse.MetadataResponseTopic(name=TOPIC, partitions=[partition])],
        )


@contextmanager
def one_topic() -> Iterator[OneTopic]:
    broker = OneTopic()
    thread = threading.Thread(target=broker.serve, daemon=True)
    thread.start()
    try:
        yield broker
    finally:
        broker.listener.shutdown(socket.SHUT_RDWR)
        broker.listener.close()
        thread.join(timeout=10)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_batches_of_librdkafka_are_accepted_and_read(codec: str) -> None:
    sent = [
        Record(0, 1_000_000 + i, b"k%d" % i, b"value %d " % i * 9, (("n", b"%d" % i),)) for i in range(3000)
    ]
    with one_topic() as broker:
        producer = Producer(
            {"bootstrap.servers": f"127.0.0.1:{broker.port}", "compression.type": codec, "linger.ms": 50}
        )
        for record in sent:
            producer.produce(
                TOPIC, record.value, record.key, timestamp=record.timestamp_ms, headers=list(record.headers)
            )
        assert producer.flush(30) == 0
    received: list[Record] = []
    for payload in broker.payloads:
        batch = check_batch(memoryview(payload))
        assert batch.compression == CODECS[codec]
        received += iterate_records(payload, batch)
    assert [record._replace(offset=0) for record in received] == sent
