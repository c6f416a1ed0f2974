"""The network fails: who is cut off acknowledges nothing that can be lost; readers see only what stays."""

from __future__ import annotations

import threading
from pathlib import Path

from gapless.testing import Cluster
from tests.broker.raw import RawClient, batch_of
from tests.cluster.job import Reader
from tests.cluster.workload import Writer, check, compare, read_back, until

EVERYBODY = [1, 2, 3]


def straight_to(cluster: Cluster, broker: int) -> RawClient:
    """A client on the broker's own machine, which no network fault keeps away."""
    command = Path(f"/proc/{cluster.pid(broker)}/cmdline").read_text().split("\0")
    return RawClient(f"127.0.0.1:{command[command.index('--port') + 1]}")


def test_b2_b3_d3_d4_an_isolated_leader_acknowledges_nothing_that_is_lost(gapless_cluster: Cluster) -> None:
    """B3: acks=all is not acknowledged by who is alone. B2: acks=1 is, and lost. D3: nobody read it. D4."""
    gapless_cluster.create_topic("isolated")
    reader = Reader(gapless_cluster, "isolated", 1)
    reader.start()
    try:
        with Writer(gapless_cluster, "isolated") as writer:
            old = gapless_cluster.leader("isolated")
            with straight_to(gapless_cluster, old) as near, straight_to(gapless_cluster, old) as other:
                gapless_cluster.isolate(old)
                alone = near.produce("isolated", batch_of(b"1000000"), acks=1)
                answers: list[int] = []
                asking = threading.Thread(
                    target=lambda: answers.append(
                        other.produce("isolated", batch_of(b"2000000"), acks=-1).error_code
                    )
                )
                asking.start()
                gapless_cluster.wait_until("isolated", leader_not=old)
                asking.join()
            assert alone.error_code == 0
            assert answers != [0]
            writer.wait_for_more()
            gapless_cluster.heal()
            gapless_cluster.wait_until("isolated", in_sync=EVERYBODY)
            writer.wait_for_more()
        found = read_back(gapless_cluster, "isolated")
        until(gapless_cluster, lambda: len(reader.seen) >= len(found), "the reader has read all")
    finally:
        reader.stop()
    compare(writer.acknowledged, found)
    assert reader.seen == found
    assert not {b"1000000", b"2000000"} & {record.value for record in found}
    assert "gave up" in gapless_cluster.log(old)


def test_b5_d3_a_follower_that_is_cut_off_leaves_and_the_high_watermark_goes_on(
    gapless_cluster: Cluster,
) -> None:
    """D3: the smallest LEO among *in-sync* replicas: one that lags does not hold readers back for ever."""
    gapless_cluster.create_topic("cut", 3)
    controller = gapless_cluster.controller()  # it must reach both, or it would take one of them for hung
    place = next(index for index in range(3) if gapless_cluster.leader("cut", index) != controller)
    with Writer(gapless_cluster, "cut", 3) as writer:
        leader = gapless_cluster.leader("cut", place)
        follower = next(each for each in EVERYBODY if each not in (leader, controller))
        before = gapless_cluster.high_watermark("cut", place) or 0
        gapless_cluster.cut(leader, follower)
        gapless_cluster.wait_until("cut", place, in_sync=set(EVERYBODY) - {follower})
        gapless_cluster.wait_until("cut", place, high_watermark=before + 20)
        gapless_cluster.heal()
        gapless_cluster.wait_until("cut", place, in_sync=EVERYBODY)
        writer.wait_for_more()
    check(gapless_cluster, writer, 3)


def test_b3_slow_networks_and_lost_answers_cost_and_double_nothing(gapless_cluster: Cluster) -> None:
    gapless_cluster.create_topic("slow")
    lost = gapless_cluster.acks_lost
    with Writer(gapless_cluster, "slow") as writer:
        gapless_cluster.lose_acks(3)
        gapless_cluster.slow(gapless_cluster.leader("slow"), 30)
        writer.wait_for_more(100)
        until(gapless_cluster, lambda: gapless_cluster.acks_lost > lost, "answers are lost")
    check(gapless_cluster, writer)
