"""The network that fails as it is told: before our broker, and before Apache Kafka."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from struct import pack
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from gapless.testing import EmbeddedBroker, Fate, FaultProxy
from gapless.testing.apache_kafka import ApacheKafka
from gapless.testing.processes import free_ports
from gapless.testing.proxy import ProxyFailed
from gapless.testing.proxy.faults import Network
from gapless.testing.proxy.frames import ConnectionCut, Cutter, Verdict, read_request_head
from gapless.testing.proxy.link import End, Link
from gapless.testing.quiet import quiet_logger
from tests.broker.process import wait_until

PATIENCE_S = 30


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture(scope="module")
def whole_proxy(broker: EmbeddedBroker) -> Iterator[FaultProxy]:
    with FaultProxy([1], rename=True) as running:
        running.forward(1, broker.bootstrap)
        yield running


@pytest.fixture
def proxy(whole_proxy: FaultProxy) -> FaultProxy:
    whole_proxy.heal()
    return whole_proxy


def producer_at(bootstrap: str, **settings: object) -> Producer:
    return Producer({"bootstrap.servers": bootstrap, "logger": quiet_logger(), **settings})


def admin_at(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def send(producer: Producer, topic: str, value: bytes = b"x") -> float:
    """Send one record; how long it took until it was acknowledged."""
    started = time.monotonic()
    producer.produce(topic, value, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    return time.monotonic() - started


def count_in(bootstrap: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "logger": quiet_logger()})
    try:
        end: int = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_S)[1]
        return end
    finally:
        consumer.close()


def test_clients_stay_behind_the_proxy_and_notice_nothing(broker: EmbeddedBroker, proxy: FaultProxy) -> None:
    admin = admin_at(proxy.bootstrap)
    (seen,) = admin.list_topics(timeout=PATIENCE_S).brokers.values()
    assert f"{seen.host}:{seen.port}" == proxy.address(1) != broker.bootstrap
    producer = producer_at(proxy.bootstrap)
    for number in range(10_000):
        producer.produce("many", b"%d" % number, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer({"bootstrap.servers": proxy.bootstrap, "group.id": "g", "logger": quiet_logger()})
    consumer.assign([TopicPartition("many", 0, 0)])
    values = [int(message.value() or b"") for message in consumer.consume(10_000, timeout=PATIENCE_S)]
    consumer.close()
    assert values == list(range(10_000))


def test_a_lost_ack_is_a_write_that_happened(broker: EmbeddedBroker, proxy: FaultProxy) -> None:
    """C2: without idempotence the second attempt is a second copy."""
    before = proxy.acks_lost
    proxy.lose_acks(2)
    send(producer_at(proxy.bootstrap), "lost")
    assert proxy.acks_lost == before + 2
    assert count_in(broker.bootstrap, "lost") == 3


def test_who_wants_no_ack_does_not_use_up_a_lost_one(proxy: FaultProxy) -> None:
    before = proxy.acks_lost
    proxy.lose_acks(1)
    careless = producer_at(proxy.bootstrap, acks=0)
    send(careless, "careless")
    assert proxy.acks_lost == before
    send(producer_at(proxy.bootstrap, **{"enable.idempotence": True}), "careless")
    assert proxy.acks_lost == before + 1


def test_a_slow_broker_is_slow_each_way(proxy: FaultProxy) -> None:
    producer = producer_at(proxy.bootstrap)
    send(producer, "slow")
    proxy.slow(1, 100)
    assert send(producer, "slow") >= 0.2
    proxy.slow(1, 0)
    wait_until(lambda: send(producer, "slow") < 0.2, "it is as quick as before")


def test_an_isolated_broker_is_silent_and_goes_on_where_it_stood(
    broker: EmbeddedBroker, proxy: FaultProxy
) -> None:
    producer = producer_at(proxy.bootstrap)
    send(producer, "isolated")
    proxy.isolate(1)
    newcomer = admin_at(proxy.bootstrap)
    with pytest.raises(KafkaException):
        newcomer.list_topics(timeout=0.5)
    producer.produce("isolated", b"x", partition=0)
    assert producer.flush(0.5) == 1  # still on its way
    proxy.heal()
    assert producer.flush(PATIENCE_S) == 0
    assert newcomer.list_topics(timeout=PATIENCE_S).brokers
    assert count_in(broker.bootstrap, "isolated") == 2


def test_a_broker_that_dies_takes_its_connections_with_it_and_comes_back() -> None:
    with FaultProxy([1], rename=True) as proxy, EmbeddedBroker() as broker:
        proxy.forward(1, broker.bootstrap)
        producer = producer_at(proxy.bootstrap, **{"enable.idempotence": True})
        send(producer, "t")
        broker.kill()
        producer.produce("t", b"y", partition=0)
        assert producer.flush(0.5) == 1
        broker.start()
        assert producer.flush(PATIENCE_S) == 0
        assert count_in(broker.bootstrap, "t") == 2


def test_what_cannot_be_is_refused() -> None:
    with FaultProxy([1, 2]) as proxy:
        with pytest.raises(ProxyFailed, match="there is no broker 3 behind the proxy: choose one of 1, 2"):
            proxy.isolate(3)
        with pytest.raises(ProxyFailed, match="takes two"):
            proxy.cut(1, 1)
    with pytest.raises(ProxyFailed, match="was closed"):
        proxy.heal()


# ------------------------------------------------------------------------------------------ Apache Kafka


@pytest.mark.slow
@pytest.mark.apache
def test_it_stands_before_apache_kafka() -> None:
    """By `advertised.listeners`: nobody finds Kafka's own port."""
    with FaultProxy([1]) as proxy:
        advertised = {"advertised.listeners": f"PLAINTEXT://{proxy.address(1)}"}
        with ApacheKafka(heap_mb=256, light=True, properties=advertised) as kafka:
            proxy.forward(1, kafka.bootstrap)
            admin = admin_at(proxy.bootstrap)
            admin.create_topics([NewTopic("t", 1, 1)])["t"].result(PATIENCE_S)
            proxy.lose_acks(1)
            send(producer_at(proxy.bootstrap, **{"enable.idempotence": True}), "t")
            assert (proxy.acks_lost, count_in(proxy.bootstrap, "t")) == (1, 1)
            proxy.isolate(1)
            producer = producer_at(proxy.bootstrap)
            producer.produce("t", b"x", partition=0)
            assert producer.flush(0.5) == 1  # still on its way
            proxy.heal()
            assert producer.flush(PATIENCE_S) == 0
            assert count_in(proxy.bootstrap, "t") == 2


