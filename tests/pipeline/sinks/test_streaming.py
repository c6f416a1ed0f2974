"""The three sinks inside of a streaming query, which hands them sessions and plans of its own (C8)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from gapless.pipeline.folder import CheckpointFolder
from gapless.pipeline.sinks.delta import DeltaSink
from gapless.pipeline.sinks.parquet import ParquetSink
from gapless.pipeline.sinks.port import Batch, Sink, SinkContext
from gapless.pipeline.sinks.postgres import PostgresSink
from gapless.pipeline.table import read_topic
from gapless.testing.postgres import Postgres

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.mark.postgres
def test_a_query_that_is_stopped_and_started_writes_each_record_once_to_all(
    spark: SparkSession, bootstrap: str, topic: str, send: Callable[[range], None], tmp_path: Path
) -> None:
    with Postgres() as postgres:

        def carry() -> dict[str, int]:
            """What is there, each batch offered twice. Says how many rows went into each sink."""
            folder = CheckpointFolder(spark, tmp_path / "checkpoint")
            sinks: dict[str, Sink] = {
                "postgres": PostgresSink(postgres.dsn, "records"),
                "delta": DeltaSink(tmp_path / "delta"),
                "latest": DeltaSink(tmp_path / "latest", key=["partition"], latest_by="offset"),
                "parquet": ParquetSink(tmp_path / "parquet"),
            }
            written = dict.fromkeys(sinks, 0)
            for name, sink in sinks.items():
                sink.open(SinkContext("records", name, folder, spark))

            def each_batch(rows: DataFrame, number: int) -> None:
                rows.persist()
                for name, sink in sinks.items():
                    written[name] += sink.write(Batch(number, rows)).rows
                    assert sink.write(Batch(number, rows)) == (0, True)
                rows.unpersist()

            records = read_topic(spark, bootstrap, topic).selectExpr(
                "partition", "offset", "CAST(value AS STRING) AS value"
            )
            query = records.writeStream.foreachBatch(each_batch).option(
                "checkpointLocation", str(tmp_path / "checkpoint")
            )
            query.trigger(availableNow=True).start().awaitTermination()
            return written

        send(range(100))
        assert carry() == {"postgres": 100, "delta": 100, "latest": 2, "parquet": 100}
        send(range(100, 150))
        assert carry() == {"postgres": 50, "delta": 50, "latest": 2, "parquet": 50}
        with psycopg.connect(postgres.dsn) as connection:
            in_table = connection.execute("SELECT value FROM records").fetchall()
            markers = connection.execute(
                "SELECT slot, position FROM gapless_markers ORDER BY slot"
            ).fetchall()
    assert markers == [(f"{topic}-0", 75), (f"{topic}-1", 75)]
    expected = sorted(str(number) for number in range(150))
    assert sorted(value for (value,) in in_table) == expected
    for kind in ("delta", "parquet"):
        rows = spark.read.format(kind).load(str(tmp_path / kind)).collect()
        assert sorted(row.value for row in rows) == expected, kind
    latest = spark.read.format("delta").load(str(tmp_path / "latest")).collect()
    assert {row.partition: row.value for row in latest} == {0: "148", 1: "149"}
