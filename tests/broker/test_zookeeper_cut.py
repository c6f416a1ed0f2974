"""One broker is cut off from ZooKeeper alone: others and clients reach it, but it hears of no change (D4)."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from gapless.core.records import ProducerIdsReserved
from gapless.testing.zookeeper import ZooKeeper
from tests.broker.process import wait_until
from tests.broker.raw import PATIENCE_S, ClosedByBroker, RawClient, batch_of, produce_request
from tests.broker.test_cluster_failover import Writer, create, new_leader, read_all
from tests.broker.test_zookeeper import FarMember, FarMembers, meeting

CUT_OFF = 3


class Relay:
    """A way to ZooKeeper that can be cut: what is sent is swallowed, and nobody is told."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._is_cut = self._misleads = False
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def cut(self) -> None:
        self._is_cut = True

    def mislead_once(self) -> None:
        """All connections end, and the next one is taken but never answered."""
        self._misleads = True
        self._end_all()

    def heal(self) -> None:
        """New connections come through; old ones end."""
        self._is_cut = False
        self._end_all()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self._end_all()

    def _end_all(self) -> None:
        with self._lock:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
            self._open.clear()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            if self._misleads:
                self._misleads = False
                with self._lock:
                    self._open.append(client)
                continue
            server = socket.create_connection(self._target)
            with self._lock:
                self._open += [client, server]
            for pair in ((client, server), (server, client)):
                threading.Thread(target=self._copy, args=pair, daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if not self._is_cut:
                    target.sendall(data)


@pytest.fixture
def relay(zookeeper: ZooKeeper) -> Iterator[Relay]:
    made = Relay(zookeeper.address)
    yield made
    made.close()


@pytest.fixture
def cluster(zookeeper: ZooKeeper, relay: Relay, tmp_path: Path) -> Iterator[FarMembers]:
    """Three brokers, of which the last reaches ZooKeeper through the relay."""
    name = tmp_path.name
    members = FarMembers(zookeeper.url(name), tmp_path)
    far = members[CUT_OFF]
    assert isinstance(far, FarMember)
    far.place = members.place.replace(zookeeper.address, relay.address)
    with contextlib.ExitStack() as held:
        for member in members:
            held.callback(member.close)
        members.start_all()
        yield members


def test_d4_a_broker_that_hears_nothing_of_zookeeper_acknowledges_nothing_that_is_lost(
    cluster: FarMembers, relay: Relay
) -> None:
    """Others lead in its place, and it learns from their answers that they know more: it serves nothing."""
    create(cluster, "t", CUT_OFF)
    with Writer(cluster, "t") as writer:
        relay.cut()
        new_leader(cluster, "t", CUT_OFF)
        with cluster[CUT_OFF].connect() as client:
            write_until_unanswered(client, "t")
            writer.wait_for_more()
            with meeting(cluster.place) as coordination:
                wait_until(
                    lambda: coordination.read(0) and coordination.is_dead(CUT_OFF), "its session has ended"
                )
            relay.heal()
            client.socket.settimeout(PATIENCE_S)
            with pytest.raises(ClosedByBroker):  # what it held was never answered
                client.receive_frame()
        wait_until(lambda: not cluster[CUT_OFF].running, "it ends", cluster.last_words)
        assert f"the session of broker {CUT_OFF}" in cluster[CUT_OFF].last_words()
        cluster[CUT_OFF].start()
        cluster.wait_for("t", isr={1, 2, 3})
        writer.wait_for_more()
    assert read_all(cluster, "t", len(writer.acknowledged)) == writer.acknowledged


def write_until_unanswered(client: RawClient, topic: str) -> None:
    """Write with acks=1, which needs nobody else, until the broker does not even refuse any more."""
    client.socket.settimeout(2.0)
    silences = 0
    while silences < 3:  # one alone may be this machine's
        try:
            if silences == 0:
                client.send_message(produce_request(topic, batch_of(b"for nobody"), acks=1), 9)
            client.receive_frame()
            silences = 0
        except TimeoutError:
            silences += 1


def test_a_broker_that_is_cut_off_for_a_moment_serves_on(cluster: FarMembers, relay: Relay) -> None:
    """As long as nobody knows more than it, it cannot have been replaced."""
    create(cluster, "t", CUT_OFF)
    with Writer(cluster, "t") as writer:
        relay.cut()
        writer.wait_for_more(50)
        relay.heal()
        create(cluster, "t2", 1)
        cluster.wait_for("t2", isr={1, 2, 3})
        writer.wait_for_more()
        assert cluster[CUT_OFF].running
    assert read_all(cluster, "t", len(writer.acknowledged)) == writer.acknowledged


def test_a_connection_that_is_never_answered_does_not_cost_the_session(
    zookeeper: ZooKeeper, relay: Relay
) -> None:
    """As a server that starts may do it: the next try comes while the session still counts."""
    place = zookeeper.url(uuid4().hex).replace(zookeeper.address, relay.address)
    with meeting(place, 1) as one:
        assert one.append(0, [ProducerIdsReserved(1)]) == 1
        relay.mislead_once()
        assert one.append(1, [ProducerIdsReserved(2)]) == 2
