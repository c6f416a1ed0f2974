"""What a crash between processing and committing does (E1–E4), and that a store undoes it (E6, E7)."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import time
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from subprocess import Popen
from typing import Any

import pytest

from tests.client.conftest import Kafka, new_topic, wait_for
from tests.client.consuming.helpers import finish, lines, run_process, spawn, values, write

COUNT = 60
DIE_AT = "000030"
ONE_BY_ONE = {"batch_records": 1, "commit_every_ms": 20}
ALL = [value.decode() for value in values(COUNT)]


def job_for(kafka: Kafka, effects: Path, partitions: int = 1, count: int = COUNT) -> dict[str, Any]:
    topic = new_topic(kafka, partitions)
    write(kafka.bootstrap, topic, count, partitions=partitions)
    return {
        "bootstrap": kafka.bootstrap,
        "topics": [topic],
        "group": f"group-of-{topic}",
        "effects": str(effects),
    }


def effects_of(path: Path) -> list[tuple[str, int, int, str]]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT topic, partition, position, value FROM effects ORDER BY number")
        return found.fetchall()


def test_commit_before_processing_loses_a_record(kafka: Kafka, tmp_path: Path) -> None:
    """E1: SIGKILL after the commit, before the effect."""
    effects = tmp_path / "effects"
    job = job_for(kafka, effects)
    job["options"] = {"order": "commit-then-process", "batch_records": 1}
    died = run_process("consume", **job, die_at=DIE_AT, moment="before-effect")
    assert died == -signal.SIGKILL
    assert run_process("consume", **job) == 0
    assert lines(effects) == [value for value in ALL if value != DIE_AT]


def test_processing_before_commit_repeats_a_record(kafka: Kafka, tmp_path: Path) -> None:
    """E2: SIGKILL after the effect, before the commit."""
    effects = tmp_path / "effects"
    job = job_for(kafka, effects)
    job["options"] = {**ONE_BY_ONE, "order": "process-then-commit"}
    assert run_process("consume", **job, die_at=DIE_AT, moment="after-effect") == -signal.SIGKILL
    assert run_process("consume", **job) == 0
    found = Counter(lines(effects))
    assert sorted(found) == ALL
    assert found[DIE_AT] == 2


@pytest.mark.parametrize(
    ("order", "moment"),
    [
        ("commit-then-process", "before-effect"),
        ("process-then-commit", "after-effect"),
        ("process-then-commit", "after-store-commit"),
    ],
)
def test_with_a_store_neither_happens(kafka: Kafka, tmp_path: Path, order: str, moment: str) -> None:
    """E6: effect, mark and offset are one transaction, so the same crashes neither lose nor repeat."""
    effects = tmp_path / "effects.db"
    job = {**job_for(kafka, effects), "store": True, "options": {**ONE_BY_ONE, "order": order}}
    assert run_process("consume", **job, die_at=DIE_AT, moment=moment) == -signal.SIGKILL
    assert run_process("consume", **job) == 0
    assert [value for *_place, value in effects_of(effects)] == ALL


def test_automatic_commits_lose_what_was_fetched_and_not_processed(kafka: Kafka, tmp_path: Path) -> None:
    """E3, with a bare client."""
    effects = tmp_path / "effects"
    job = {**job_for(kafka, effects), "how": "auto-commit"}
    assert run_process("consume_naively", **job, die_after=20) == -signal.SIGKILL
    assert run_process("consume_naively", **job) == 0
    assert set(ALL) - set(lines(effects)), "nothing was lost"


def test_a_pool_with_commits_on_pull_loses_its_queue(kafka: Kafka, tmp_path: Path) -> None:
    """E4, with a bare client; and the same with ours, which commits what is done."""
    naive, ours = tmp_path / "naive", tmp_path / "ours"
    job = {**job_for(kafka, naive), "how": "commit-on-pull"}
    assert run_process("consume_naively", **job, die_after=20) == -signal.SIGKILL
    assert run_process("consume_naively", **job) == 0
    assert set(ALL) - set(lines(naive)), "nothing was lost"

    job = {**job, "group": "ours", "effects": str(ours)}
    job["options"] = {"workers": 2, "parallel_by": "key", "commit_every_ms": 1}
    assert (
        run_process("consume", **job, pace_s=0.005, die_at=DIE_AT, moment="after-effect") == -signal.SIGKILL
    )
    assert run_process("consume", **job) == 0
    assert set(ALL) == set(lines(ours))


def kills_at_random(kafka: Kafka, effects: Path, kills: int, seed: int) -> None:
    """Kill a consumer again and again; in the end every record has had its effect once, in order."""
    partitions, count, random = 3, 300 * kills, Random(seed)
    job = job_for(kafka, effects, partitions, count)
    job |= {"store": True, "pace_s": 0.0005, "options": {"batch_records": 10, "workers": 2}}
    happened = 0
    for kill in range(kills):
        process = spawn("consume", **job)
        wait_for(
            partial(_is_at_work, process, effects, happened),
            f"kill {kill} has something to interrupt (seed {seed})",
        )
        time.sleep(random.uniform(0, 0.1))
        process.kill()
        assert finish(process) in (0, -signal.SIGKILL)
        happened = _count(effects)
    assert finish(spawn("consume", **{**job, "pace_s": 0})) == 0
    found = effects_of(effects)
    expected = sorted((job["topics"][0], n % partitions, n // partitions, f"{n:06d}") for n in range(count))
    assert sorted(found) == expected, f"seed {seed}"
    for partition in range(partitions):
        offsets = [offset for _topic, of, offset, _value in found if of == partition]
        assert offsets == sorted(offsets), f"seed {seed}"


def _is_at_work(process: Popen[bytes], effects: Path, before: int) -> bool:
    return process.poll() is not None or _count(effects) > before


def _count(effects: Path) -> int:
    if not effects.exists():
        return 0
    with contextlib.closing(sqlite3.connect(effects, timeout=10)) as connection:
        try:
            return int(connection.execute("SELECT count(*) FROM effects").fetchone()[0])
        except sqlite3.OperationalError:  # the table is not there yet
            return 0


@pytest.mark.slow_variants("apache")
def test_random_kills_lose_and_repeat_nothing(kafka: Kafka, tmp_path: Path) -> None:
    """E6 under SIGKILL at any moment: twenty times on our cluster, some times on Apache Kafka."""
    kills_at_random(kafka, tmp_path / "effects.db", 20 if kafka.name == "embedded" else 5, seed=7)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_two_hundred_random_kills_lose_and_repeat_nothing(kafka: Kafka, tmp_path: Path) -> None:
    kills_at_random(kafka, tmp_path / "effects.db", 200, seed=time.time_ns() % 1_000_000)
