"""Three brokers and everything that can be done to them, with records under way (B3, B5, D1, D3, D5)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from gapless.testing import BrokerFailed, Cluster, WaitedInVain
from gapless.testing.quiet import quiet_logger
from gapless.testing.state import Refused

BATCH = 50
SETTINGS = {
    "broker.session.timeout.ms": "1000",
    "broker.heartbeat.interval.ms": "200",
    "replica.lag.time.max.ms": "1500",
}
EVERYBODY = [1, 2, 3]


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    with Cluster(brokers=3, settings=SETTINGS) as running:
        yield running


@pytest.fixture
def cluster(three: Cluster) -> Cluster:
    three.repair()
    return three


class Writer:
    """Writes numbers to a topic of its own, and compares what was acknowledged with what can be read."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.cluster = cluster
        self.topic = topic
        self.acknowledged: list[int] = []
        self._next = 0
        cluster.create_topic(topic)
        cluster.wait_until(topic, in_sync=EVERYBODY)
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "enable.idempotence": True,
                "logger": quiet_logger(),
                "topic.metadata.refresh.interval.ms": 200,
                "socket.timeout.ms": 2000,
                "request.timeout.ms": 1500,
            }
        )

    def _note(self, error: object, message: object) -> None:
        if error is not None:
            raise AssertionError(error)
        self.acknowledged.append(int(message.value()))  # type: ignore[attr-defined]

    def write(self) -> None:
        for number in range(self._next, self._next + BATCH):
            self._producer.produce(self.topic, b"%d" % number, partition=0, on_delivery=self._note)
        self._next += BATCH
        assert self._producer.flush(30) == 0, self.cluster.logs()

    def check(self) -> None:
        """All that was acknowledged is there, once, in order."""
        self.cluster.wait_until(self.topic, high_watermark=self._next)
        consumer = Consumer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "group.id": "g",
                "enable.auto.commit": False,
                "logger": quiet_logger(),
            }
        )
        consumer.assign([TopicPartition(self.topic, 0, 0)])
        values = [int(message.value() or b"") for message in consumer.consume(self._next, timeout=30)]
        consumer.close()
        assert values == self.acknowledged == list(range(self._next))
        assert self.cluster.high_watermark(self.topic) == self._next


def test_a_killed_leader_is_replaced_and_comes_back(cluster: Cluster) -> None:
    writer = Writer(cluster, "killed")
    writer.write()
    leader = cluster.leader("killed")
    cluster.kill(leader)
    assert leader not in cluster.running
    seen = cluster.wait_until("killed", leader_not=leader)
    assert leader not in seen.in_sync
    writer.write()
    cluster.restart(leader)
    cluster.wait_until("killed", in_sync=EVERYBODY)
    writer.write()
    writer.check()


def test_a_killed_controller_is_replaced(cluster: Cluster) -> None:
    writer = Writer(cluster, "controller")
    controller = cluster.controller()
    cluster.kill(controller)
    cluster.wait_for(lambda: cluster.controller() != controller, "another is the controller")
    writer.write()
    writer.check()


def test_a_stopped_broker_hands_over(cluster: Cluster) -> None:
    writer = Writer(cluster, "stopped")
    writer.write()
    leader = cluster.leader("stopped")
    cluster.stop(leader)
    assert cluster.partition("stopped").leader not in (None, leader)
    writer.write()
    writer.check()


def test_an_isolated_leader_is_replaced_and_returns_when_healed(cluster: Cluster) -> None:
    writer = Writer(cluster, "isolated")
    writer.write()
    leader = cluster.leader("isolated")
    cluster.isolate(leader)
    cluster.wait_until("isolated", leader_not=leader)
    writer.write()
    cluster.heal()
    cluster.wait_until("isolated", in_sync=EVERYBODY)
    writer.write()
    writer.check()


def test_a_paused_leader_is_replaced_and_returns_when_resumed(cluster: Cluster) -> None:
    writer = Writer(cluster, "paused")
    writer.write()
    leader = cluster.leader("paused")
    cluster.pause(leader)
    cluster.wait_until("paused", leader_not=leader)
    writer.write()
    cluster.resume(leader)
    cluster.wait_until("paused", in_sync=EVERYBODY)
    writer.check()


