"""A leader's disk takes no more, and somebody who can write leads in its place (B3, D5)."""

from __future__ import annotations

import resource
import time
from pathlib import Path

from confluent_kafka import Producer

from gapless.testing import Cluster
from tests.cluster.workload import PATIENCE_S, Writer, check, client

EVERYBODY = [1, 2, 3]
LARGE_RECORDS = 8
LARGE_BYTES = 900_000


def fill(cluster: Cluster, topic: str) -> None:
    """Make the topic's file larger than any other of the broker's, its journal's included.

    Their values come before a writer's, which counts from 0.
    """
    producer = Producer(client(cluster, acks="all"))
    for number in range(-LARGE_RECORDS, 0):
        producer.produce(topic, b"%d" % number, bytes(LARGE_BYTES), partition=0)
    assert producer.flush(PATIENCE_S) == 0


def fail_disk(cluster: Cluster, broker: int, topic: str) -> None:
    """From now on the broker's file of this topic can hardly grow; the limit ends with the process."""
    opened = (file.resolve() for file in Path(f"/proc/{cluster.pid(broker)}/fd").iterdir())
    (log,) = {file for file in opened if file.parent.name == f"{topic}-0" and file.suffix == ".log"}
    limit_bytes = log.stat().st_size + 10_000
    resource.prlimit(cluster.pid(broker), resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))


def test_b3_d5_a_leader_whose_disk_fails_hands_over_and_nothing_is_lost(gapless_cluster: Cluster) -> None:
    gapless_cluster.create_topic("failing")
    fill(gapless_cluster, "failing")
    failing = gapless_cluster.leader("failing")
    since = time.monotonic()
    with Writer(gapless_cluster, "failing") as writer:
        fail_disk(gapless_cluster, failing, "failing")
        gapless_cluster.wait_until("failing", leader_not=failing, in_sync=set(EVERYBODY) - {failing})
        writer.wait_for_more()
        print(f"D5: writes stopped for {writer.longest_gaps_ms(since, time.monotonic())[0]:.0f} ms")
        assert failing in gapless_cluster.running
        gapless_cluster.restart(failing)
        gapless_cluster.wait_until("failing", in_sync=EVERYBODY)
        writer.wait_for_more()
    check(gapless_cluster, writer)
    said = gapless_cluster.log(failing)
    assert "failing-0 takes no more appends" in said
    assert "others lead what cannot be written here: failing-0" in said
