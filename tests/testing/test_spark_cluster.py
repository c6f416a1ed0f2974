"""A Spark cluster starts, loses workers, gets them back, and leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from gapless.testing import spark_cluster
from gapless.testing.spark_cluster import SparkCluster, SparkClusterFailed

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_cluster_gets_its_workers_back_and_leaves_nothing() -> None:
    with SparkCluster(workers=2) as cluster:
        servers = [cluster._master, *cluster._workers]
        first = [server.pid for server in servers]
        url = cluster.master_url
        cluster.kill_worker(1)
        assert [is_there(pid) for pid in first] == [True, True, False]
        cluster.start()
        assert cluster.master_url == url
        pids = [server.pid for server in servers]
        assert pids[:2] == first[:2]
        folders = [server.folder for server in servers]
    assert not any(is_there(pid) for pid in pids)
    assert not any(folder.exists() for folder in folders)


def test_without_pyspark_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_cluster, "find_spec", lambda name: None)
    with pytest.raises(SparkClusterFailed, match=r"pip install 'gapless\[spark\]'"):
        SparkCluster()
