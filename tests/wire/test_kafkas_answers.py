"""What Apache Kafka answers to odd batches is still what `odd_batches` says."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse

from gapless.wire.errors import ErrorCode
from tests.servers import ApacheBehindProxy
from tests.wire.odd_batches import CASES, GOOD, Case, three_records

TOPIC = "wire-odd-batches"


@pytest.fixture(scope="module")
def kafka(apache_of_session: ApacheBehindProxy) -> Iterator[socket.socket]:
    """A connection to a running Apache Kafka that has the topic."""
    bootstrap = apache_of_session.node.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for created in admin.create_topics([NewTopic(TOPIC, 1, 1)]).values():
        created.result()
    host, _, port = bootstrap.partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        while answer(connection, GOOD, version=12) != ErrorCode.NONE:
            time.sleep(0.02)  # the partition has no leader yet
        yield connection


def answer(connection: socket.socket, payload: bytes, version: int) -> ErrorCode:
    data = ProduceRequest.TopicProduceData.PartitionProduceData(index=0, records=payload)
    topic = ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[data])
    request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic], version=version)
    request.with_header(correlation_id=1, client_id="tests")
    connection.sendall(request.encode(version=version, header=True, framed=True))
    length = struct.unpack(">i", received(connection, 4))[0]
    reply = ProduceResponse.decode(received(connection, length), version=version, header=True)
    return ErrorCode(reply.responses[0].partition_responses[0].error_code)


def received(connection: socket.socket, count: int) -> bytes:
    content = b""
    while len(content) < count:
        chunk = connection.recv(count - len(content))
        assert chunk, "Apache Kafka closed the connection"
        content += chunk
    return content


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kafka_answers_an_odd_batch_as_we_think_it_does(kafka: socket.socket, case: Case) -> None:
    assert answer(kafka, case.payload, version=12) == case.kafka


def test_kafka_refuses_zstd_before_version_7(kafka: socket.socket) -> None:
    assert answer(kafka, three_records(4), version=6) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert answer(kafka, three_records(4), version=7) == ErrorCode.NONE
