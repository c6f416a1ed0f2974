"""Producers killed by SIGKILL, at the worst moments and at random: nothing is lost, nothing doubled (C6, B9).

`make test` kills a producer five times. `GAPLESS_KILLS` says how often the other tiers do: 20 times in
`make test-all`, and 200 times in `make soak`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gapless.client.spool import Spooled
from tests.client.conftest import Kafka, new_topic, read_all, wait_for
from tests.client.processes.produce import GROUP, MOMENTS
from tests.client.producing.sending import check_sent, seals_of_source, sending

Process = subprocess.Popen[bytes]
ROOT = Path(__file__).parents[3]
PARTITIONS = 3
KILLS = int(os.environ.get("GAPLESS_KILLS", "20"))
KILLS_ON_APACHE = max(4, KILLS // 5)


@contextmanager
def begun(kafka: Kafka, folder: Path, source: str, topics: list[str], **options: Any) -> Iterator[Process]:
    """A producer's process, which is dead in the end."""
    arguments = {
        "bootstrap": kafka.bootstrap,
        "folder": str(folder / "spool"),
        "source": source,
        "topics": topics,
        "partitions": PARTITIONS,
        "report": str(folder / "stored.txt"),
        **options,
    }
    with (folder / "stderr.txt").open("ab") as said:
        command = [sys.executable, "-m", "tests.client.processes.produce", json.dumps(arguments)]
        process = subprocess.Popen(command, cwd=ROOT, stderr=said)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def drain(kafka: Kafka, folder: Path, source: str) -> list[Spooled]:
    """Let a last producer send what is left, and compare."""
    with sending(kafka, folder / "spool", source) as sender:
        assert sender.flush(60) == 0
    records = check_sent(kafka, folder / "spool", source)
    check_reported(folder, records)
    return records


def check_reported(folder: Path, records: list[Spooled]) -> None:
    """All that was reported stored is there; each run's records are in the order in which it sent them."""
    found = [tuple(map(int, (record.value or b"").split(b":"))) for record in records]
    assert found == sorted(set(found))
    report = folder / "stored.txt"
    lines = report.read_text().split() if report.exists() else []
    last_of: dict[int, int] = defaultdict(lambda: -1)
    for line in lines:
        run, number = map(int, line.split(":"))
        last_of[run] = max(last_of[run], number)
    expected = {(run, number) for run, last in last_of.items() for number in range(last + 1)}
    assert expected <= set(found), "a record that was reported stored is lost"
    # What is there beyond that was stored by a group that nobody was told of any more.
    assert len(set(found) - expected) <= GROUP * (1 + max((run for run, _ in found), default=0))


@pytest.mark.slow_variants("apache")
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_producer_that_dies_at_the_worst_moment(kafka: Kafka, tmp_path: Path, moment: str) -> None:
    """C6: whatever the dead process had come to, the next one goes on without loss or duplicate."""
    topics = [new_topic(kafka, PARTITIONS)]
    source = f"{topics[0]}-{moment}"
    if moment not in ("during-init", "between-claim-and-its-note"):  # else the spool is a new one
        with begun(kafka, tmp_path, source, topics, run=0, records=100) as before:
            assert before.wait(60) == 0
    with begun(kafka, tmp_path, source, topics, run=1, die_at=moment) as victim:
        assert victim.wait(60) == -signal.SIGKILL, (tmp_path / "stderr.txt").read_text()
    drain(kafka, tmp_path, source)


def test_a_process_that_is_paused_for_longer_than_a_transaction_may_last_goes_on(
    embedded: Kafka, tmp_path: Path
) -> None:
    """The coordinator gives up on it meanwhile; nobody has taken over, so it is not to stop."""
    topic = new_topic(embedded, PARTITIONS)
    source = f"{topic}-paused"
    report = tmp_path / "stored.txt"
    properties = {"transaction.timeout.ms": "1000"}
    with begun(embedded, tmp_path, source, [topic], run=0, records=5_000, properties=properties) as process:
        wait_for(lambda: report.exists() and report.stat().st_size > 200, "it is sending")
        process.send_signal(signal.SIGSTOP)
        time.sleep(2.5)  # the length of the pause
        process.send_signal(signal.SIGCONT)
        assert process.wait(60) == 0, (tmp_path / "stderr.txt").read_text()
    assert len(drain(embedded, tmp_path, source)) == 5_000


@pytest.mark.parametrize("kills", [5, pytest.param(KILLS, marks=pytest.mark.slow)])
@pytest.mark.timeout(120 + 10 * KILLS)
def test_a_producer_killed_at_random_moments(embedded: Kafka, tmp_path: Path, kills: int) -> None:
    """C6: over any number of crashes, across partitions, topics and sessions, compared record by record."""
    kill_often(embedded, tmp_path, kills)


@pytest.mark.slow
@pytest.mark.apache
@pytest.mark.timeout(120 + 10 * KILLS_ON_APACHE)
def test_a_producer_killed_at_random_moments_on_apache_kafka(apache: Kafka, tmp_path: Path) -> None:
    kill_often(apache, tmp_path, KILLS_ON_APACHE)


def _grew(report: Path, before: int) -> bool:
    return report.exists() and report.stat().st_size > before


def kill_often(kafka: Kafka, folder: Path, kills: int) -> None:
    topics = [new_topic(kafka, PARTITIONS) for _ in range(2)]
    source = f"{topics[0]}-killed"
    seed = int(os.environ.get("GAPLESS_SEED", "0")) or random.randrange(1 << 30)
    print(f"GAPLESS_SEED={seed}")  # shown when the test fails
    chance = random.Random(seed)
    report = folder / "stored.txt"
    for run in range(kills):
        before = report.stat().st_size if report.exists() else 0
        with begun(kafka, folder, source, topics, run=run) as victim:
            if run == 0:  # the second one finds records that nobody has promised yet
                wait_for(
                    lambda: victim.poll() is not None or read_all(kafka, topics[0]),
                    "it has sent some",
                )
            elif chance.random() < 0.8:  # mostly while it is sending, sometimes while it starts
                wait_for(
                    lambda: victim.poll() is not None or _grew(report, before),  # noqa: B023
                    "it is sending",
                )
            time.sleep(chance.uniform(0.0, 0.6))
            assert victim.poll() is None, f"it ended: {(folder / 'stderr.txt').read_text()[-2000:]}"
    records = drain(kafka, folder, source)
    reasons = [seal.reason for seal in seals_of_source(kafka, source)]
    assert "recovered" in reasons
    assert len({(record.topic, record.partition) for record in records}) == 2 * PARTITIONS
    print(f"{len(records)} records, {kills} kills, {len(reasons)} seals")
