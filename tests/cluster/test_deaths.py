"""Brokers die or hang while they are written to: nothing acknowledged is lost, doubled or out of order."""

from __future__ import annotations

import time

import pytest

from gapless.testing import Cluster
from tests.cluster.workload import Writer, check, compare, read_back, refused_write, until

EVERYBODY = [1, 2, 3]
PARTITIONS = 3


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


def test_c3_without_idempotence_a_killed_leader_may_double_but_not_lose(gapless_cluster: Cluster) -> None:
    """B3, C3: acks=all alone loses nothing; whether something was doubled is printed."""
    gapless_cluster.create_topic("doubled")
    with Writer(gapless_cluster, "doubled", enable_idempotence=False, acks="all") as writer:
        leader = gapless_cluster.leader("doubled")
        gapless_cluster.lose_acks(2)
        gapless_cluster.kill(leader)
        gapless_cluster.wait_until("doubled", leader_not=leader)
        writer.wait_for_more()
        gapless_cluster.lose_acks(1)  # the surest way to the same end: stored, and no answer
        writer.wait_for_more()
    found = read_back(gapless_cluster, "doubled")
    assert set(writer.acknowledged) <= set(found)
    values = [record.value for record in found]
    print(f"C3: {len(values) - len(set(values))} records doubled")
    assert len(values) > len(set(values))


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
