"""Brokers of the output cluster die in the middle of a batch, and it is written once (C8)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gapless.testing.cluster import Cluster
from tests.pipeline.sinks.kafka.helpers import Case, wait_for
from tests.pipeline.sinks.kafka.mortal import MortalSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
ATTEMPTS = 5


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, proxy=False) as cluster:
        yield cluster


def test_every_broker_dies_in_the_middle_of_a_batch(
    spark: SparkSession, bootstrap: str, cluster: Cluster, tmp_path: Path
) -> None:
    """Among them the leader of the topic, the coordinator of the transactions, and that of the markers."""
    settings = {"replicas": 3, "transaction_timeout_ms": 20_000}
    case = Case(spark, bootstrap, cluster.bootstrap, tmp_path, records=800, **settings)
    attempts = tmp_path / "attempts.txt"
    slow = case.opened(MortalSink, ends={"pause_s": 0.2, "attempts": str(attempts)})
    case.sink.write(case.batch(0, 0, 100))
    leader = cluster.leader(case.topic, 0)
    order = [leader, *(broker for broker in cluster.brokers if broker != leader)]
    for number, broker in enumerate(order, 1):
        before = attempts.stat().st_size if attempts.exists() else 0
        killer = threading.Thread(target=kill_when, args=(cluster, broker, attempts, before))
        killer.start()
        batch = case.batch(number, number * 100, number * 100 + 100)
        for attempt in range(ATTEMPTS):
            try:
                slow.write(batch)
                break
            except Exception:
                if attempt == ATTEMPTS - 1:
                    raise
        killer.join()
        assert broker not in cluster.running
        cluster.restart(broker)
        cluster.wait_for(lambda: len(cluster.partition(case.topic, 0).in_sync) == 3, "all are in sync")
    assert case.written() == list(range(800))


def kill_when(cluster: Cluster, broker: int, attempts: Path, before: int) -> None:
    """As soon as a task has begun to write."""
    wait_for(lambda: attempts.exists() and attempts.stat().st_size > before, "a task has begun", 120)
    time.sleep(0.3)  # into its pauses
    cluster.kill(broker)
