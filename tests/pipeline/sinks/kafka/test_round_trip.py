"""Rows become records, each once: aligned, shuffled, in one transaction, between clusters (C8, A5)."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gapless.pipeline import read_topic
from gapless.pipeline.folder import CheckpointFolder
from gapless.pipeline.plans import UnrepeatablePlan
from gapless.pipeline.sinks.kafka import KafkaSink, exactly_once_to_kafka
from gapless.pipeline.sinks.port import Batch, SinkContext, Written
from gapless.pipeline.tasks import RowRefused
from tests.pipeline.sinks.kafka.helpers import Case, committed_values, fill, new_topic, read_all

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.mark.parametrize("tasks", [None, 3, 1])
def test_every_record_comes_out_once(
    spark: SparkSession, bootstrap: str, output: str, tmp_path: Path, tasks: int | None
) -> None:
    """C8: from the embedded broker to either cluster; with `tasks` shuffled, without aligned."""
    case = Case(spark, bootstrap, output, tmp_path, records=2_000, tasks=tasks)
    assert case.sink.write(case.batch(0, 0, 400)) == Written(800, repeated=False)
    assert case.sink.write(case.batch(1, 400, 1_000)) == Written(1_200, repeated=False)
    assert case.written() == list(range(2_000))
    markers = case.sink.markers(case.context)
    aligned = {f"{case.input_topic}-{partition}": 1_000 for partition in (0, 1)}
    shuffled = {f"task-{number}": 2 for number in range(tasks or 0)}
    assert {slot: marker.position for slot, marker in markers.items()} == (
        aligned if tasks is None else shuffled
    )
    assert {marker.batch for marker in markers.values()} == {1}
    assert {marker.checkpoint for marker in markers.values()} == {case.context.folder.id}


@pytest.mark.parametrize("tasks", [None, 2])
def test_order_is_kept_for_each_key(
    spark: SparkSession, bootstrap: str, tmp_path: Path, tasks: int | None
) -> None:
    """A4: records with one key come out in the order in which their source partition has them."""
    case = Case(spark, bootstrap, bootstrap, tmp_path, records=1_000, tasks=tasks)
    rows = case.rows({0: (0, 500)})
    case.sink.write(Batch(0, rows))
    of_key = defaultdict(list)
    for record in case.records():
        of_key[record.key].append(int(record.value or b""))
    assert len(of_key) == 7
    assert all(values == sorted(values) for values in of_key.values())
    partitions = {(record.key, record.partition) for record in case.records()}
    assert len(partitions) == 7, "a key has one partition"


def test_all_that_a_record_can_have(spark: SparkSession, output: str, tmp_path: Path) -> None:
    """Keys and values as text or bytes or none, headers, partitions, timestamps, several topics."""
    topics = [new_topic(output, 3) for _ in range(2)]
    # Not older than what retention keeps.
    when = datetime.now(UTC).replace(microsecond=123_000) - timedelta(hours=1)
    columns = (
        "key string, value binary, topic string, partition int, timestamp timestamp, "
        "headers array<struct<key:string,value:binary>>"
    )
    rows = spark.createDataFrame(
        [
            ("k1", b"\x00\xff", topics[0], 2, when, [("a", b"1"), ("b", None), ("a", b"")]),
            (None, None, topics[1], 1, when, None),
            ("k\u00e4", b"", topics[1], None, None, []),
        ],
        columns,
    )
    sink = KafkaSink(output)
    sink.check(rows.schema)
    sink.open(SinkContext("all-columns", "out", CheckpointFolder(spark, tmp_path), spark))
    assert sink.write(Batch(0, rows)).rows == 3
    [first] = read_all(output, topics[0])
    assert (first.partition, first.key, first.value) == (2, b"k1", b"\x00\xff")
    assert list(first.headers) == [("a", b"1"), ("b", None), ("a", b"")]
    assert first.timestamp_ms == int(when.timestamp() * 1000)
    by_key = {record.key: record for record in read_all(output, topics[1])}
    assert by_key[None][1:2] == (1,)
    assert by_key[None].value is None
    assert by_key["k\u00e4".encode()].value == b""
    assert len(by_key) == 2
    with pytest.raises(RowRefused, match="topic None"):
        sink.write(Batch(1, rows.selectExpr("value", "CAST(NULL AS string) AS topic")))
    sink.clean(SinkContext("all-columns", "out", CheckpointFolder(spark, tmp_path), spark))


@pytest.mark.parametrize("tasks", [None, 2])
def test_a_batch_without_rows(spark: SparkSession, bootstrap: str, tmp_path: Path, tasks: int | None) -> None:
    case = Case(spark, bootstrap, bootstrap, tmp_path, records=400, tasks=tasks)
    nothing = case.batch(0, 0, 100).rows.filter("value = 'x'")
    assert case.sink.write(Batch(0, nothing)) == Written(0, repeated=False)
    assert case.sink.write(Batch(0, nothing)) == Written(0, repeated=True)
    assert case.sink.write(case.batch(1, 100, 200)).rows == 200
    assert case.written() == list(range(200, 400))


def test_one_function_in_any_streaming_query(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """The marker is the next source offset: nothing shuffles. A query that starts again goes on."""
    source, out = new_topic(bootstrap), new_topic(bootstrap)
    fill(bootstrap, source, range(300))

    def each_batch(rows: DataFrame, number: int) -> None:
        exactly_once_to_kafka(
            rows.select("key", "value"),
            number,
            name=f"copy-{source}",
            bootstrap=bootstrap,
            topic=out,
            checkpoint=tmp_path,
        )

    def run(each: object = each_batch) -> None:
        stream = read_topic(spark, bootstrap, source).writeStream.foreachBatch(each)  # type: ignore[arg-type]
        query = stream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        query.awaitTermination(120)

    run()
    fill(bootstrap, source, range(300, 500))
    run()
    assert committed_values(bootstrap, out) == list(range(500))
    context = SinkContext(f"copy-{source}", "kafka", CheckpointFolder(spark, tmp_path), spark)
    markers = KafkaSink(bootstrap).markers(context)
    assert {slot: marker.position for slot, marker in markers.items()} == {
        f"{source}-0": 250,
        f"{source}-1": 250,
    }

    def random_batch(rows: DataFrame, number: int) -> None:
        each_batch(rows.selectExpr("key", "CAST(rand() AS string) AS value"), number)

    fill(bootstrap, source, range(500, 600))
    with pytest.raises(Exception, match=r"rand.* gives another result when the batch is repeated") as refused:
        run(random_batch)
    assert UnrepeatablePlan.__name__ in str(refused.value)
    run()
    assert committed_values(bootstrap, out) == list(range(600))
