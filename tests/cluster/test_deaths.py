"""Brokers die or hang while they are written to: nothing acknowledged is lost, doubled or out of order."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer

from gapless.testing import Cluster, Fate, FaultProxy
from tests.cluster.workload import (
    IMPATIENT,
    PATIENCE_S,
    Writer,
    check,
    client,
    compare,
    end_of,
    read_back,
    refused_write,
    until,
)

EVERYBODY = [1, 2, 3]
PARTITIONS = 3
BATCH = [b"%d" % number for number in range(10)]


def whole(cluster: Cluster, topic: str, partitions: int = PARTITIONS) -> None:
    for partition in range(partitions):
        cluster.wait_until(topic, partition, in_sync=EVERYBODY)


def test_b3_c3_d5_a_killed_leader_costs_nothing(gapless_cluster: Cluster) -> None:
    """B3, C3, D5: the producer resends to the new leader, which has what followers copied."""
    gapless_cluster.create_topic("leader", PARTITIONS)
    with Writer(gapless_cluster, "leader", PARTITIONS) as writer:
        for _ in range(2):
            leader = gapless_cluster.leader("leader", 0)
            gapless_cluster.kill(leader)
            seen = gapless_cluster.wait_until("leader", 0, leader_not=leader)
            assert leader not in seen.in_sync
            writer.wait_for_more()
            gapless_cluster.restart(leader)
            whole(gapless_cluster, "leader")
    check(gapless_cluster, writer, PARTITIONS)


def test_b3_without_idempotence_a_killed_leader_loses_nothing(gapless_cluster: Cluster) -> None:
    """B3: the leader dies with records that no follower could copy, and has acknowledged none of them."""
    gapless_cluster.create_topic("plain")
    with Writer(gapless_cluster, "plain", enable_idempotence=False, acks="all") as writer:
        leader = gapless_cluster.leader("plain")
        for follower in set(EVERYBODY) - {leader}:
            gapless_cluster.cut(leader, follower)
        written = writer.written
        until(
            gapless_cluster, lambda: writer.written >= written + 20, "the leader has more than its followers"
        )
        gapless_cluster.kill(leader)
        gapless_cluster.heal()
        gapless_cluster.wait_until("plain", leader_not=leader)
        writer.wait_for_more()
    assert not writer.refused
    assert set(writer.acknowledged) <= set(read_back(gapless_cluster, "plain"))


@pytest.mark.parametrize("followers_with_it", [1, 2])
@pytest.mark.parametrize("idempotence", [False, True], ids=["acks-all", "idempotent"])
def test_c3_a_leader_killed_before_its_acknowledgement_doubles_the_batch_without_idempotence(
    gapless_cluster: Cluster, idempotence: bool, followers_with_it: int
) -> None:
    """C3: followers have the batch, its acknowledgement is held back, and the leader dies.

    The producer resends the batch to the new leader, which has it already. The acknowledgement never arrives
    and no request times out, so nothing but the death makes the producer resend.
    """
    topic = f"resent-{'idempotent' if idempotence else 'plain'}-{followers_with_it}"
    gapless_cluster.create_topic(topic, PARTITIONS)
    # The controller would fence a broker that it cannot reach, so no link to the controller is cut.
    controller = gapless_cluster.controller()
    place = next(index for index in range(PARTITIONS) if gapless_cluster.leader(topic, index) != controller)
    leader = gapless_cluster.leader(topic, place)
    if followers_with_it == 1:
        (lacking,) = set(EVERYBODY) - {leader, controller}
        gapless_cluster.cut(leader, lacking)
    with FaultProxy(EVERYBODY, rename=True) as before_clients:
        for broker, address in zip(EVERYBODY, gapless_cluster.bootstrap.split(","), strict=True):
            before_clients.forward(broker, address)
        before_clients.decide([Fate.SILENCE], leader)
        producer = Producer(
            {
                **IMPATIENT,
                **client(gapless_cluster, bootstrap_servers=before_clients.bootstrap),
                "acks": "all",
                "enable.idempotence": idempotence,
                "linger.ms": 1000,
                "batch.num.messages": len(BATCH),  # a full batch does not wait for linger.ms
                "socket.timeout.ms": 60_000,
                "request.timeout.ms": 60_000,
            }
        )
        outcomes: list[str | None] = []
        for value in BATCH:
            producer.produce(
                topic,
                value,
                partition=place,
                on_delivery=lambda error, _: outcomes.append(None if error is None else error.name()),
            )
        # The leader has answered, so every replica in sync has the batch.
        until(
            gapless_cluster,
            lambda: before_clients.fates[Fate.SILENCE] == 1,
            "an acknowledgement is held back",
        )
        gapless_cluster.wait_until(topic, place, high_watermark=len(BATCH))
        producer.poll(0)
        assert not outcomes
        assert end_of(gapless_cluster, topic, place) == len(BATCH)
        gapless_cluster.kill(leader)
        assert producer.flush(PATIENCE_S) == 0
    assert outcomes == [None] * len(BATCH)
    found = [record.value for record in read_back(gapless_cluster, topic, PARTITIONS)]
    assert found == BATCH * (1 if idempotence else 2)


def test_d5_a_killed_controller_costs_nothing(gapless_cluster: Cluster) -> None:
    gapless_cluster.create_topic("controller", PARTITIONS)
    with Writer(gapless_cluster, "controller", PARTITIONS) as writer:
        controller = gapless_cluster.controller()
        gapless_cluster.kill(controller)
        until(gapless_cluster, lambda: gapless_cluster.controller() != controller, "another is controller")
        writer.wait_for_more()
        gapless_cluster.restart(controller)
        whole(gapless_cluster, "controller")
    check(gapless_cluster, writer, PARTITIONS)


def test_d5_leader_and_controller_killed_at_once_cost_nothing(gapless_cluster: Cluster) -> None:
    """Of three, one is left: it leads, refuses acks=all, and goes on when one has returned (B4)."""
    gapless_cluster.create_topic("both", PARTITIONS)
    with Writer(gapless_cluster, "both", PARTITIONS) as writer:
        controller = gapless_cluster.controller()
        leader = next(
            gapless_cluster.leader("both", index)
            for index in range(PARTITIONS)
            if gapless_cluster.leader("both", index) != controller
        )
        gapless_cluster.kill(leader, controller)
        (left,) = gapless_cluster.running
        for index in range(PARTITIONS):
            gapless_cluster.wait_until("both", index, leader=left)
        gapless_cluster.restart(leader)
        writer.wait_for_more()
        gapless_cluster.restart(controller)
        whole(gapless_cluster, "both")
    check(gapless_cluster, writer, PARTITIONS)


def test_b4_d7_with_two_of_three_dead_writes_are_refused_until_one_returns(gapless_cluster: Cluster) -> None:
    """B4, D7: two failures cost nothing that was acknowledged, and below the floor nothing is."""
    gapless_cluster.create_topic("two", config={"min.insync.replicas": "2"})
    with Writer(gapless_cluster, "two") as writer:
        writer.wait_for_more()
    first, second, last = EVERYBODY
    gapless_cluster.kill(first, second)
    gapless_cluster.wait_until("two", leader=last, in_sync=[last])
    refusal = refused_write(gapless_cluster, "two")
    assert refusal == "_MSG_TIMED_OUT"  # the client tried again and again
    gapless_cluster.restart(second)
    gapless_cluster.wait_until("two", in_sync=[second, last])
    compare(writer.acknowledged, found := read_back(gapless_cluster, "two"))
    assert len(found) == len(writer.acknowledged)  # refused before the append
    with Writer(gapless_cluster, "two") as again:
        again.wait_for_more()
    assert set(writer.acknowledged + again.acknowledged) == set(read_back(gapless_cluster, "two"))


def test_b4_acks_all_waits_for_the_whole_in_sync_set_and_not_only_for_the_floor(
    gapless_cluster: Cluster,
) -> None:
    """B4, B5: two of three have it at once; it is acknowledged when the third has left the in-sync set."""
    gapless_cluster.create_topic("whole", config={"min.insync.replicas": "2"})
    assert refused_write(gapless_cluster, "whole", 10_000) is None
    leader = gapless_cluster.leader("whole")
    paused = next(each for each in EVERYBODY if each != leader)
    began = time.monotonic()
    gapless_cluster.pause(paused)
    assert refused_write(gapless_cluster, "whole", 10_000) is None
    took_s = time.monotonic() - began
    print(f"B4: acknowledged after {took_s:.1f} s")
    assert paused not in gapless_cluster.partition("whole").in_sync
    assert took_s > 0.5


def test_b4_a_floor_of_one_acknowledges_what_only_the_leader_has(gapless_cluster: Cluster) -> None:
    """B4: acks=all with the in-sync set shrunk to the leader is no better than acks=1: its disk was all."""
    gapless_cluster.create_topic("one", config={"min.insync.replicas": "1"})
    gapless_cluster.kill(1, 2)
    gapless_cluster.wait_until("one", leader=3, in_sync=[3])
    with Writer(gapless_cluster, "one") as writer:
        writer.wait_for_more()
    gapless_cluster.kill(3)
    gapless_cluster.restart(1)
    until(
        gapless_cluster,
        lambda: gapless_cluster.partition("one").leader is None,
        "it waits for the one that has them (D6)",
    )
    gapless_cluster.restart(3)
    check(gapless_cluster, writer)


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_b5_a_paused_broker_leaves_the_in_sync_set_and_returns(gapless_cluster: Cluster, who: str) -> None:
    """B5: paused, it has not caught up for too long; resumed, it serves nothing before it has asked."""
    topic = f"paused-{who}"
    gapless_cluster.create_topic(topic)
    with Writer(gapless_cluster, topic) as writer:
        leader = gapless_cluster.leader(topic)
        paused = leader if who == "leader" else next(each for each in EVERYBODY if each != leader)
        gapless_cluster.pause(paused)
        gapless_cluster.wait_until(topic, in_sync=set(EVERYBODY) - {paused})
        writer.wait_for_more()
        gapless_cluster.resume(paused)
        gapless_cluster.wait_until(topic, in_sync=EVERYBODY)
        writer.wait_for_more()
    check(gapless_cluster, writer)
