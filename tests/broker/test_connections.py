"""Connections that misbehave: slow, deaf, half-way, too many. Memory stays bounded, decent clients unhurt."""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import ExitStack, suppress

import pytest

from gapless.broker.server import KEPT_BYTES
from gapless.wire.messages import CreateTopicsRequest, CreateTopicsResponse
from tests.broker.conftest import BrokerMaker
from tests.broker.process import Broker, unhurt, wait_until
from tests.broker.raw import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ClosedByBroker,
    FetchResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceResponse,
    RawClient,
    batch_of,
    correlation_of,
    decode_reply,
    fetch_request,
    frame_of,
    produce_request,
)

MB = 2**20


def create_topic(client: RawClient, name: str, partitions: int = 1, **configs: str) -> None:
    topic_type = CreateTopicsRequest.CreatableTopic
    topic = topic_type(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        assignments=[],
        configs=[
            topic_type.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000, validate_only=False)
    (result,) = client.call(request, 5, CreateTopicsResponse).topics
    assert result.error_code == 0, result


def send_until_stuck(client: RawClient, frame: bytes, at_most: int) -> int:
    """Send a frame over and over, reading nothing, until the broker takes no more; how many it took."""
    client.socket.settimeout(0.5)
    data = memoryview(frame * at_most)
    sent = 0
    try:
        while sent < len(data):
            sent += client.socket.send(data[sent : sent + MB])
    except TimeoutError:
        pass
    except (ConnectionResetError, BrokenPipeError) as error:
        raise ClosedByBroker from error
    return sent // len(frame)


# ----------------------------------------------------------------------------------------------- slow ones


def test_a_client_that_sends_a_byte_now_and_then_or_nothing_at_all_is_closed(
    start_broker: BrokerMaker,
) -> None:
    broker = start_broker(config={"connections.max.idle.ms": "1000"})
    frame = frame_of(MetadataRequest(topics=None), 9) + bytes(1000)
    with unhurt(broker), broker.connect() as dripping, broker.connect() as silent:
        stopping = threading.Event()

        def drip() -> None:
            try:
                for byte in struct.pack(">i", 10_000) + frame:
                    dripping.send(bytes((byte,)))
                    if stopping.wait(0.05):
                        return
            except ClosedByBroker:
                pass  # what the test waits for

        thread = threading.Thread(target=drip)
        thread.start()
        dripping.wait_until_closed()
        silent.wait_until_closed()
        stopping.set()
        thread.join()
        for client in (dripping, silent):
            (line,) = broker.lines_about(client)
            assert "no progress for 1 s" in line


def test_nobody_is_idle_because_the_broker_did_not_run(start_broker: BrokerMaker) -> None:
    broker = start_broker(config={"connections.max.idle.ms": "1000"})
    with broker.connect() as client:
        client.api_versions()
        broker.pause()
        client.send_message(ApiVersionsRequest(), 0)
        time.sleep(3)
        broker.resume()
        assert client.receive_message(ApiVersionsResponse, 0).api_keys


def test_a_client_that_never_reads_is_not_read_from_and_then_closed(start_broker: BrokerMaker) -> None:
    broker = start_broker(config={"connections.max.idle.ms": "1000"})
    with broker.connect() as client:
        create_topic(client, "wide", partitions=100)
    before = broker.pss_mb()
    frame = frame_of(MetadataRequest(topics=None), 9)
    with unhurt(broker), ExitStack() as clients:
        deaf = [clients.enter_context(broker.connect(receive_buffer_bytes=4096)) for _ in range(4)]
        for client in deaf:
            with suppress(ClosedByBroker):  # at once, if this machine takes a second for the next line
                assert send_until_stuck(client, frame, at_most=200_000) < 200_000
        assert broker.pss_mb() - before < 40
        for client in deaf:
            (line,) = broker.lines_about(client)
            assert "no progress" in line


def test_records_wait_on_disk_and_not_in_memory_for_a_client_that_never_reads(
    start_broker: BrokerMaker,
) -> None:
    broker = start_broker()
    with broker.connect() as client:
        client.metadata("large")
        for _ in range(40):
            assert client.produce("large", batch_of(bytes(MB - 200))).error_code == 0
    before = broker.pss_mb()
    with unhurt(broker), ExitStack() as clients:
        for _ in range(10):
            deaf = clients.enter_context(broker.connect(receive_buffer_bytes=4096))
            send_until_stuck(deaf, frame_of(fetch_request("large", 0, max_bytes=40 * MB), 11), at_most=50)
        assert broker.pss_mb() - before < 40


def test_half_sent_requests_are_held_within_their_budget(start_broker: BrokerMaker) -> None:
    broker = start_broker(config={"queued.max.request.bytes": str(16 * MB)})
    half = struct.pack(">i", 90 * MB) + bytes(3 * MB)
    before = broker.pss_mb()
    with unhurt(broker), ExitStack() as clients:
        halves = [clients.enter_context(broker.connect()) for _ in range(60)]
        for client in halves:
            client.send(half)
        wait_until(lambda: "queued.max.request.bytes" in broker.said(), "the first is closed")
        halves[0].wait_until_closed()  # who began first has made the least progress
        kept_mb = KEPT_BYTES / MB  # of what was freed, for the next requests
        assert broker.pss_mb() - before < 16 + kept_mb + 16, "of 180 MB that were sent"


# ------------------------------------------------------------------------------------------------ too many


def test_connections_beyond_the_limit_are_closed_until_others_go(start_broker: BrokerMaker) -> None:
    broker = start_broker(config={"max.connections": "5"})
    with ExitStack() as clients:
        accepted = [clients.enter_context(broker.connect()) for _ in range(5)]
        for client in accepted:
            client.api_versions()
        with broker.connect() as sixth:
            sixth.wait_until_closed()
            (line,) = broker.lines_about(sixth)
            assert "max.connections" in line
        for client in accepted:
            client.api_versions()
        accepted[0].close()

        def there_is_room() -> bool:
            with broker.connect() as client:
                try:
                    client.api_versions()
                except ClosedByBroker:
                    return False
            return True

        wait_until(there_is_room, "the place is free again")


def test_connections_cannot_take_the_descriptors_that_logs_need(start_broker: BrokerMaker) -> None:
    broker = start_broker(prefix=("/bin/sh", "-c", 'ulimit -n 100; exec "$@"', "sh"))
    with unhurt(broker), ExitStack() as clients:
        crowd = [clients.enter_context(broker.connect()) for _ in range(150)]
        crowd[-1].wait_until_closed()
        # Those that were let in can work, new logs included.
        crowd[0].metadata("new")
        assert crowd[0].produce("new", batch_of(b"record")).error_code == 0
        for client in crowd:
            client.close()


# ------------------------------------------------------------------------------------------------ pipelines


def test_thousands_of_requests_in_one_write_are_answered_in_their_order(broker: Broker) -> None:
    count = 3000
    frames = b"".join(
        frame_of(
            ApiVersionsRequest() if number % 2 else MetadataRequest(topics=[]), 0 if number % 2 else 1, number
        )
        for number in range(count)
    )
    with unhurt(broker), broker.connect() as client:
        sender = threading.Thread(target=client.send, args=(frames,))
        sender.start()
        assert [correlation_of(client.receive_frame()) for _ in range(count)] == list(range(count))
        sender.join()


def test_a_request_that_waits_holds_back_the_replies_behind_it(broker: Broker) -> None:
    with unhurt(broker), broker.connect() as client:
        client.metadata("ordered")
        client.send(
            frame_of(fetch_request("ordered", 0, max_wait_ms=300, min_bytes=10_000), 11, 1)
            + frame_of(MetadataRequest(topics=None), 9, 2)
            + frame_of(produce_request("ordered", batch_of(b"record")), 9, 3)
            + frame_of(ApiVersionsRequest(), 0, 4)
        )
        replies = [client.receive_frame() for _ in range(4)]
    assert [correlation_of(reply) for reply in replies] == [1, 2, 3, 4]
    assert decode_reply(FetchResponse, 11, replies[0]).responses[0].partitions[0].records == b""
    assert decode_reply(MetadataResponse, 9, replies[1]).topics
    assert decode_reply(ProduceResponse, 9, replies[2]).responses[0].partition_responses[0].error_code == 0
    assert decode_reply(ApiVersionsResponse, 0, replies[3]).api_keys


def test_appends_that_wait_for_the_disk_are_answered_in_their_order(broker: Broker) -> None:
    with broker.connect() as client:
        create_topic(client, "strict", flush_messages="1")
        client.metadata("lax")
        topics = ["strict", "lax", "strict", "lax", "lax", "strict"] * 20
        client.send(
            b"".join(
                frame_of(produce_request(topic, batch_of(b"record")), 9, number)
                for number, topic in enumerate(topics)
            )
        )
        for number, topic in enumerate(topics):
            frame = client.receive_frame()
            reply = decode_reply(ProduceResponse, 9, frame).responses[0]
            assert (correlation_of(frame), reply.name) == (number, topic)
            assert reply.partition_responses[0].error_code == 0
            assert reply.partition_responses[0].base_offset == topics[:number].count(topic)


def test_a_client_that_works_the_broker_hard_shares_it_with_others(broker: Broker) -> None:
    """Requests that take long each must not be worked through in one go, though they came in one piece."""
    with broker.connect() as client:
        create_topic(client, "broad", partitions=200)
    frames = frame_of(MetadataRequest(topics=None), 9) * 300
    with unhurt(broker) as bystander, broker.connect() as client:
        sender = threading.Thread(target=client.send, args=(frames,))
        sender.start()
        for _ in range(300):
            client.receive_frame()
        sender.join()
    assert bystander.rounds > 5


# ------------------------------------------------------------------------------------------------- leaving


@pytest.mark.parametrize("rudely", [False, True])
def test_what_waits_for_a_client_goes_with_its_connection(start_broker: BrokerMaker, rudely: bool) -> None:
    broker = start_broker(metrics=True)
    with unhurt(broker):
        clients = [broker.connect() for _ in range(10)]
        clients[0].metadata("awaited")
        for client in clients:
            client.send_message(fetch_request("awaited", 0, max_wait_ms=600_000), 11)
        wait_until(lambda: broker.scrape()["gapless_waiting_requests"] == 10, "all wait")
        for client in clients:
            if rudely:  # a reset instead of a proper end
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        wait_until(lambda: broker.scrape()["gapless_waiting_requests"] == 0, "nobody waits")
