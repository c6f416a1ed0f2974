"""Three real brokers and a real client: nothing acknowledged is lost, whichever single process dies or hangs.

All tests share one cluster; each leaves it whole.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any, Self

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.broker.cluster import Members, running_cluster
from tests.broker.process import wait_until
from tests.broker.raw import PATIENCE_S, batch_of

SETTINGS = {"broker.session.timeout.ms": "1000", "broker.heartbeat.interval.ms": "100"}
# What a careful user chooses to find a new leader soon; a hung one is given up after two seconds.
CLIENT: dict[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "log_level": 0,
    "topic.metadata.refresh.interval.ms": 100,
    "topic.metadata.refresh.fast.interval.ms": 10,
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 50,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "socket.timeout.ms": 2000,
    "request.timeout.ms": 2000,
}
NOT_ENOUGH_REPLICAS = 19
NOT_LEADER_OR_FOLLOWER = 6


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    with running_cluster(tmp_path_factory.mktemp("cluster") / "data", config=SETTINGS) as members:
        yield members


class Writer:
    """Writes all the time, and knows what was acknowledged."""

    def __init__(self, cluster: Members, topic: str) -> None:
        self.acknowledged: list[bytes] = []
        self._cluster = cluster
        self._topic = topic
        self._stopping = threading.Event()
        self._problems: list[str] = []
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap, **CLIENT})
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait_for_more()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        assert self._producer.flush(PATIENCE_S) == 0
        assert not self._problems

    def wait_for_more(self, records: int = 20) -> None:
        """Until so many more have been acknowledged."""
        wanted = len(self.acknowledged) + records
        wait_until(lambda: len(self.acknowledged) >= wanted, "writes go on", self._cluster.last_words)

    def _work(self) -> None:
        number = 0
        while not self._stopping.is_set():
            self._producer.produce(self._topic, b"%d" % number, partition=0, on_delivery=self._delivered)
            number += 1
            self._producer.poll(0.005)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.append(message.value())
        else:
            self._problems.append(str(error))


def create(cluster: Members, topic: str, leader: int = 1, **config: str) -> None:
    """A topic of one partition on all brokers, the leader first."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    replicas = [leader, *(member.node_id for member in cluster if member.node_id != leader)]
    new = NewTopic(topic, num_partitions=1, replica_assignment=[replicas], config=config)
    admin.create_topics([new])[topic].result(PATIENCE_S)


def read_all(cluster: Members, topic: str, count: int) -> list[bytes]:
    """The first `count` records, and whatever else comes with them."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": f"readers of {topic}",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is None:
            continue
        if message.error() is None:
            found.append(message.value() or b"")
        elif len(found) >= count:
            break
    consumer.close()
    return found


def new_leader(cluster: Members, topic: str, old: int) -> int:
    """Who leads instead, as soon as somebody does."""
    wait_until(
        lambda: cluster.partition(topic)["leader"] not in (old, -1), "another leads", cluster.last_words
    )
    return int(cluster.partition(topic)["leader"])


@pytest.mark.parametrize("leader", [1, 2, 3])
def test_a_killed_leader_costs_nothing_that_was_acknowledged(cluster: Members, leader: int) -> None:
    """B3, C3, D5, D7; one of the three is the controller. Idempotence leaves no duplicates either."""
    topic = f"kill-{leader}"
    create(cluster, topic, leader)
    with Writer(cluster, topic) as writer:
        cluster[leader].kill()
        new_leader(cluster, topic, leader)
        writer.wait_for_more()
        cluster[leader].start()
        cluster.wait_for(topic, isr={1, 2, 3})
        writer.wait_for_more()
    assert read_all(cluster, topic, len(writer.acknowledged)) == writer.acknowledged


def test_a_leader_that_is_told_to_stop_hands_over_first(cluster: Members) -> None:
    topic = "stop"
    create(cluster, topic, 2)
    with Writer(cluster, topic) as writer:
        before = cluster.partition(topic)["version"]
        assert cluster[2].stop_and_tell() == 0
        leader = new_leader(cluster, topic, 2)
        moved = cluster.partition(topic)
        fenced = [each for each in cluster.journal("BrokerRegistered", before) if each["node_id"] == 2]
        assert all(each["version"] >= moved["version"] for each in fenced), "it led until it was gone"
        writer.wait_for_more()
        cluster[2].start()
        cluster.wait_for(topic, isr={1, 2, 3})
        assert "checked" not in cluster[2].said().rpartition("stopping")[2]  # the stop was clean
        assert leader != 2
    assert read_all(cluster, topic, len(writer.acknowledged)) == writer.acknowledged


def test_a_hung_leader_is_replaced_and_serves_nothing_when_it_wakes(cluster: Members) -> None:
    """Hung is no certain death: the session's timeout decides, and who wakes up has to ask first."""
    topic = "hang"
    create(cluster, topic, 3)
    with Writer(cluster, topic) as writer:
        with cluster[3].connect() as client:
            assert client.produce(topic, batch_of(b"before")).error_code == 0
            writer.acknowledged.append(b"before")
            cluster[3].pause()
            new_leader(cluster, topic, 3)
            writer.wait_for_more()
            cluster[3].resume()
            assert client.produce(topic, batch_of(b"too late")).error_code == NOT_LEADER_OR_FOLLOWER
        cluster.wait_for(topic, isr={1, 2, 3})
    found = read_all(cluster, topic, len(writer.acknowledged))
    assert sorted(found) == sorted(writer.acknowledged)
    found.remove(b"before")
    writer.acknowledged.remove(b"before")
    assert found == writer.acknowledged


def test_with_two_of_three_dead_writes_are_refused_until_one_returns(cluster: Members) -> None:
    """B4, D5: the floor of two is kept, and what was acknowledged stays."""
    topic = "two"
    create(cluster, topic, 1)
    with Writer(cluster, topic) as writer:
        writer.wait_for_more()
    cluster[1].kill()
    cluster[2].kill()
    wait_until(lambda: cluster.partition(topic)["leader"] == 3, "the last one leads", cluster.last_words)
    with cluster[3].connect() as client:
        wait_until(
            lambda: client.produce(topic, batch_of(b"refused")).error_code == NOT_ENOUGH_REPLICAS,
            "writes are refused",
            cluster.last_words,
        )
        cluster[1].start()
        wait_until(
            lambda: client.produce(topic, batch_of(b"accepted")).error_code == 0,
            "writes are taken again",
            cluster.last_words,
        )
    cluster[2].start()
    cluster.wait_for(topic, isr={1, 2, 3})
    found = read_all(cluster, topic, len(writer.acknowledged) + 1)
    assert [value for value in found if value != b"refused"] == [*writer.acknowledged, b"accepted"]


def test_all_killed_at_once_come_back_with_everything(cluster: Members) -> None:
    """The machine ran on: the page cache still has what was acknowledged (D1)."""
    topic = "all"
    create(cluster, topic, 2)
    with Writer(cluster, topic) as writer:
        writer.wait_for_more(100)
    for member in cluster:
        member.kill()
    cluster.start_all()
    cluster.wait_for(topic, isr={1, 2, 3})
    assert read_all(cluster, topic, len(writer.acknowledged)) == writer.acknowledged
