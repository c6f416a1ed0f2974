"""Power cuts and elections of last resort: what is lost, what is not, and that it is said (D1, D2, D6)."""

from __future__ import annotations

import re

import pytest

from gapless.testing import Cluster
from tests.cluster.workload import Writer, check, compare, read_back, until

EVERYBODY = [1, 2, 3]


def all_logs(cluster: Cluster) -> str:
    return "\n".join(cluster.log(number) for number in EVERYBODY)


def test_d1_flushed_before_acknowledging_survives_a_power_cut_of_all(gapless_cluster: Cluster) -> None:
    gapless_cluster.create_topic("flushed", config={"flush.messages": "1"})
    for seed in (1, 2):
        with Writer(gapless_cluster, "flushed") as writer:
            writer.wait_for_more(30)
        before = read_back(gapless_cluster, "flushed")
        assert set(writer.acknowledged) <= set(before)
        gapless_cluster.power_cut(seed=seed)
        gapless_cluster.start()
        gapless_cluster.wait_until("flushed", in_sync=EVERYBODY)
        assert read_back(gapless_cluster, "flushed") == before
    assert "unclean election: broker" not in "".join(
        line for line in all_logs(gapless_cluster).splitlines() if "flushed-0" in line
    )


def test_d1_the_page_cache_of_all_brokers_may_lose_and_that_is_reported(gapless_cluster: Cluster) -> None:
    """What was never flushed anywhere is gone; what is left is a beginning of the log, and writes go on."""
    gapless_cluster.create_topic("cached")
    with Writer(gapless_cluster, "cached") as writer:
        writer.wait_for_more(50)
    losses = gapless_cluster.power_cut(seed=3)
    assert any("cached-0" in loss.path for loss in losses)
    gapless_cluster.start()
    gapless_cluster.wait_until("cached", in_sync=EVERYBODY)
    found = read_back(gapless_cluster, "cached")
    assert found == writer.acknowledged[: len(found)]
    lost = len(writer.acknowledged) - len(found)
    print(f"D1: {lost} of {len(writer.acknowledged)} acknowledged records lost by a power cut of all brokers")
    assert lost > 0
    # Of all internal partitions, too; only some are named each time.
    assert re.search(r"unclean election: broker \d leads", all_logs(gapless_cluster))
    with Writer(gapless_cluster, "cached") as again:
        again.wait_for_more()
    assert set(found + again.acknowledged) == set(read_back(gapless_cluster, "cached"))


def test_d1_one_broker_that_loses_power_costs_nothing(gapless_cluster: Cluster) -> None:
    gapless_cluster.create_topic("one-cut")
    with Writer(gapless_cluster, "one-cut") as writer:
        leader = gapless_cluster.leader("one-cut")
        gapless_cluster.power_cut(leader, seed=4)
        writer.wait_for_more()
        gapless_cluster.restart(leader)
        gapless_cluster.wait_until("one-cut", in_sync=EVERYBODY)
    check(gapless_cluster, writer)


@pytest.mark.parametrize("strict", [False, True])
def test_d2_followers_copy_from_the_page_cache_or_only_what_is_flushed(
    gapless_cluster: Cluster, strict: bool
) -> None:
    """D2: by default a follower has what its leader has not flushed; with the strict policy it has not."""
    topic = f"strict-{strict}"
    gapless_cluster.create_topic(topic, config={"gapless.replicate.flushed.only": str(strict).lower()})
    with Writer(gapless_cluster, topic) as writer:
        writer.wait_for_more(30)
    leader = gapless_cluster.leader(topic)
    losses = gapless_cluster.power_cut(leader, seed=5)
    lost = (loss for loss in losses if f"/{topic}-0" in loss.path)
    took_records = any(loss.path.endswith((".log", f"/{topic}-0")) and loss.lost_bytes for loss in lost)
    assert took_records is not strict, losses
    gapless_cluster.restart(leader)
    gapless_cluster.wait_until(topic, in_sync=EVERYBODY)
    check(gapless_cluster, writer)


@pytest.mark.parametrize("unclean", [False, True])
def test_d6_the_whole_in_sync_set_is_dead(gapless_cluster: Cluster, unclean: bool) -> None:
    """D6: wait for one of it and lose nothing, or let any replica lead, lose, and say how much."""
    topic = f"unclean-{unclean}"
    config = {"unclean.leader.election.enable": str(unclean).lower(), "min.insync.replicas": "1"}
    gapless_cluster.create_topic(topic, config=config)
    with Writer(gapless_cluster, topic) as before:
        before.wait_for_more()
    last = gapless_cluster.leader(topic)
    outdated = [each for each in EVERYBODY if each != last]
    gapless_cluster.kill(*outdated)
    gapless_cluster.wait_until(topic, in_sync=[last])
    with Writer(gapless_cluster, topic) as alone:
        alone.wait_for_more()
    gapless_cluster.kill(last)
    gapless_cluster.restart(outdated[0])
    acknowledged = before.acknowledged + alone.acknowledged
    if unclean:
        gapless_cluster.wait_until(topic, leader=outdated[0])
        gapless_cluster.restart(last)
        gapless_cluster.wait_until(topic, in_sync=[outdated[0], last])
        found = read_back(gapless_cluster, topic)
        compare(before.acknowledged, found)
        lost = set(acknowledged) - set(found)
        print(f"D6: {len(lost)} of {len(acknowledged)} acknowledged records lost")
        assert lost
        assert lost <= set(alone.acknowledged)
        said = all_logs(gapless_cluster)
        assert f"unclean election: broker {outdated[0]} leads {topic}-0" in said
        assert f"gave up {len(lost)} offsets of {topic}-0" in said
    else:
        gapless_cluster.restart(outdated[1])
        until(gapless_cluster, lambda: gapless_cluster.partition(topic).leader is None, "nobody leads")
        gapless_cluster.restart(last)
        gapless_cluster.wait_until(topic, in_sync=EVERYBODY)
        assert set(read_back(gapless_cluster, topic)) == set(acknowledged)
