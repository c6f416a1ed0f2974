"""A Spark cluster starts, loses workers, gets them back, and leaves nothing."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from gapless.testing import spark_cluster
from gapless.testing.spark_cluster import SparkCluster, SparkClusterFailed

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def servers_in(folder: Path) -> dict[str, set[int]]:
    """Return the pids of masters and workers that log to a file in a folder, by kind."""
    found: dict[str, set[int]] = {"Master": set(), "Worker": set()}
    for process in Path("/proc").iterdir():
        with suppress(OSError):  # Not a process, another user's process, or one that has just ended.
            command = (process / "cmdline").read_text()
            kind = next((each for each in found if f"org.apache.spark.deploy.{each.lower()}." in command), "")
            if kind and (process / "fd" / "1").resolve().is_relative_to(folder):
                found[kind].add(int(process.name))
    return found


def test_a_cluster_gets_its_workers_back_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with SparkCluster(workers=2) as cluster:
        first = servers_in(tmp_path)
        assert {kind: len(pids) for kind, pids in first.items()} == {"Master": 1, "Worker": 2}
        url = cluster.master_url
        cluster.kill_worker(1)
        left = servers_in(tmp_path)
        assert left["Master"] == first["Master"]
        assert len(left["Worker"] & first["Worker"]) == len(left["Worker"]) == 1
        cluster.start()
        assert cluster.master_url == url
        again = servers_in(tmp_path)
        assert again["Master"] == first["Master"]
        assert len(again["Worker"]) == 2
        assert left["Worker"] < again["Worker"]
    assert servers_in(tmp_path) == {"Master": set(), "Worker": set()}
    assert list(tmp_path.iterdir()) == []


def test_without_pyspark_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_cluster, "find_spec", lambda name: None)
    with pytest.raises(SparkClusterFailed, match=r"pip install 'gapless\[spark\]'"):
        SparkCluster()
