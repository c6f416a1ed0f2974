"""Groups and transactions outlive the brokers that coordinate them (D5): internal topics are replicated too.

A job copies one topic to another exactly once: its group and its transactional id have their coordinators on
some brokers, the partitions that it writes are led by others, so markers go from broker to broker.
"""

from __future__ import annotations

from typing import Any

import pytest

from gapless.core.shard import shard_of
from gapless.testing import Cluster
from gapless.testing.apache_kafka import kafka_tool
from tests.cluster.job import Job, half_transactions
from tests.cluster.workload import Record, Writer, check, differences, read_back, until

PARTITIONS = 3
SHARDS = 50
PROTOCOLS: dict[str, dict[str, Any]] = {
    "classic": {"session_timeout_ms": 6000},
    "consumer": {"group_protocol": "consumer"},
}


def coordinator(cluster: Cluster, topic: str, name: str) -> int:
    return cluster.leader(topic, shard_of(name, SHARDS))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_d5_a_transactional_job_survives_the_death_of_its_coordinators(
    gapless_cluster: Cluster, protocol: str
) -> None:
    """Killed: who coordinates the group, then who coordinates transactions; and that one is restarted."""
    source, target, name = f"{protocol}-in", f"{protocol}-out", f"{protocol}-job"
    for topic in (source, target):
        gapless_cluster.create_topic(topic, PARTITIONS)
    job = Job(gapless_cluster, source, target, name, **PROTOCOLS[protocol])
    with Writer(gapless_cluster, source, PARTITIONS) as writer:
        job.start()
        try:
            goes_on(gapless_cluster, job)
            for topic in ("__consumer_offsets", "__transaction_state"):
                dying = coordinator(gapless_cluster, topic, name)
                gapless_cluster.kill(dying)
                goes_on(gapless_cluster, job)
                gapless_cluster.restart(dying)
                gapless_cluster.wait_until(topic, shard_of(name, SHARDS), in_sync=[1, 2, 3])
            gapless_cluster.restart(coordinator(gapless_cluster, "__transaction_state", name))
            goes_on(gapless_cluster, job)
        except BaseException:
            job.stop()
            raise
    try:
        originals = read_back(gapless_cluster, source, PARTITIONS)
        copies = copied(gapless_cluster, job, target, len(originals))
    finally:
        job.stop()
    check(gapless_cluster, writer, PARTITIONS)
    assert sorted((each.partition, each.value) for each in copies) == sorted(
        (each.partition, each.value) for each in originals
    )
    assert differences([], copies) == []
    assert half_transactions(copies) == []
    print(f"{protocol}: {job.committed} transactions, began anew: {job.restarts}")


def goes_on(cluster: Cluster, job: Job) -> None:
    """Until it has committed some more transactions."""
    wanted = job.committed + 3
    cluster.wait_for(
        lambda: job.committed >= wanted or job.failure is not None,
        "the job goes on",
        details=lambda: f"{job.committed} of {wanted} commits, it began anew: {job.restarts[-3:]}",
    )
    assert job.failure is None


def copied(cluster: Cluster, job: Job, target: str, count: int) -> list[Record]:
    found: list[Record] = []

    def all_there() -> bool:
        found[:] = read_back(cluster, target, PARTITIONS, isolation_level="read_committed")
        return len(found) >= count or job.failure is not None

    until(cluster, all_there, "all is copied")
    return found


@pytest.mark.java_clients
@pytest.mark.parametrize("duration_ms", [5, 50])
def test_d5_a_java_producer_begins_each_transaction_as_soon_as_the_last_one_has_ended(
    gapless_cluster: Cluster, duration_ms: int
) -> None:
    """Its records reach the leaders before the markers of the last transaction, which come from elsewhere."""
    topic, partitions, count = f"back-to-back-{duration_ms}", 12, 50_000
    gapless_cluster.create_topic(topic, partitions)
    done = kafka_tool(
        *("kafka-producer-perf-test", "--bootstrap-server", gapless_cluster.bootstrap, "--topic", topic),
        *("--num-records", str(count), "--payload-monotonic", "--throughput", "-1"),
        *("--transactional-id", topic, "--transaction-duration-ms", str(duration_ms)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = read_back(gapless_cluster, topic, partitions, isolation_level="read_committed")
    assert sorted(int(record.value) for record in found) == list(range(count))
