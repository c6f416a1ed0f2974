"""Bytes that are no request: the connection ends with one line in the log, and nobody else notices."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from random import Random

import pytest

from tests.broker.conftest import BrokerMaker
from tests.broker.process import Broker, unhurt
from tests.broker.raw import (
    ApiVersionsResponse,
    MetadataRequest,
    RawClient,
    correlation_of,
    decode_reply,
    frame_of,
    framed,
)

METADATA, API_VERSIONS = 3, 18


def header(api_key: int, version: int, client_id: bytes = b"\xff\xff") -> bytes:
    return struct.pack(">hhi", api_key, version, 7) + client_id


def metadata_of(count: int) -> bytes:
    return framed(header(METADATA, 1) + struct.pack(">i", count) + b"\x00\x01t" * 3)


BROKEN = {
    "a negative length": struct.pack(">i", -1),
    "the smallest length": struct.pack(">i", -(2**31)),
    "the largest length": struct.pack(">i", 2**31 - 1) + b"x" * 100,
    "a length just above the limit": struct.pack(">i", 100 * 2**20 + 1),
    "an empty frame": framed(b""),
    "a frame that ends within its header": framed(b"\x00\x12\x00"),
    "garbage": b"\xde\xad\xbe\xef" * 100,
    "a frame of random bytes": framed(Random(1).randbytes(300)),
    "a client id beyond the end": framed(header(METADATA, 1, b"\x7f\xff") + b"abc"),
    "a client id of negative length": framed(header(METADATA, 1, b"\xff\xfe")),
    "a client id that is not UTF-8": framed(header(METADATA, 1, b"\x00\x02") + b"\xff\xff\xff\xff\xff\xff"),
    "a body that ends too early": metadata_of(4),
    "an array of two billion": metadata_of(2**31 - 1),
    "an array of negative length": metadata_of(-2),
    "a name that is null": framed(header(METADATA, 1) + struct.pack(">i", 1) + b"\xff\xff"),
    "an unknown API": framed(header(9999, 0) + bytes(20)),
    "a negative API": framed(header(-1, 0) + bytes(20)),
    "a version that is too new": framed(header(METADATA, 99) + bytes(20)),
    "a negative version": framed(header(METADATA, -1) + bytes(20)),
    "a version that is too old": framed(header(0, 2) + bytes(20)),
}


@pytest.fixture(autouse=True)
def _few_refusals_per_second() -> Iterator[None]:
    """The broker tells of ten refusals a second, and each of these tests wants to see its own."""
    yield
    time.sleep(0.11)


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
def test_what_is_no_request_ends_the_connection_with_one_line(broker: Broker, data: bytes) -> None:
    with unhurt(broker), broker.connect() as client:
        client.send(data)
        client.wait_until_closed()
        (line,) = broker.lines_about(client)
    assert "WARNING closing connection from" in line
    assert "Traceback" not in broker.said()


@pytest.mark.parametrize(
    ("hello", "expected"),
    [
        (bytes.fromhex("16030102000100 01fc0303") + Random(2).randbytes(200), "looks like TLS"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "looks like HTTP"),
        (b"POST /topics HTTP/1.1\r\n\r\n", "looks like HTTP"),
    ],
)
def test_a_client_of_another_protocol_is_recognised_in_the_log(
    broker: Broker, hello: bytes, expected: str
) -> None:
    with broker.connect() as client:
        client.send(hello)
        client.wait_until_closed()
        (line,) = broker.lines_about(client)
    assert expected in line


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
def test_api_versions_of_an_unknown_version_is_answered_in_version_0_with_the_list(
    broker: Broker, version: int
) -> None:
    with broker.connect() as client:
        expected = client.api_versions()
        client.send(framed(header(API_VERSIONS, version) + b"whatever"))
        frame = client.receive_frame()
        reply = decode_reply(ApiVersionsResponse, 0, frame)
        assert (correlation_of(frame), reply.error_code) == (7, 35)
        assert {api.api_key: (api.min_version, api.max_version) for api in reply.api_keys} == expected
        assert client.metadata().brokers  # and the connection is as good as before


def test_lengths_cost_no_memory_before_their_bytes_arrive(broker: Broker) -> None:
    clients: list[RawClient] = []
    before = broker.pss_mb()
    with unhurt(broker):
        for _ in range(100):
            client = broker.connect()
            clients.append(client)
            client.send(struct.pack(">i", 100 * 2**20) + b"only these bytes")
        with broker.connect() as other:
            other.api_versions()  # by now all have been read
        assert broker.pss_mb() - before < 10
        for client in clients:
            client.close()


def test_a_connection_that_ends_within_a_request_is_forgotten(broker: Broker) -> None:
    frame = frame_of(MetadataRequest(topics=None), 9)
    with unhurt(broker):
        for cut in range(1, len(frame)):
            with broker.connect() as client:
                client.send(frame[:cut])
        with broker.connect() as client:
            client.send(frame[:-1])
            client.socket.shutdown(1)  # no more from us; the broker has nothing to answer
            client.wait_until_closed()


def test_a_frame_may_arrive_byte_by_byte(broker: Broker) -> None:
    with broker.connect() as client:
        for byte in frame_of(MetadataRequest(topics=None), 9, correlation_id=11):
            client.send(bytes((byte,)))
        assert correlation_of(client.receive_frame()) == 11


def test_many_refusals_in_a_second_are_summed_up(start_broker: BrokerMaker) -> None:
    broker = start_broker()
    with ExitStack() as clients:
        # All are connected first, so that even a slow machine refuses more than ten within a second.
        refused = [clients.enter_context(broker.connect()) for _ in range(30)]
        for client in refused:
            client.api_versions()
        for client in refused:
            client.send(struct.pack(">i", -1))
        for client in refused:
            client.wait_until_closed()
    assert "more connections" in broker.wait_until_said("WARNING closed ")
