"""On a cluster of Spark executors and drivers die, and every record comes out once (C8, E2, E6).

A standalone master with two workers on this machine: executors are processes with Python workers of their
own, which know of the driver only what it sends them. The driver is `gapless pipeline run`.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from gapless.pipeline.session import LOGGING, SHORT_LIVED
from gapless.testing.spark_cluster import SparkCluster
from tests.client.conftest import read_all

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PARTITIONS = 2
PER_BATCH = 100
"""Of each partition."""
BATCHES = 3
PATIENCE_S = 240.0

DEFINITION = """
name = "on-a-cluster"
checkpoint = "checkpoint"

[source]
bootstrap = "{bootstrap}"
topics = ["cluster-in"]
max_records_per_batch = {per_batch}

[transform]
function = "gates:with_gates"

[[sinks]]
type = "kafka"
name = "aligned"
topic = "cluster-aligned"

[[sinks]]
type = "kafka"
name = "shuffled"
topic = "cluster-shuffled"
tasks = 3

[spark]
master = "{master}"
"spark.pyspark.python" = "{python}"
"""

# Tasks wait in the middle of some batches, each at a gate, until the test lets them through.
FUNCTION = """
import time
from pathlib import Path

HERE = Path({folder!r})
GATES = {gates!r}

def with_gates(rows):
    from pyspark.sql.functions import col
    return rows.select("partition", col("offset").alias("at"), "key", "value").mapInArrow(wait, SCHEMA)

SCHEMA = "key BINARY, value BINARY"

def wait(batches):
    for batch in batches:
        partition, offsets = batch.column("partition")[0].as_py(), batch.column("at").to_pylist()
        kept = batch.select(["key", "value"])
        for gate in GATES:
            if gate in offsets:
                before = offsets.index(gate)
                yield kept.slice(0, before)
                (HERE / f"reached-{{gate}}-{{partition}}").touch()
                while not (HERE / f"open-{{gate}}").exists():
                    time.sleep(0.02)
                kept = kept.slice(before)
        yield kept
"""
GATES = {"executor": 50, "worker": 150, "driver": 250}
"""The offset of a gate, in the middle of a batch of its own."""


class Case:
    """A pipeline's folder, and its driver as a process."""

    def __init__(self, folder: Path, bootstrap: str, cluster: SparkCluster) -> None:
        self.folder = folder
        self.file = folder / "pipeline.toml"
        python = folder / "python"
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(python.stat().st_mode | stat.S_IXUSR)
        definition = DEFINITION.format(
            bootstrap=bootstrap, per_batch=PARTITIONS * PER_BATCH, master=cluster.master_url, python=python
        )
        java = " ".join([f"-Dlog4j2.configurationFile={LOGGING.as_uri()}", *SHORT_LIVED])
        settings = {**cluster.settings, "spark.driver.extraJavaOptions": java}
        lines = [f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in settings.items()]
        self.file.write_text(definition + "".join(lines))
        gates = list(GATES.values())
        (folder / "gates.py").write_text(FUNCTION.format(folder=str(folder), gates=gates))

    @contextmanager
    def driver(self) -> Iterator[subprocess.Popen[bytes]]:
        log = (self.folder / "driver.log").open("ab")
        command = [sys.executable, "-m", "gapless", "pipeline", "run", str(self.file), "--once", "--json"]
        with log, subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True) as process:
            try:
                yield process
            finally:
                kill(process)

    def wait_at(self, gate: int, driver: subprocess.Popen[bytes]) -> None:
        """Until a task of each source partition stands at the gate."""
        reached = [self.folder / f"reached-{gate}-{partition}" for partition in range(PARTITIONS)]
        self.wait_until(lambda: all(file.exists() for file in reached), f"tasks at {gate}", driver)

    def open(self, gate: int) -> None:
        (self.folder / f"open-{gate}").touch()

    def wait_until(
        self, condition: Callable[[], bool], what: str, driver: subprocess.Popen[bytes] | None = None
    ) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            ended = driver is not None and driver.poll() is not None
            assert not ended, f"the driver ended before {what}:\n{self.said()}"
            assert time.monotonic() < deadline, f"waited in vain for {what}:\n{self.said()}"
            time.sleep(0.05)

    def said(self) -> str:
        return (self.folder / "driver.log").read_text(errors="replace")[-4000:]


def kill(driver: subprocess.Popen[bytes]) -> None:
    """SIGKILL to its Python and to its Java."""
    with suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


@pytest.fixture
def cluster() -> Iterator[SparkCluster]:
    with SparkCluster(workers=2) as cluster:
        yield cluster


def fill(bootstrap: str) -> list[tuple[bytes, bytes]]:
    """Key and value of every record that goes in."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = {"cluster-in": PARTITIONS, "cluster-aligned": 3, "cluster-shuffled": 3}
    for made in admin.create_topics([NewTopic(name, n, 1) for name, n in topics.items()]).values():
        made.result()
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    sent = []
    for number in range(PARTITIONS * PER_BATCH * BATCHES):
        record = (b"k%d" % (number % 50), b"%d" % number)
        producer.produce("cluster-in", record[1], key=record[0], partition=number % PARTITIONS)
        sent.append(record)
    assert producer.flush(60) == 0
    return sent


@pytest.mark.slow
def test_executors_workers_and_the_driver_die_and_every_record_comes_out_once(
    cluster: SparkCluster, bootstrap: str, tmp_path: Path
) -> None:
    sent = fill(bootstrap)
    case = Case(tmp_path, bootstrap, cluster)
    with case.driver() as driver:
        case.wait_at(GATES["executor"], driver)
        cluster.kill_executor(0)
        case.open(GATES["executor"])
        case.wait_at(GATES["worker"], driver)
        cluster.kill_worker(1)
        case.open(GATES["worker"])
        cluster.start()
        case.wait_at(GATES["driver"], driver)
        kill(driver)
        case.open(GATES["driver"])
    with case.driver() as driver:
        case.wait_until(lambda: driver.poll() is not None, "the end of the pipeline")
        assert driver.returncode == 0, case.said()
    for topic in ("cluster-aligned", "cluster-shuffled"):
        received = [(record.key, record.value) for record in read_all(bootstrap, topic)]
        assert sorted(received) == sorted(sent), topic
