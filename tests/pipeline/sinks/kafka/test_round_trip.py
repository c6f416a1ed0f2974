"""Rows become records, each once: aligned, shuffled, in one transaction, between clusters (C8, A5)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.sinks.kafka.helpers import Case

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.mark.parametrize("tasks", [None, 3, 1])
def test_every_record_comes_out_once(
    spark: SparkSession, bootstrap: str, output: str, tmp_path: Path, tasks: int | None
) -> None:
    """C8: from the embedded broker to either cluster; with `tasks` shuffled, without aligned."""
    case = Case(spark, bootstrap, output, tmp_path, records=2_000, tasks=tasks)
    assert case.sink.write(case.batch(0, 0, 400)) == (800, False)
    assert case.sink.write(case.batch(1, 400, 1_000)) == (1_200, False)
    assert case.written() == list(range(2_000))
    slots = case.sink.markers(case.context)
    if tasks is None:
        assert {name: marker.position for name, marker in slots.items()} == {
            f"{case.input_topic}-0": 1_000,
            f"{case.input_topic}-1": 1_000,
        }
    else:
        assert {name: marker.position for name, marker in slots.items()} == {
            f"task-{number}": 2 for number in range(tasks)
        }
    assert {marker.batch for marker in slots.values()} == {1}
    assert {marker.checkpoint for marker in slots.values()} == {case.context.folder.id}
