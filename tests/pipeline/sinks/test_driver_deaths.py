"""The driver dies before, inside and after a commit: then each row is in each sink once (C8, E6)."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from gapless.testing.postgres import Postgres
from tests.pipeline.sinks.dying_driver import BATCHES, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(800)]

DEATHS = [
    ("postgres:before commit", 0),
    ("postgres:after commit", 1),
    ("delta:inside", 1),
    ("parquet:inside", 1),
]


def run_driver(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.pipeline.sinks.dying_driver", *arguments],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        start_new_session=True,
    )


@pytest.mark.slow
@pytest.mark.postgres
def test_wherever_the_driver_dies_each_row_is_in_each_sink_once(spark: SparkSession, tmp_path: Path) -> None:
    expected = [(number, f"row {number}") for batch in range(BATCHES) for number in values(batch)]
    with Postgres() as postgres:
        for point, batch in DEATHS:
            died = run_driver(str(tmp_path), postgres.dsn, point, str(batch))
            assert died.returncode == -signal.SIGKILL, f"{point} in batch {batch}: {died.stderr[-2000:]}"
        ended = run_driver(str(tmp_path), postgres.dsn)
        assert ended.returncode == 0, ended.stderr[-2000:]
        with psycopg.connect(postgres.dsn) as connection:
            assert connection.execute("SELECT id, value FROM numbers ORDER BY id").fetchall() == expected
    for kind in ("delta", "parquet"):
        rows = spark.read.format(kind).load(str(tmp_path / kind)).collect()
        assert sorted(tuple(row) for row in rows) == expected, kind
    # The deaths were real: they left files that no manifest knows.
    assert _files(tmp_path / "parquet") > len(spark.read.parquet(str(tmp_path / "parquet")).inputFiles())


def _files(folder: Path) -> int:
    return len(list(folder.rglob("*.parquet")))
