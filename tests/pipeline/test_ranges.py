"""Which task reads which offsets is known where it can be known, and nowhere else (C8)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gapless.pipeline.ranges import Range, source_ranges
from gapless.pipeline.table import read_topic
from tests.pipeline.kafka_batches import filled_topic, read_offsets, session_for_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Transform = Callable[[DataFrame], DataFrame]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    return session_for_batches(spark)


@pytest.fixture(scope="module")
def topic(bootstrap: str) -> str:
    return filled_topic(bootstrap, records=15)


@pytest.fixture
def rows(session: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    return read_offsets(session, bootstrap, topic, {0: (2, 7), 1: (0, 10)})


def read_by_tasks(rows: DataFrame) -> list[tuple[int, int, int]]:
    """For each task that has rows: the source partition, its first offset and the one after the last."""
    rows = rows.groupBy("partition").agg({"offset": "min", "*": "count"})
    return sorted(
        (row[0], row["min(offset)"], row["min(offset)"] + row["count(1)"]) for row in rows.collect()
    )


def test_each_partition_of_a_batch_has_its_offsets(rows: DataFrame, topic: str) -> None:
    ranges = source_ranges(rows)
    assert ranges is not None
    assert sorted(ranges) == [Range(topic, 0, 2, 7), Range(topic, 1, 0, 10)]
    assert [found.name for found in sorted(ranges)] == [f"{topic}-0", f"{topic}-1"]
    assert read_by_tasks(rows) == [(0, 2, 7), (1, 0, 10)]


def test_the_order_is_that_of_the_tasks(rows: DataFrame) -> None:
    ranges = source_ranges(rows)
    assert ranges is not None
    found = rows.selectExpr("spark_partition_id() AS task", "partition").distinct().collect()
    assert {row.task: row.partition for row in found} == {
        task: each.partition for task, each in enumerate(ranges)
    }


def _persisted(rows: DataFrame) -> DataFrame:
    kept = rows.where("offset > 3").persist()
    kept.count()
    return kept.select("value")


KEEPS: dict[str, Transform] = {
    "filter": lambda rows: rows.where("offset % 2 = 0"),
    "no column of the source": lambda rows: rows.selectExpr("upper(value) AS loud"),
    "explode": lambda rows: rows.selectExpr("explode(array(value, value)) AS value"),
    "python": lambda rows: rows.mapInArrow(lambda batches: batches, rows.schema),
    "sort within": lambda rows: rows.sortWithinPartitions("offset", ascending=False),
    "broadcast join": lambda rows: rows.join(rows.sparkSession.range(3).hint("broadcast"), how="cross"),
    "persisted": _persisted,
}
LOSES: dict[str, Transform] = {
    "repartition": lambda rows: rows.repartition(2),
    "group": lambda rows: rows.groupBy("value").count(),
    "distinct": lambda rows: rows.distinct(),
    "coalesce": lambda rows: rows.coalesce(1),
    "union": lambda rows: rows.union(rows),
    "join": lambda rows: rows.join(
        rows.selectExpr("value AS v").hint("merge"), rows["value"] == rows["value"]
    ),
    "sort": lambda rows: rows.orderBy("offset"),
    "limit": lambda rows: rows.limit(3),
    "constant": lambda rows: rows.sparkSession.range(5),
    "nothing": lambda rows: rows.where("false"),
}


@pytest.mark.parametrize("name", KEEPS)
def test_what_stays_in_its_partition_keeps_its_offsets(rows: DataFrame, topic: str, name: str) -> None:
    changed = KEEPS[name](rows)
    ranges = source_ranges(changed)
    rows.sparkSession.catalog.clearCache()
    assert ranges is not None
    assert sorted(ranges) == [Range(topic, 0, 2, 7), Range(topic, 1, 0, 10)]


@pytest.mark.parametrize("name", LOSES)
def test_what_leaves_its_partition_has_none(rows: DataFrame, name: str) -> None:
    assert source_ranges(LOSES[name](rows)) is None


def test_a_source_partition_that_several_tasks_share_has_none(
    session: SparkSession, bootstrap: str, topic: str, rows: DataFrame
) -> None:
    split = read_offsets(session, bootstrap, topic, {0: (0, 10), 1: (0, 10)}, minPartitions="4")
    assert split.rdd.getNumPartitions() == 4
    assert source_ranges(split) is None
    assert source_ranges(rows) is not None


def test_a_stream_gives_each_batch_its_offsets_without_gaps(
    session: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    seen: list[tuple[list[Range] | None, list[tuple[int, int, int]]]] = []

    def look(batch: DataFrame, number: int) -> None:
        batch.sparkSession.conf.set("spark.sql.adaptive.enabled", "false")
        found = source_ranges(batch.where("offset >= 0").select("*"))
        seen.append((found, read_by_tasks(batch)))

    stream = read_topic(session, bootstrap, topic, options={"maxOffsetsPerTrigger": "10"})
    query = stream.writeStream.foreachBatch(look).option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert query.trigger(availableNow=True).start().awaitTermination(120)
    assert len(seen) == 3
    positions = {0: 0, 1: 0}
    for ranges, read in seen:
        assert ranges is not None
        assert sorted((each.partition, each.start, each.end) for each in ranges) == read
        for each in ranges:
            assert each.start == positions[each.partition]
            positions[each.partition] = each.end
    assert positions == {0: 15, 1: 15}
