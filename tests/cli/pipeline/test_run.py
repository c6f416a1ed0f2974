"""`gapless pipeline run`, `markers`, `clean`: from topic to topic, with stops in between (C8)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from gapless.pipeline.alone import alone
from gapless.pipeline.folder import CheckpointFolder

from ..conftest import Gapless
from .conftest import Route, once_each

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_what_is_there_is_carried_once_and_shown(
    spark: SparkSession, route: Route, run_gapless: Gapless
) -> None:
    route.send(range(500))
    ran = run_gapless("pipeline", "run", str(route.file), "--once")
    assert ran.code == 0, ran.err
    assert ran.out == "all that was there is carried: 3 batches, 500 records read; 500 to kafka\n"
    assert "batch 0: 200 read" in ran.err
    assert route.arrived() == once_each(range(500))

    route.send(range(500, 600))
    ran = run_gapless("pipeline", "run", str(route.file), "--once", "--json")
    assert ran.code == 0, ran.err
    [batch] = map(json.loads, ran.out.splitlines())
    assert (batch["batch"], batch["rows_in"], batch["written"]) == (3, 100, {"kafka": 100})
    assert batch["lag"] == {f"{route.name}-0": 0, f"{route.name}-1": 0}
    assert route.arrived() == once_each(range(600))

    shown = json.loads(run_gapless("pipeline", "markers", str(route.file), "--json").out)
    assert shown == [
        {
            "sink": "kafka",
            "slot": f"{route.name}-{n}",
            "position": 300,
            "expected": 300,
            "state": "as expected",
        }
        for n in range(2)
    ]


def test_a_marker_that_is_gone_stops_the_pipeline_and_can_be_restored(
    spark: SparkSession, route: Route, run_gapless: Gapless, bootstrap: str
) -> None:
    file = str(route.file)
    route.send(range(100))
    assert run_gapless("pipeline", "run", file, "--once").code == 0
    gone = f"gapless.pipeline.{route.name}.kafka.{route.name}-1"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_consumer_groups([gone])[gone].result()
    table = run_gapless("pipeline", "markers", file).out.splitlines()
    assert table[0].split() == ["SINK", "SLOT", "NEXT", "EXPECTED", "STATE"]
    assert table[2].split() == ["kafka", f"{route.name}-1", "-", "50", "gone"]

    restored = run_gapless("pipeline", "markers", file, "--restore")
    assert restored.out == f"kafka: {route.name}-1 is at 50 again\n"
    assert "no marker is gone" in run_gapless("pipeline", "markers", file, "--restore").err

    route.send(range(100, 200))
    admin.delete_consumer_groups([gone])[gone].result()
    ran = run_gapless("pipeline", "run", file, "--once")
    assert ran.code == 1
    assert ran.err.splitlines()[-1].startswith("gapless: ")
    assert "gapless pipeline markers FILE --restore" in ran.err
    # Now a batch is under way, and the checkpoint cannot know what of it was written.
    refused = run_gapless("pipeline", "markers", file, "--restore")
    assert refused.code == 1
    assert "batch 1 was under way when the pipeline stopped" in refused.err
    arrived = route.arrived()
    assert arrived.keys() >= once_each(range(100)).keys()
    assert set(arrived.values()) == {1}


def test_clean_shows_first_and_then_removes_markers_but_no_rows(
    spark: SparkSession, route: Route, run_gapless: Gapless, bootstrap: str
) -> None:
    file = str(route.file)
    route.send(range(10))
    assert run_gapless("pipeline", "run", file, "--once").code == 0
    other = run_gapless("pipeline", "run", file, "--once", "--checkpoint", str(route.file.parent / "new"))
    assert other.code == 2
    assert "gapless pipeline clean" in other.err

    shown = run_gapless("pipeline", "clean", file)
    assert "nothing was changed: add --yes" in shown.err
    assert f"{route.name}-1" in shown.out
    cleaned = run_gapless("pipeline", "clean", file, "--yes")
    assert cleaned.code == 0
    assert f"removed gapless.pipeline.{route.name}.kafka.{route.name}-1\n" in cleaned.out
    assert "remove it, too" in cleaned.err
    assert (
        "there are no markers"
        in run_gapless("pipeline", "markers", file, "--checkpoint", f"{file}.other").err
    )
    assert route.arrived() == once_each(range(10))


@pytest.mark.parametrize("command", [("run", "--once"), ("clean", "--yes"), ("markers", "--restore")])
def test_while_a_pipeline_runs_nobody_else_runs_it_or_touches_its_markers(
    spark: SparkSession, route: Route, run_gapless: Gapless, command: tuple[str, str]
) -> None:
    verb, option = command
    checkpoint = str(route.file.parent / "checkpoint")
    with alone(CheckpointFolder(spark, checkpoint), checkpoint):
        ran = run_gapless("pipeline", verb, str(route.file), option)
    assert (ran.code, ran.out) == (1, "")
    assert f"process {os.getpid()} runs a pipeline with the checkpoint {checkpoint} already" in ran.err


def test_interrupted_it_finishes_the_batch_and_goes_on_there(
    spark: SparkSession, route: Route, run_gapless: Gapless, tmp_path: Path
) -> None:
    route.send(range(1000))
    with (tmp_path / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "gapless", "pipeline", "run", str(route.file), "--json"],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        assert process.stdout is not None
        try:
            first = json.loads(process.stdout.readline())
            process.send_signal(signal.SIGINT)
            rest = [json.loads(line) for line in process.stdout]
            code = process.wait(60)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
    said = (tmp_path / "stderr").read_text()
    assert code == 0, said
    assert "finishing the batch" in said
    assert "stopped between two batches: " in said
    carried = first["rows_in"] + sum(batch["rows_in"] for batch in rest)
    assert carried < 1000
    arrived = route.arrived()
    assert (len(arrived), set(arrived.values())) == (carried, {1})

    ran = run_gapless("pipeline", "run", str(route.file), "--once")
    assert ran.code == 0, ran.err
    assert "written before" not in ran.out  # no batch was left half done
    assert route.arrived() == once_each(range(1000))


PATIENT = """
import time
from gapless.cli.pipeline.stopping import Stopping

with Stopping(lambda: print("asked", flush=True), lambda text: print(text, flush=True)):
    print("ready", flush=True)
    while True:
        time.sleep(0.1)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_interruption_ends_at_once(number: signal.Signals) -> None:
    process = subprocess.Popen([sys.executable, "-c", PATIENT], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == "asked\n"
        assert process.stdout.readline().startswith("finishing the batch")
        process.send_signal(number)
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
