"""When records reach the disk: the flush policies, and one flush for many who wait."""

from __future__ import annotations

import threading

from tests.broker.conftest import BrokerMaker
from tests.broker.process import Broker, wait_until
from tests.broker.raw import ProduceResponse, RawClient, batch_of, frame_of, produce_request
from tests.broker.test_connections import create_topic

PRODUCERS = 12
EACH = 40


def flushes(broker: Broker) -> int:
    return int(broker.scrape()["gapless_flushes_total"])


def test_each_policy_flushes_when_it_says(start_broker: BrokerMaker) -> None:
    broker = start_broker(metrics=True)
    with broker.connect() as client:
        client.metadata("lax")
        create_topic(client, "strict", flush_messages="1")
        create_topic(client, "every-ten", flush_messages="10")
        create_topic(client, "timed", flush_ms="50")
        before = flushes(broker)
        for _ in range(30):
            client.produce("lax", batch_of(b"record"))
        assert flushes(broker) == before  # the page cache has it
        for _ in range(30):
            client.produce("strict", batch_of(b"record"))
        assert flushes(broker) == before + 30  # each before its acknowledgement: nobody else waited
        before = flushes(broker)
        client.produce("timed", batch_of(b"record"))
        wait_until(lambda: flushes(broker) == before + 1, "time is up")
        # Last, because nothing shows when the last flush of this topic has been counted.
        before = flushes(broker)
        for _ in range(30):
            client.produce("every-ten", batch_of(b"record"))
        wait_until(lambda: flushes(broker) > before, "ten records are flushed")
        assert flushes(broker) <= before + 3


def test_a_flush_by_number_does_not_cancel_the_next_one_by_time(start_broker: BrokerMaker) -> None:
    """The deadline of what was flushed already came while a later one was set, and took that with it."""
    broker = start_broker(metrics=True)
    with broker.connect() as client:
        create_topic(client, "both", flush_messages="3", flush_ms="400")
        before = flushes(broker)
        client.produce("both", batch_of(b"begins to wait"))
        client.produce("both", batch_of(b"two", b"three"))
        wait_until(lambda: flushes(broker) > before, "three are flushed")
        before = flushes(broker)
        client.produce("both", batch_of(b"begins to wait anew"))
        wait_until(lambda: flushes(broker) > before, "time is up")


def test_one_flush_serves_all_who_wait(start_broker: BrokerMaker) -> None:
    broker = start_broker(metrics=True)
    with broker.connect() as client:
        create_topic(client, "strict", flush_messages="1")
    before = flushes(broker)
    problems: list[BaseException] = []
    together = threading.Barrier(PRODUCERS)

    def produce(client: RawClient) -> None:
        try:
            frame = frame_of(produce_request("strict", batch_of(b"record")), 9)
            together.wait()
            client.send(frame * EACH)  # they wait together, however slow this machine is to ask
            for _ in range(EACH):
                reply = client.receive_message(ProduceResponse, 9).responses[0]
                assert reply.partition_responses[0].error_code == 0
        except BaseException as problem:
            problems.append(problem)

    clients = [broker.connect() for _ in range(PRODUCERS)]
    threads = [threading.Thread(target=produce, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for client in clients:
        client.close()
    assert problems == []
    taken = flushes(broker) - before
    assert 0 < taken < PRODUCERS * EACH / 2
    with broker.connect() as client:
        assert client.fetch("strict", 0).high_watermark == PRODUCERS * EACH


def test_nothing_is_readable_before_it_is_on_disk_though_it_was_there_before_a_crash(
    start_broker: BrokerMaker,
) -> None:
    broker = start_broker(metrics=True)
    with broker.connect() as client:
        create_topic(client, "strict", flush_messages="1")
        for _ in range(10):
            client.produce("strict", batch_of(b"record"))
    broker.kill()
    broker.start()
    with broker.connect() as client:
        wait_until(lambda: client.fetch("strict", 0).high_watermark == 10, "what was found is flushed")
    assert flushes(broker) >= 1


def test_a_topic_of_the_same_name_does_not_inherit_what_was_flushed(start_broker: BrokerMaker) -> None:
    """Deleted and made anew over and over, under load: every acknowledged record is a flushed one."""
    broker = start_broker(metrics=True)
    with broker.connect() as client:
        for _ in range(10):
            create_topic(client, "again", flush_messages="1")
            before = flushes(broker)
            for _ in range(3):
                assert client.produce("again", batch_of(b"record")).error_code == 0
            assert flushes(broker) >= before + 3
            delete_topic(client, "again")


def delete_topic(client: RawClient, name: str) -> None:
    from gapless.wire.messages import DeleteTopicsRequest, DeleteTopicsResponse

    request = DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000)
    assert client.call(request, 3, DeleteTopicsResponse).responses[0].error_code == 0
