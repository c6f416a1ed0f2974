"""The clusters of the benchmark, with ours alone: every process is found, and none is left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.brokers import OURS, make_one
from benchmarks.clusters import BROKERS, Cluster, has_not_ended, make_cluster
from benchmarks.scenarios.all import PROGRAMMES
from benchmarks.scenarios.step import Step
from benchmarks.session import BenchmarkFailed, Session
from benchmarks.sizes import TINY


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    one = make_cluster(OURS)
    yield one
    one.discard()


def failover_step() -> Step:
    (programme,) = (each for each in PROGRAMMES if each.name == "cluster")
    steps = [step for suite in programme.suites(TINY) for step in suite.steps]
    return next(step for step in steps if step.name == "failover")


def test_all_processes_of_a_cluster_are_counted_and_end_with_it(cluster: Cluster) -> None:
    cluster.start()
    pids = cluster.pids
    assert len(pids) == 1 + BROKERS  # the supervisor too
    ports = [int(address.rpartition(":")[2]) for address in cluster.bootstrap.split(",")]
    assert {cluster.pid_at(port) for port in ports} == set(pids[1:])

    cluster.discard()
    assert not any(has_not_ended(pid) for pid in pids)


def test_a_topic_of_a_cluster_is_on_every_broker(cluster: Cluster) -> None:
    session = Session(cluster, TINY)
    session.create_topic("copied", partitions=2)
    session.wait_until_in_sync("copied", partitions=2)
    leader = session.leader_of("copied")
    assert f"127.0.0.1:{leader.port}" in cluster.bootstrap


def test_a_lone_broker_is_not_killed() -> None:
    session = Session(make_one(OURS), TINY)
    try:
        with pytest.raises(BenchmarkFailed, match="only a broker of a cluster"):
            failover_step().measure(session)
    finally:
        session.discard()