def test_a_follower_that_is_cut_off_from_its_leader_falls_behind_until_healed(cluster: Cluster) -> None:
    controller = cluster.controller()  # it must be neither of the two: who does not hear from it deposes it
    writers = (Writer(cluster, f"cut-{number}") for number in range(6))
    writer = next(each for each in writers if cluster.leader(each.topic) != controller)
    leader = cluster.leader(writer.topic)
    (follower,) = set(EVERYBODY) - {leader, controller}
    cluster.cut(leader, follower)
    writer.write()
    cluster.wait_until(writer.topic, leader=leader, in_sync={leader, controller})
    cluster.heal()
    cluster.wait_until(writer.topic, in_sync=EVERYBODY)
    writer.check()


def test_lost_acks_and_a_slow_leader_double_nothing(cluster: Cluster) -> None:
    writer = Writer(cluster, "lost")
    before = cluster.acks_lost
    cluster.lose_acks(2)
    cluster.slow(cluster.leader("lost"), 20)
    writer.write()
    writer.check()
    assert cluster.acks_lost == before + 2


def test_a_broker_that_loses_power_gets_from_others_what_it_lost(cluster: Cluster) -> None:
    writer = Writer(cluster, "power")
    writer.write()
    for seed in (1, 2):
        leader = cluster.leader("power")
        assert any("power-0" in loss.path for loss in cluster.power_cut(leader, seed=seed))
        cluster.wait_until("power", leader_not=leader)
        writer.write()
        cluster.restart(leader)
        cluster.wait_until("power", in_sync=EVERYBODY)
    writer.check()


def test_all_brokers_lose_power_and_flushed_records_are_all_there(cluster: Cluster) -> None:
    """D1: flushed before acknowledging, on every replica."""
    cluster.create_topic("flushed", config={"flush.messages": "1"})
    writer = Writer(cluster, "flushed")
    writer.write()
    cluster.power_cut(seed=7)
    assert cluster.running == []
    cluster.start()
    cluster.wait_until("flushed", in_sync=EVERYBODY)
    writer.write()
    writer.check()


def test_waiting_in_vain_says_what_was_and_what_brokers_said(cluster: Cluster) -> None:
    cluster.create_topic("vain")
    with pytest.raises(WaitedInVain) as vain:
        cluster.wait_until("vain", in_sync=[1], timeout_s=0.1)
    assert "in vain waited 0.1 s until vain-0 has [1] in sync; it is now: leader" in str(vain.value)
    assert "--- broker 3, running:\n" in str(vain.value)


def test_what_cannot_be_is_refused(cluster: Cluster) -> None:
    with pytest.raises(Refused, match="there is no broker 9: choose one of 1, 2, 3"):
        cluster.kill(9)
    with pytest.raises(Refused, match="knows of nothing-0"):
        cluster.partition("nothing")
    with pytest.raises(Refused, match="the topic two words could not be created"):
        cluster.create_topic("two words")


def test_without_a_proxy_there_are_no_network_faults_and_nothing_is_left_behind() -> None:
    with Cluster(brokers=1, proxy=False) as cluster:
        cluster.create_topic("t")
        with pytest.raises(Refused, match="leave out proxy=False"):
            cluster.isolate(1)
        pid, folder = cluster.pid(1), Path(f"/proc/{cluster.pid(1)}/cwd")
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_failure_inside_the_block_carries_the_logs() -> None:
    with pytest.raises(ZeroDivisionError) as failure, Cluster(brokers=1):
        _ = 1 / 0
    assert "--- broker 1, running:\nready: " in failure.value.__notes__[0]


def test_a_cluster_that_cannot_start_says_why() -> None:
    with pytest.raises(BrokerFailed, match=r"unknown setting no\.such\.setting"):
        Cluster(settings={"no.such.setting": "1"}).__enter__()
