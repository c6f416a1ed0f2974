"""A Spark cluster with executors of its own: failed tasks, killed executors, speculative copies (C8).

In one rich run, as such a cluster takes long to start.
"""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from pathlib import Path

import pytest

from tests.pipeline.sinks.kafka.driving import ROOT, Driving, executors
from tests.pipeline.sinks.kafka.helpers import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]
MASTER = "local-cluster[2,1,600]"
CONFIG = {
    "spark.executor.memory": "600m",
    "spark.executorEnv.PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def attempts_of(notes: Path) -> dict[tuple[str, str], set[int]]:
    """Which attempts there were, by slot and batch."""
    found = defaultdict(set)
    for line in notes.read_text().splitlines() if notes.exists() else ():
        slot, batch, attempt = line.split()
        found[slot, batch].add(int(attempt))
    return found


def test_tasks_are_tried_again_and_copied_and_every_record_comes_out_once(
    bootstrap: str, tmp_path: Path, require_spark: None
) -> None:
    driving = Driving(bootstrap, bootstrap, tmp_path, ("aligned",))
    notes = tmp_path / "attempts.txt"
    driving.send(900)
    # A worker process dies in the middle of its task, once: Spark tries the task again.
    dies = {"moment": "sending", "victim": "-0", "once": str(tmp_path / "died"), "attempts": str(notes)}
    driving.finish(per_batch=450, master=MASTER, config=CONFIG, ends=dies)
    assert (tmp_path / "died").exists()
    assert any(len(numbers) > 1 for numbers in attempts_of(notes).values())
    notes.unlink()

    # A task hangs in the middle: Spark starts a copy. Then an executor is killed.
    driving.send(900)
    stalls = {"moment": "sent", "victim": "-1", "stall_s": 20.0, "once": str(tmp_path / "stalled")}
    before = driving.batches()
    with driving.started(
        once=True,
        per_batch=150,
        master=MASTER,
        config=CONFIG,
        ends={**stalls, "attempts": str(notes), "pause_s": 0.1},
    ) as process:
        wait_for(lambda: process.poll() is not None or driving.batches() > before + 1, "it works", 120)
        for victim in executors(process.pid)[:1]:
            os.kill(victim, signal.SIGKILL)
        assert process.wait(180) == 0, driving.last_words()
    assert (tmp_path / "stalled").exists()
    assert any(len(numbers) > 1 for numbers in attempts_of(notes).values()), "no task was copied"
    driving.check()
