"""The launcher of a cluster of the real Apache Kafka."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from gapless.testing.apache_cluster import NODES, ApacheCluster
from gapless.testing.quiet import quiet_logger

pytestmark = pytest.mark.apache

PATIENCE_S = 30
NOBODY = -1
QUICK_TO_FENCE = {"broker.session.timeout.ms": "1000", "broker.heartbeat.interval.ms": "200"}


def leader_of(admin: AdminClient, other_than: int = NOBODY) -> int:
    """Who leads the topic, as soon as the broker that is asked has heard of it."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        partition = admin.list_topics("letters", timeout=PATIENCE_S).topics["letters"].partitions.get(0)
        if partition is not None and partition.leader not in (NOBODY, other_than):
            leader: int = partition.leader
            return leader
        time.sleep(0.05)
    raise AssertionError(f"nobody but {other_than} leads the topic after {PATIENCE_S} s")


@pytest.mark.slow
def test_a_cluster_survives_its_leader_and_leaves_nothing() -> None:
    with ApacheCluster(heap_mb=256, properties=QUICK_TO_FENCE) as kafka:
        folders = [node.folder for node in kafka.nodes]
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap}, logger=quiet_logger())
        admin.create_topics([NewTopic("letters", 1, NODES)])["letters"].result(30)
        leader = leader_of(admin)
        failures: list[object] = []
        producer = Producer(
            {
                "bootstrap.servers": kafka.bootstrap,
                "acks": "all",
                "logger": quiet_logger(),
                "on_delivery": lambda error, _: failures.append(error) if error else None,
            }
        )
        producer.produce("letters", b"before")
        assert producer.flush(30) == 0

        kafka.node(leader).kill()
        assert len(kafka.running) == NODES - 1
        producer.produce("letters", b"after")
        assert producer.flush(60) == 0
        assert failures == []
        leader_of(admin, other_than=leader)

        kafka.start()
        assert kafka.running == kafka.nodes
    assert kafka.running == []
    assert not any(folder.exists() for folder in folders)
