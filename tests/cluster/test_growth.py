"""A cluster that changes while it is used: rolling restarts, and brokers that join."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ElectionType
from confluent_kafka.admin import AdminClient

from gapless.testing import Cluster
from gapless.testing.cluster import HOST, Member
from gapless.testing.processes import free_ports
from tests.cluster.job import Reader
from tests.cluster.workload import Writer, check, client, read_back, until

PARTITIONS = 6
SETTINGS = {
    "broker.session.timeout.ms": "1000",
    "broker.heartbeat.interval.ms": "200",
    "replica.lag.time.max.ms": "1500",
}


@pytest.fixture(scope="module")
def direct() -> Iterator[Cluster]:
    """Without a proxy: nothing but the brokers takes time."""
    with Cluster(brokers=3, settings=SETTINGS, proxy=False) as running:
        yield running


def in_sync_everywhere(cluster: Cluster, topic: str) -> None:
    for partition in range(PARTITIONS):
        cluster.wait_until(topic, partition, in_sync=[1, 2, 3])


def test_d5_a_rolling_restart_loses_nothing_and_hardly_stops_writes(direct: Cluster) -> None:
    """Leaders are moved away before a broker stops. The longest stop of writes to a partition is printed."""
    direct.create_topic("rolling", PARTITIONS)
    worst: list[float] = []
    with Writer(direct, "rolling", PARTITIONS, pause_s=0.003) as writer:
        for broker in (1, 2, 3):
            writer.wait_for_more()
            since = time.monotonic()
            direct.restart(broker)
            in_sync_everywhere(direct, "rolling")
            writer.wait_for_more()
            gaps = writer.longest_gaps_ms(since, time.monotonic())
            worst.append(max(gaps.values()))
            print(
                f"restart of {broker}: longest stop {worst[-1]:.0f} ms of",
                {k: int(v) for k, v in gaps.items()},
            )
    check(direct, writer, PARTITIONS)
    assert sorted(worst)[1] < 1500, worst  # the target is 300 ms on a machine that has nothing else to do


def leaders(cluster: Cluster) -> set[int]:
    return {cluster.leader("moved", each) for each in range(PARTITIONS)}


def joined(cluster: Cluster, folder: Path, number: int) -> Member:
    """One more broker, which joins the cluster's folder."""
    (port,) = free_ports(1)
    advertised = f"{HOST}:{port}"
    member = Member(number, port, folder, advertised=advertised, cluster_size=number, settings=SETTINGS)
    member.start()
    cluster._members[number] = member
    return member


def test_a6_a_broker_joins_and_takes_over_partitions_while_clients_run(tmp_path: Path) -> None:
    """A6: moved with the command line, away from broker 1, which then leads nothing of it."""
    with Cluster(brokers=3, settings=SETTINGS, proxy=False, folder=tmp_path) as cluster:
        cluster.create_topic("moved", PARTITIONS)
        reader = Reader(cluster, "moved", PARTITIONS)
        reader.start()
        try:
            with Writer(cluster, "moved", PARTITIONS) as writer:
                joined(cluster, tmp_path, 4)
                command = [
                    "topics",
                    "reassign",
                    "moved",
                    "--brokers",
                    "2,3,4",
                    "--bootstrap",
                    cluster.bootstrap,
                ]
                moving = subprocess.run(
                    [sys.executable, "-m", "gapless", *command],
                    check=False,
                    capture_output=True,
                    text=True,
                    timeout=60,
                )
                assert moving.returncode == 0, moving.stderr
                for partition in range(PARTITIONS):
                    seen = cluster.wait_until("moved", partition, in_sync=[2, 3, 4])
                    assert set(seen.replicas) == {2, 3, 4}
                admin = AdminClient(client(cluster))
                admin.elect_leaders(ElectionType.PREFERRED, None).result(
                    30
                )  # as an operator does after a move
                until(cluster, lambda: leaders(cluster) == {2, 3, 4}, "the new broker leads some of it")
                writer.wait_for_more()
                cluster.kill(1)
                writer.wait_for_more()
            check(cluster, writer, PARTITIONS)
            found = read_back(cluster, "moved", PARTITIONS)
            until(cluster, lambda: len(reader.seen) >= len(found), "the consumer has read all")
        finally:
            reader.stop()
        assert sorted(reader.seen) == sorted(found)
