"""Batches of Spark in a Delta table, each row once, whatever is repeated (C8, E6)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gapless.pipeline.folder import CheckpointFolder
from gapless.pipeline.sinks.delta import DeltaSink
from gapless.pipeline.sinks.port import Batch, SinkContext, SinkRefused, Written
from gapless.pipeline.slots import MarkerMismatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def numbers(session: SparkSession, start: int, end: int) -> DataFrame:
    return session.range(start, end, numPartitions=2).selectExpr("id", "concat('row ', id) AS value")


def changes(session: SparkSession, *rows: tuple[int | None, str, int | None]) -> DataFrame:
    return session.createDataFrame(list(rows), "id long, value string, at int")


def found(session: SparkSession, path: Path) -> list[tuple[Any, ...]]:
    rows = session.read.format("delta").load(str(path)).select("id", "value").collect()
    return sorted(tuple(row) for row in rows)


def opened(sink: DeltaSink, context: SinkContext) -> DeltaSink:
    sink.open(context)
    return sink


def test_a_repeated_batch_writes_nothing(context: SinkContext, session: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table"
    sink = opened(DeltaSink(path), context)
    assert sink.write(Batch(0, numbers(session, 0, 10))) == Written(10, repeated=False)
    assert sink.write(Batch(0, numbers(session, 0, 10))) == Written(0, repeated=True)
    commit = [json.loads(line) for line in (path / "_delta_log" / f"{0:020d}.json").read_text().splitlines()]
    assert commit[0]["commitInfo"]["userMetadata"].startswith("gapless orders/out batch 0 ")
    assert [each["txn"]["version"] for each in commit if "txn" in each] == [0]
    # Somebody else's commit in between does not confuse the count.
    numbers(session, 100, 103).write.format("delta").mode("append").save(str(path))
    assert sink.write(Batch(1, numbers(session, 10, 25))) == Written(15, repeated=False)
    again = opened(DeltaSink(path), context)
    assert again.write(Batch(1, numbers(session, 10, 25))) == Written(0, repeated=True)
    # A driver that had not seen the commit: Delta itself leaves the batch out.
    assert again._append(Batch(1, numbers(session, 10, 25))) is None
    assert again.write(Batch(2, numbers(session, 0, 0))) == Written(0, repeated=False)
    assert again.write(Batch(3, numbers(session, 0, 0))) == Written(0, repeated=False)
    assert found(session, path) == sorted((n, f"row {n}") for n in [*range(25), 100, 101, 102])
    assert session.conf.get("spark.databricks.delta.write.txnAppId", None) is None


def test_a_checkpoint_and_a_table_that_do_not_belong_together_are_refused(
    context: SinkContext, session: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    sink = opened(DeltaSink(path), context)
    sink.write(Batch(0, numbers(session, 0, 10)))
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "old checkpoint")
    shutil.copytree(path, tmp_path / "old table")
    sink.write(Batch(1, numbers(session, 10, 20)))
    # The checkpoint from a backup plans batch 1 anew, perhaps with other rows.
    old = context._replace(folder=CheckpointFolder(session, tmp_path / "old checkpoint"))
    with pytest.raises(MarkerMismatch, match="has batch 1, which this checkpoint has not reached"):
        opened(DeltaSink(path), old).write(Batch(1, numbers(session, 10, 22)))
    with pytest.raises(MarkerMismatch, match="lost what was committed"):
        opened(DeltaSink(tmp_path / "old table"), context).write(Batch(2, numbers(session, 20, 30)))
    with pytest.raises(MarkerMismatch, match="has nothing of this checkpoint"):
        opened(DeltaSink(tmp_path / "no table"), context).write(Batch(2, numbers(session, 20, 30)))
    assert found(session, path) == [(n, f"row {n}") for n in range(20)]


def test_another_checkpoint_is_refused_until_the_transactions_are_cleaned(
    context: SinkContext, fresh_context: SinkContext, session: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    sink = opened(DeltaSink(path), context)
    sink.write(Batch(0, numbers(session, 0, 10)))
    with pytest.raises(SinkRefused, match="another checkpoint of pipeline orders has written to"):
        DeltaSink(path).open(fresh_context)
    DeltaSink(path).open(fresh_context._replace(sink="second"))
    assert sink.clean(fresh_context) == [
        f"transaction gapless.orders.out.{context.folder.id} at 0 in {path}",
    ]
    assert sink.clean(fresh_context) == []
    again = opened(DeltaSink(path), fresh_context)
    assert again.write(Batch(0, numbers(session, 10, 12))) == Written(2, repeated=False)
    assert found(session, path) == [(n, f"row {n}") for n in range(12)]
    with pytest.raises(SinkRefused, match="were removed by `clean`"):
        sink.write(Batch(1, numbers(session, 0, 5)))


def test_rows_of_a_key_replace_each_other_once(
    context: SinkContext, session: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    sink = opened(DeltaSink(path, key=["id"]), context)
    assert sink.write(Batch(0, changes(session, (1, "a", 1), (2, "b", 1)))) == Written(2, repeated=False)
    second = changes(session, (2, "c", 2), (3, "d", 2))
    assert sink.write(Batch(1, second)) == Written(2, repeated=False)
    session.sql(f"UPDATE delta.`{path}` SET value = 'by hand' WHERE id = 3")
    assert sink.write(Batch(1, second)) == Written(0, repeated=True)
    # Delta itself would have left it out, too.
    assert sink._merge(Batch(1, second)) is None
    assert found(session, path) == [(1, "a"), (2, "c"), (3, "by hand")]


def test_the_latest_row_of_a_key_stays_whatever_order_they_come_in(
    context: SinkContext, session: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    sink = opened(DeltaSink(path, key=["id"], latest_by="at"), context)
    first = changes(session, (1, "old", 1), (1, "new", 5), (1, "older", 0), (2, "b", None), (3, "c", 3))
    assert sink.write(Batch(0, first)).rows == 3
    late = changes(session, (1, "late", 4), (2, "known", 1), (3, "same", 3))
    assert sink.write(Batch(1, late)).rows == 2
    # Batches that change nothing are written, too: the ones after them go on.
    assert sink.write(Batch(2, changes(session, (1, "late", 4)))) == Written(0, repeated=False)
    assert sink.write(Batch(3, changes(session, (1, "late", 4)).where("id > 1"))) == Written(
        0, repeated=False
    )
    assert sink.write(Batch(3, changes(session, (1, "late", 4)).where("id > 1"))) == Written(0, repeated=True)
    assert sink.write(Batch(4, changes(session, (4, "d", 1)))) == Written(1, repeated=False)
    assert found(session, path) == [(1, "new"), (2, "known"), (3, "same"), (4, "d")]


def test_rows_of_which_none_is_the_latest_or_without_a_key_are_refused(
    context: SinkContext, session: SparkSession, tmp_path: Path
) -> None:
    sink = opened(DeltaSink(tmp_path / "table", key=["id"], latest_by="at"), context)
    with pytest.raises(SinkRefused, match=r"several rows of one batch have the same key.*set latest_by"):
        sink.write(Batch(0, changes(session, (1, "a", 1), (1, "b", 1), (1, "c", 0))))
    with pytest.raises(SinkRefused, match="a row has no value in a column of the key"):
        sink.write(Batch(0, changes(session, (None, "a", 1))))
    assert found(session, tmp_path / "table") == []
    assert sink.write(Batch(0, changes(session, (1, "a", 1)))).rows == 1


def test_rows_that_do_not_fit_are_refused_before_anything_is_written(
    context: SinkContext, session: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    rows = numbers(session, 0, 3)
    DeltaSink(path).check(rows.schema)
    assert not path.exists()
    opened(DeltaSink(path), context).write(Batch(0, rows))
    for columns, said in [
        (["id", "value", "1 AS more"], "has no column more"),
        (["CAST(id AS INT) AS id", "value"], "id is bigint in the table .* but the rows have int"),
        (["id"], "has value, which the rows have not"),
    ]:
        with pytest.raises(SinkRefused, match=said):
            DeltaSink(path).check(rows.selectExpr(*columns).schema)
        with pytest.raises(SinkRefused, match=said):
            opened(DeltaSink(path), context).write(Batch(1, rows.selectExpr(*columns)))
    for sink, said in [
        (DeltaSink(path, key=["nr"]), "the rows have no column nr"),
        (DeltaSink(path, key=["id"], latest_by="id"), "a column besides"),
        (DeltaSink(tmp_path), "has files but is no Delta table"),
    ]:
        with pytest.raises(SinkRefused, match=said):
            sink.check(rows.schema)
    opened(DeltaSink(path), context).write(Batch(1, rows))
    assert len(found(session, path)) == 6
