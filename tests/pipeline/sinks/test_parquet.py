"""Batches of Spark in a folder of Parquet files, each row once, whatever is repeated (C8, E6)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gapless.pipeline.folder import CheckpointFolder
from gapless.pipeline.sinks.parquet import ParquetSink
from gapless.pipeline.sinks.port import Batch, SinkContext, SinkRefused, Written
from gapless.pipeline.slots import MarkerMismatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def numbers(session: SparkSession, start: int, end: int) -> DataFrame:
    return session.range(start, end, numPartitions=2).selectExpr("id", "concat('row ', id) AS value")


def found(session: SparkSession, path: Path) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in session.read.parquet(str(path)).select("id", "value").collect())


def opened(sink: ParquetSink, context: SinkContext) -> ParquetSink:
    sink.open(context)
    return sink


def test_a_repeated_batch_writes_nothing(context: SinkContext, session: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "rows"
    sink = opened(ParquetSink(path), context)
    assert sink.write(Batch(0, numbers(session, 0, 10))) == Written(10, repeated=False)
    assert sink.write(Batch(0, numbers(session, 0, 10))) == Written(0, repeated=True)
    # What a crash left in the folder is in no manifest.
    left = next(path.glob("part-*.parquet"))
    shutil.copy(left, path / "part-99999-of-a-dead-batch.parquet")
    again = opened(ParquetSink(path), context)
    assert again.write(Batch(1, numbers(session, 10, 25).cache())) == Written(15, repeated=False)
    assert again.write(Batch(1, numbers(session, 10, 25))) == Written(0, repeated=True)
    for number in (2, 3):
        again = opened(ParquetSink(path), context)
        assert again.write(Batch(number, numbers(session, 0, 0))) == Written(0, repeated=False)
    assert found(session, path) == [(n, f"row {n}") for n in range(25)]


def test_spark_joins_entries_of_the_manifest_and_batches_go_on(
    context: SinkContext, session: SparkSession, tmp_path: Path
) -> None:
    session.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "2")
    sink = opened(ParquetSink(tmp_path / "rows"), context)
    for number in range(4):
        rows = numbers(session, number, number + 1)
        assert sink.write(Batch(number, rows)) == Written(1, repeated=False)
        assert sink.write(Batch(number, rows)) == Written(0, repeated=True)
    assert (tmp_path / "rows" / "_spark_metadata" / "3.compact").exists()
    assert found(session, tmp_path / "rows") == [(n, f"row {n}") for n in range(4)]


def test_columns_can_become_folders(context: SinkContext, session: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "rows"
    rows = numbers(session, 0, 10).selectExpr("*", "id % 2 AS odd")
    sink = ParquetSink(path, partition_by=["odd"])
    sink.check(rows.schema)
    assert not path.exists()
    sink.open(context)
    assert sink.write(Batch(0, rows)).rows == 10
    sink.check(rows.schema)
    assert sorted(each.name for each in path.glob("odd=*")) == ["odd=0", "odd=1"]
    assert session.read.parquet(str(path)).where("odd = 1").count() == 5
    with pytest.raises(SinkRefused, match="is partitioned by odd, not by nothing"):
        ParquetSink(path).open(context)
    with pytest.raises(SinkRefused, match="no column day to partition by"):
        ParquetSink(tmp_path / "other", partition_by=["day"]).check(rows.schema)
    with pytest.raises(SinkRefused, match="partition_by has every column"):
        ParquetSink(tmp_path / "other", partition_by=["id"]).check(rows.select("id").schema)


def test_a_checkpoint_and_a_folder_that_do_not_belong_together_are_refused(
    context: SinkContext, session: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "rows"
    sink = opened(ParquetSink(path), context)
    sink.write(Batch(0, numbers(session, 0, 10)))
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "old checkpoint")
    sink.write(Batch(1, numbers(session, 10, 20)))
    old = context._replace(folder=CheckpointFolder(session, tmp_path / "old checkpoint"))
    with pytest.raises(MarkerMismatch, match="has batch 1, which this checkpoint has not reached"):
        opened(ParquetSink(path), old).write(Batch(1, numbers(session, 10, 22)))
    shutil.rmtree(path)
    with pytest.raises(MarkerMismatch, match="has nothing of this checkpoint"):
        opened(ParquetSink(path), context).write(Batch(2, numbers(session, 20, 30)))


def test_another_checkpoint_is_refused_until_the_owner_is_cleaned(
    context: SinkContext, fresh_context: SinkContext, session: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "rows"
    sink = opened(ParquetSink(path), context)
    sink.write(Batch(0, numbers(session, 0, 10)))
    sink.write(Batch(1, numbers(session, 10, 20)))
    for other in (fresh_context, fresh_context._replace(pipeline="others")):
        with pytest.raises(SinkRefused, match=r"another checkpoint \(of pipeline orders, sink out\)"):
            ParquetSink(path).open(other)
    with pytest.raises(SinkRefused, match="belongs to pipeline orders"):
        sink.clean(context._replace(pipeline="others"))
    assert sink.clean(fresh_context) == [f"owner {context.folder.id} of {path}"]
    assert sink.clean(fresh_context) == []
    # Its batches begin at 0 again, and are not taken for the old ones.
    again = opened(ParquetSink(path), fresh_context)
    assert again.write(Batch(0, numbers(session, 20, 22))) == Written(2, repeated=False)
    assert again.write(Batch(0, numbers(session, 20, 22))) == Written(0, repeated=True)
    assert found(session, path) == [(n, f"row {n}") for n in range(22)]


def test_a_folder_of_somebody_else_or_other_columns_are_refused(
    context: SinkContext, session: SparkSession, tmp_path: Path
) -> None:
    numbers(session, 0, 3).write.parquet(str(tmp_path / "plain"))
    with pytest.raises(SinkRefused, match="has files that are in no manifest"):
        ParquetSink(tmp_path / "plain").open(context)
    opened(ParquetSink(tmp_path / "streamed"), context).write(Batch(0, numbers(session, 0, 3)))
    shutil.rmtree(tmp_path / "streamed" / "_spark_metadata" / "gapless")
    with pytest.raises(SinkRefused, match="was written by another streaming job"):
        ParquetSink(tmp_path / "streamed").check(numbers(session, 0, 3).schema)
    path = tmp_path / "rows"
    fresh = context._replace(folder=CheckpointFolder(session, tmp_path / "second"))
    sink = opened(ParquetSink(path), fresh)
    sink.write(Batch(0, numbers(session, 0, 3)))
    for columns, said in [
        (["id"], "have value as string, the rows as nothing"),
        (["CAST(id AS INT) AS id", "value"], "have id as bigint, the rows as int"),
    ]:
        with pytest.raises(SinkRefused, match=said):
            sink.write(Batch(1, numbers(session, 0, 3).selectExpr(*columns)))
    assert len(found(session, path)) == 3