# ----------------------------------------------------------------------------------------------- parts


def message(body: bytes) -> bytes:
    return pack(">i", len(body)) + body


def judging(*verdicts: Verdict) -> Callable[[bytes], Verdict]:
    remaining = iter(verdicts)
    return lambda head: next(remaining)


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 7, 100])
def test_messages_are_judged_however_they_are_cut_into_pieces(piece: int) -> None:
    stream = b"".join(message(body) for body in (b"first", b"", b"swallowed", b"changed", b"last" * 9))
    cutter = Cutter(
        4,
        judging(Verdict.PASS, Verdict.PASS, Verdict.SWALLOW, Verdict.CHANGE, Verdict.PASS),
        lambda whole: whole.upper(),
    )
    passed = b"".join(cutter.feed(stream[at : at + piece]) for at in range(0, len(stream), piece))
    assert passed == b"".join(message(body) for body in (b"first", b"", b"CHANGED", b"last" * 9))


@pytest.mark.parametrize(("verdict", "rest"), [(Verdict.CUT, b""), (Verdict.TEAR, message(b"second")[:5])])
def test_what_came_before_a_cut_still_passes(verdict: Verdict, rest: bytes) -> None:
    cutter = Cutter(4, judging(Verdict.PASS, verdict), bytes)
    with pytest.raises(ConnectionCut) as cut:
        cutter.feed(message(b"first") + message(b"second") + message(b"third"))
    assert cut.value.passed == message(b"first") + rest


@pytest.mark.parametrize(
    ("client_id", "sender"),
    [
        ("gapless-broker-3", 3),
        ("broker-2-fetcher-0", 2),
        ("broker-12-txn-marker-sender", 12),
        ("my-broker-3", None),
        ("rdkafka", None),
    ],
)
def test_brokers_are_known_by_their_names(client_id: str, sender: int | None) -> None:
    head = pack(">hhih", 1, 12, 77, len(client_id)) + client_id.encode() + b"\x00" * 20
    seen = read_request_head(head)
    assert seen is not None
    assert (seen.sender, seen.correlation_id, seen.wants_answer) == (sender, 77, True)


def test_cuts_are_symmetric_and_leave_clients_alone() -> None:
    network = Network(isolated=[4], cuts=[(1, 2)], slow_ms={3: 10})
    assert network.blocks(1, 2)
    assert network.blocks(2, 1)
    assert not network.blocks(None, 1)
    assert not network.blocks(3, 1)
    assert network.blocks(None, 4)
    assert network.blocks(4, 1)
    assert (network.delay_s(None, 3), network.delay_s(3, 1), network.delay_s(None, 1)) == (0.01, 0.01, 0)
    assert Network.from_json(network.to_json()) == network


def test_every_fate_has_its_count(proxy: FaultProxy) -> None:
    before = proxy.fates
    proxy.decide([Fate.LOSE_REQUEST, Fate.TEAR_REQUEST, Fate.DELIVER])
    send(producer_at(proxy.bootstrap, **{"enable.idempotence": True}), "fates")
    assert proxy.fates - before == {Fate.LOSE_REQUEST: 1, Fate.TEAR_REQUEST: 1}


def test_a_port_of_nobody_is_closed_at_once() -> None:
    with FaultProxy([1]) as proxy:
        proxy.forward(1, f"127.0.0.1:{free_ports(1)[0]}")
        host, _, port = proxy.address(1).rpartition(":")
        with socket.create_connection((host, int(port)), PATIENCE_S) as client:
            assert client.recv(1) == b""  # An isolated broker would be silent instead.


def test_what_waited_for_an_end_that_is_gone_is_dropped() -> None:
    """A broker dies while it is cut off, and then the network heals."""

    class Gone:
        closed = 0

        def is_closing(self) -> bool:
            return True

        def write(self, data: bytes) -> None:
            raise RuntimeError("the handler is closed")

        def close(self) -> None:
            self.closed += 1

    link = SimpleNamespace(blocked=True, delay_s=0.0)
    end = End(cast("Link", link), Cutter(8, judging(), bytes))
    end.transport = gone = cast("Any", Gone())
    end.receive(b"late", 0.0)
    end.receive(None, 0.0)
    link.blocked = False
    end.deliver_early()
    assert gone.closed == 1
