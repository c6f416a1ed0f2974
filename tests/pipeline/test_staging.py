"""A staged batch comes out the same whenever it is repeated, whatever the transform would say then (C8)."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gapless.pipeline.folder import CheckpointFolder
from gapless.pipeline.staging import StagedUnreadable, Staging

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(spark, tmp_path / "checkpoint")


def sorted_rows(rows: DataFrame) -> list[Any]:
    return sorted(rows.collect(), key=repr)


def test_what_is_frozen_stays_whatever_comes_after(spark: SparkSession, folder: CheckpointFolder) -> None:
    staging = Staging(folder)
    first = staging.freeze(spark.range(5).selectExpr("id", "uuid() AS random"), 7)
    again = Staging(folder).freeze(spark.range(9).selectExpr("id", "uuid() AS random"), 7)
    assert sorted_rows(first) == sorted_rows(first) == sorted_rows(again)
    assert first.count() == 5


def test_columns_that_are_called_otherwise_by_now_do_not_come_out_empty(
    spark: SparkSession, folder: CheckpointFolder
) -> None:
    Staging(folder).freeze(spark.sql("SELECT 1 AS id, 2.5D AS amount"), 0)
    again = Staging(folder).freeze(spark.sql("SELECT 1 AS id, 2.5D AS total, 'x' AS more"), 0)
    assert [row.asDict() for row in again.collect()] == [{"id": 1, "amount": 2.5}]


def test_an_attempt_that_was_cut_off_counts_for_nothing(
    spark: SparkSession, folder: CheckpointFolder
) -> None:
    """Also where another driver, believed dead, is still at it: each has a folder of its own."""
    spark.range(3).write.parquet(folder.location("staged/4-dead"))
    assert Staging(folder).freeze(spark.range(2), 4).count() == 2


def test_the_first_of_two_attempts_at_once_counts_for_both(
    spark: SparkSession, folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_once, others = folder.write_once, []

    def while_another_is_quicker(name: str, data: bytes) -> None:
        monkeypatch.undo()
        others.append(Staging(folder).freeze(spark.range(10, 14), 4))
        write_once(name, data)

    monkeypatch.setattr(folder, "write_once", while_another_is_quicker)
    ours = Staging(folder).freeze(spark.range(2), 4)
    assert sorted_rows(ours) == sorted_rows(others[0])
    assert ours.count() == 4


def test_every_kind_of_column_and_no_row_at_all(spark: SparkSession, folder: CheckpointFolder) -> None:
    schema = (
        "b BINARY, s STRING, t TIMESTAMP, d DATE, m DECIMAL(20, 3), "
        "a ARRAY<STRUCT<key: STRING, value: BINARY>>, "
        "p MAP<STRING, INT>, n STRUCT<x: STRUCT<y: DOUBLE>>, `a b, c.d;` BIGINT, day STRING"
    )
    when = dt.datetime(2024, 2, 29, 23, 59, 59, 999999, dt.UTC)
    row = (b"\0\xff", "", when, when.date(), decimal.Decimal("1.001"), [("h", b"\0"), ("i", None)])
    rows = spark.createDataFrame([(*row, {"": 1}, ((float("inf"),),), 2**62, "a=b"), (None,) * 10], schema)
    staging = Staging(folder)
    assert sorted_rows(staging.freeze(rows, 0)) == sorted_rows(rows)
    assert staging.freeze(rows.where("false"), 1).collect() == []
    assert Staging(folder).freeze(rows.where("false"), 1).schema.simpleString() == rows.schema.simpleString()


def test_only_the_last_batches_are_kept(spark: SparkSession, folder: CheckpointFolder) -> None:
    staging = Staging(folder)
    for number in range(8, 12):
        staging.freeze(spark.range(1), number)
    assert {name.split("-")[0].split(".")[0] for name in folder.names("staged")} == {"10", "11"}


def test_a_garbled_note_is_told(spark: SparkSession, folder: CheckpointFolder) -> None:
    Staging(folder).freeze(spark.range(1), 0)
    folder.write("staged/0.json", b"{")
    with pytest.raises(StagedUnreadable, match=r"staged/0.json of the checkpoint cannot be read"):
        Staging(folder).freeze(spark.range(1), 0)
