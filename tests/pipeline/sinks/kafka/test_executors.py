"""Tasks that Spark tries again, and tasks that it copies because they are slow: every record once (C8)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from gapless.testing.spark_cluster import SparkCluster
from tests.pipeline.sinks.kafka.driving import ROOT, Driving

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]
CONFIG = {
    **SparkCluster.settings,
    "spark.executorEnv.PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "500ms",
}


@pytest.fixture
def cluster() -> Iterator[SparkCluster]:
    with SparkCluster(hosts=("127.0.0.2", "127.0.0.3")) as cluster:
        yield cluster


@pytest.mark.slow
def test_tasks_are_tried_again_and_copied_and_every_record_comes_out_once(
    cluster: SparkCluster, bootstrap: str, tmp_path: Path
) -> None:
    """One worker process dies in the middle of its task; another task hangs with its records sent."""
    driving = Driving(bootstrap, bootstrap, tmp_path, ("aligned",))
    driving.send(900)
    notes, died, stalled = (tmp_path / name for name in ("attempts.txt", "died", "stalled"))
    ends = {
        "moment": "sending",
        "victim": "-0",
        "once": str(died),
        "stall_s": 30.0,
        "stalls": "-1",
        "stalled": str(stalled),
        "attempts": str(notes),
    }
    driving.finish(240, per_batch=300, master=cluster.master_url, config=CONFIG, ends=ends)
    assert died.exists()
    assert stalled.exists()
    attempts = defaultdict(set)
    for line in notes.read_text().splitlines():
        slot, _, attempt = line.split()
        attempts[slot.rpartition("-")[2]].add(int(attempt))
    assert len(attempts["0"]) > 1, "it was not tried again"
    assert len(attempts["1"]) > 1, "it was not copied"
    driving.check()
