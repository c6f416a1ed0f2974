"""`gapless pipeline check`: a list of ticks, or JSON; the exit code tells what kind of failure it was."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ..conftest import Gapless
from .conftest import Route

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_ticks_for_what_is_well(spark: SparkSession, route: Route, run_gapless: Gapless) -> None:
    ran = run_gapless("pipeline", "check", str(route.file))
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert all(line.startswith("✓ ") for line in lines)
    assert lines[0].startswith("✓ definition ")
    assert lines[-1] == (
        "✓ sink kafka           takes these rows, by a task for each source partition (aligned)"
    )
    seen = json.loads(run_gapless("pipeline", "check", str(route.file), "--json", "--quick").out)
    assert [each["what"] for each in seen] == ["definition", "spark", "source", "sink kafka"]
    assert {each["state"] for each in seen} == {"ok"}


def test_a_mistake_in_the_file_is_told_with_its_line(route: Route, run_gapless: Gapless) -> None:
    route.file.write_text(route.file.read_text().replace("max_records_per_batch", "max_record_per_batch"))
    ran = run_gapless("pipeline", "check", str(route.file))
    words = "in [source]: unknown key `max_record_per_batch`; did you mean `max_records_per_batch`?"
    assert ran.code == 2
    assert ran.out == f"✗ definition:          {route.file}:6: {words}\n"
    [finding] = json.loads(run_gapless("pipeline", "check", str(route.file), "--json").out)
    assert finding == {"what": "definition", "state": "failed", "words": f"{route.file}:6: {words}"}
    assert run_gapless("pipeline", "run", str(route.file)).err == f"gapless: {route.file}:6: {words}\n"


def test_a_cluster_that_is_away_has_its_own_exit_code(
    route: Route, run_gapless: Gapless, bootstrap: str
) -> None:
    route.file.write_text(route.file.read_text().replace(bootstrap, "127.0.0.1:1"))
    ran = run_gapless("pipeline", "check", str(route.file))
    assert ran.code == 3
    away = f"{route.file}:4: cannot reach a Kafka broker at 127.0.0.1:1: Connection refused"
    assert f"✗ source:              {away}\n" in ran.out
    assert "- transform            not looked at" in ran.out
    ran = run_gapless("pipeline", "run", str(route.file))
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith(f"gapless: {route.file}:4: cannot reach a Kafka broker")


def test_a_file_that_is_not_there_is_told(run_gapless: Gapless) -> None:
    ran = run_gapless("pipeline", "run", "no-such.toml")
    assert (ran.code, ran.err) == (2, "gapless: cannot read no-such.toml: No such file or directory\n")
