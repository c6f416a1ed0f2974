"""A topic becomes a table: every record once, whatever is repeated."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gapless.errors import UsageError
from gapless.pipeline import read_table, topic_to_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gapless.pipeline.table import TableFormat

    Send = Callable[[range], None]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def numbers_in(spark: SparkSession, table: Path, table_format: TableFormat) -> list[int]:
    return sorted(int(row.value) for row in read_table(spark, table, table_format).select("value").collect())


def carry(spark: SparkSession, bootstrap: str, topic: str, table: Path, table_format: TableFormat) -> None:
    """Carry what is there into the table and stop."""
    query = topic_to_table(spark, bootstrap, topic, table, table_format=table_format, available_now=True)
    assert query.awaitTermination(120)


def test_every_column_of_a_record_arrives(
    spark: SparkSession, bootstrap: str, topic: str, send: Send, tmp_path: Path
) -> None:
    send(range(10))
    query = topic_to_table(spark, bootstrap, topic, tmp_path / "table")
    query.processAllAvailable()
    query.stop()
    rows = read_table(spark, tmp_path / "table").orderBy("partition", "offset").collect()
    assert [(row.topic, row.partition, row.offset) for row in rows] == [
        (topic, partition, offset) for partition in range(2) for offset in range(5)
    ]
    for row in rows:
        number = row.offset * 2 + row.partition
        assert (bytes(row.key), bytes(row.value)) == (b"k%d" % number, str(number).encode())
        assert row.timestamp.year >= 2024


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_a_stopped_job_goes_on_where_it_stopped(
    table_format: TableFormat, spark: SparkSession, bootstrap: str, topic: str, send: Send, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    send(range(100))
    carry(spark, bootstrap, topic, table, table_format)
    send(range(100, 150))
    carry(spark, bootstrap, topic, table, table_format)
    assert numbers_in(spark, table, table_format) == list(range(150))


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_a_batch_repeated_after_a_crash_is_not_doubled(
    table_format: TableFormat, spark: SparkSession, bootstrap: str, topic: str, send: Send, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    send(range(100))
    carry(spark, bootstrap, topic, table, table_format)
    # As after a crash between the write of a batch and the note that it is done: Spark runs the batch again.
    commits = tmp_path / "table.checkpoint" / "commits"
    shutil.rmtree(commits)
    send(range(100, 120))
    carry(spark, bootstrap, topic, table, table_format)
    assert (commits / "0").exists()  # it did run again
    assert numbers_in(spark, table, table_format) == list(range(120))


def test_a_format_that_is_none_is_refused(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="parquet or delta, not csv"):
        topic_to_table(spark, bootstrap, topic, tmp_path, table_format="csv")  # type: ignore[arg-type]
