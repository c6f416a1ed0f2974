"""Batches of numbers into three sinks, in a process that dies where it is told to, with its Spark.

    python -m tests.pipeline.sinks.dying_driver FOLDER DSN [POINT BATCH]

Points: `postgres:before commit` and `postgres:after commit` of one of its tasks, `delta:inside` and
`parquet:inside` while tasks write files, `SINK:after` when the sink has the batch and nobody knows.
Without a point it writes all batches, and ends. The file `done` stands for Spark's log of finished batches.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapless.pipeline import spark_session
from gapless.pipeline.folder import CheckpointFolder
from gapless.pipeline.sinks.delta import DeltaSink
from gapless.pipeline.sinks.parquet import ParquetSink
from gapless.pipeline.sinks.port import Batch, Sink, SinkContext
from gapless.pipeline.sinks.postgres import PostgresSink
from gapless.pipeline.sinks.postgres.tables import Column
from gapless.pipeline.sinks.postgres.writer import PostgresWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCHES = 3
ROWS = 3000
SINKS = ("postgres", "delta", "parquet")


def values(number: int) -> range:
    """The ids of a batch."""
    return range(number * ROWS, (number + 1) * ROWS)


@dataclass(frozen=True, slots=True)
class MortalWriter(PostgresWriter):
    """One of its tasks kills the driver around its commit."""

    death: str = ""
    driver: int = 0

    def _commit(self, connection: Any) -> None:
        mine = connection.execute("SHOW application_name").fetchone()[0].endswith("task-1")
        if mine and self.death == "postgres:before commit":
            os.killpg(self.driver, signal.SIGKILL)
        connection.execute("COMMIT")
        if mine and self.death == "postgres:after commit":
            os.killpg(self.driver, signal.SIGKILL)


class MortalSink(PostgresSink):
    def __init__(self, dsn: str, death: str) -> None:
        super().__init__(dsn, "numbers", tasks=3)
        self.death = death

    def _writer(self, context: SinkContext, columns: Sequence[Column]) -> PostgresWriter:
        made = super()._writer(context, columns)
        settings = {each.name: getattr(made, each.name) for each in fields(made)}
        return MortalWriter(**settings, death=self.death, driver=os.getpgid(0))


def rows_of(spark: SparkSession, number: int, *, deadly: bool) -> DataFrame:
    """The rows of a batch; deadly ones kill the driver as the last of them come by."""
    ids = values(number)
    rows = spark.range(ids.start, ids.stop, numPartitions=3).selectExpr("id", "concat('row ', id) AS value")
    if not deadly:
        return rows
    driver, last = os.getpgid(0), ids.stop - 1

    def kill(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch.slice(0, len(batch) // 2)
            if last in batch.column("id").to_pylist():
                os.killpg(driver, signal.SIGKILL)
            yield batch.slice(len(batch) // 2)

    return rows.mapInArrow(kill, rows.schema)


def main(folder: str, dsn: str, point: str = "", batch: str = "-1") -> None:
    spark = spark_session("dying", short_lived=True)
    done = Path(folder) / "done"
    checkpoint = CheckpointFolder(spark, f"{folder}/checkpoint")
    for number in range(int(done.read_text()) if done.exists() else 0, BATCHES):
        death = point if number == int(batch) else ""
        sinks: dict[str, Sink] = {
            "postgres": MortalSink(dsn, death),
            "delta": DeltaSink(f"{folder}/delta"),
            "parquet": ParquetSink(f"{folder}/parquet"),
        }
        for name, sink in sinks.items():
            sink.open(SinkContext("deaths", name, checkpoint, spark))
            sink.write(Batch(number, rows_of(spark, number, deadly=death == f"{name}:inside")))
            if death == f"{name}:after":
                os.killpg(0, signal.SIGKILL)
        done.write_text(str(number + 1))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
