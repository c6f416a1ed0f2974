"""The Spark driver of the demo: both pipelines, from orders into a table and a topic, and at last the audits.

    python -m gapless.demo.carrying '{"bootstrap": ..., "folder": ..., "orders": ..., "batches": ..., ...}'

The everyday pipeline writes each batch with Spark's own sinks. The other one is a Gapless pipeline. Commands
on stdin: `stop when written`: both come to the moment between a batch's end in its sinks and Spark's note of
it, and stay there, to be killed; `finish`: carry what is left; `audit SIDE`: judge a side that has finished.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapless.audit.auditing import Auditor
from gapless.audit.carried import Matching
from gapless.audit.page import html
from gapless.audit.tables import SinkSpec
from gapless.demo.sides import EVERYDAY, GAPLESS, Side
from gapless.demo.telling import TELL_EVERY_S, commands, tell
from gapless.errors import GaplessError
from gapless.pipeline import Definition, Pipeline, spark_session
from gapless.pipeline.progress import Progress
from gapless.pipeline.sections import Dedup, Source, ToDelta, ToKafka, TransformSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_PRICED = """\
SELECT key, headers, partition, offset, to_json(struct(shop, `order`, round(cents * 1.19) AS total)) AS value
FROM records"""
_SCHEMA = "shop STRING, `order` BIGINT, cents BIGINT"
_MEET_S = 60.0
_QUIET_S = 10.0
# As in the pipeline: who missed a change of leaders would stand still for longer than the whole demo.
_METADATA_MS = "5000"


class Moment:
    """A batch is in its sinks, and Spark has not noted it. Here both sides stay, if they were told to."""

    def __init__(self) -> None:
        self._is_asked = threading.Event()
        self._both = threading.Barrier(2)

    def ask(self) -> None:
        self._is_asked.set()

    def come(self, has_written: Callable[[], bool]) -> None:
        if not self._is_asked.is_set() or not has_written():
            return
        try:
            self._both.wait(_MEET_S)
            who = "both sides"
        except threading.BrokenBarrierError:
            who = "one side"  # the other one had nothing to write, or is slow: it may be anywhere
        tell(event="written", who_has_written=who)
        threading.Event().wait()  # for the end


class EverydayPipeline:
    """Each batch into a topic and a table, as Spark's documentation shows it."""

    def __init__(
        self, spark: SparkSession, side: Side, bootstrap: str, most_per_batch: int, moment: Moment
    ) -> None:
        self._spark = spark
        self._side = side
        self._bootstrap = bootstrap
        self._most_per_batch = most_per_batch
        self._moment = moment
        self._query = self._start()
        threading.Thread(target=self._tell_often, daemon=True).start()

    def finish(self) -> None:
        """Carry all that is there, then end between two batches."""
        self._query.processAllAvailable()
        self._tell()
        self._query.stop()
        tell(event=f"finished {self._side.name}")

    def _start(self) -> StreamingQuery:
        orders = (
            self._spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("kafka.metadata.max.age.ms", _METADATA_MS)
            .option("subscribe", self._side.orders)
            .option("startingOffsets", "earliest")
            .option("includeHeaders", "true")
            .option("failOnDataLoss", "false")
            .option("maxOffsetsPerTrigger", self._most_per_batch)
            .load()
        )
        return (
            orders.writeStream.foreachBatch(self._write)
            .queryName(self._side.name)
            .option("checkpointLocation", str(self._side.checkpoint))
            .start()
        )

    def _write(self, batch: DataFrame, _: int) -> None:
        priced = _priced(batch)
        (
            priced.drop("offset")
            .write.format("kafka")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("kafka.acks", "1")
            .option("kafka.enable.idempotence", "false")
            .option("topic", self._side.priced)
            .save()
        )
        priced.write.format("delta").mode("append").save(str(self._side.table))
        self._moment.come(lambda: not batch.isEmpty())  # Spark's first one is, often

    def _tell_often(self) -> None:
        wait = threading.Event()
        while not wait.wait(TELL_EVERY_S * 2):
            self._tell()

    def _tell(self) -> None:
        if self._query.exception() is not None:
            tell(failed=f"the everyday pipeline: {self._query.exception()}")
            os._exit(1)
        last = self._query.lastProgress
        ends = json.loads(last["sources"][0]["endOffset"] or "{}") if last is not None else {}
        if ends:
            tell(everyday_carried=sum(ends[self._side.orders].values()))


class GaplessPipeline:
    """The same, exactly once."""

    def __init__(
        self,
        spark: SparkSession,
        side: Side,
        bootstrap: str,
        most_per_batch: int,
        moment: Moment,
        orders: int,
    ) -> None:
        self._spark = spark
        self._side = side
        self._moment = moment
        self._orders = orders
        self._moved = threading.Event()
        self._definition = Definition(
            name="demo",
            checkpoint=str(side.checkpoint),
            source=Source(
                bootstrap,
                [side.orders],
                value="json",
                schema=_SCHEMA,
                max_records_per_batch=most_per_batch,
            ),
            sinks=[ToKafka(side.priced), ToDelta(str(side.table))],
            transform=TransformSettings(sql=_PRICED),
            dedup=Dedup(by="identity"),
        )
        self._carried = rows_in(side.table)
        self._pipeline = Pipeline(self._definition, spark=spark)
        self._thread = threading.Thread(target=self._or_fail, args=(self._pipeline, False), daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Carry all that is there, then end between two batches."""
        while self._carried < self._orders and self._moved.wait(_QUIET_S):
            self._moved.clear()
        self._pipeline.stop()
        self._thread.join()
        if self._carried < self._orders:  # whatever became of them: nothing must be left
            self._or_fail(Pipeline(self._definition, spark=self._spark), True)
        tell(event=f"finished {self._side.name}")

    def _or_fail(self, pipeline: Pipeline, once: bool) -> None:
        try:
            pipeline.run(once=once, on_progress=self._tell)
        except GaplessError as error:
            tell(failed=f"the Gapless pipeline: {error}")
            os._exit(1)

    def _tell(self, progress: Progress) -> None:
        self._carried += progress.written["delta"]
        self._moved.set()
        tell(gapless_carried=self._carried)
        self._moment.come(lambda: progress.rows_in > 0)


def rows_in(table: Path) -> int:
    """By the table's log: Spark would take seconds for its first count, and this driver has just started."""
    files = (table / "_delta_log").glob("*.json")
    actions = (json.loads(line) for file in files for line in file.read_text().splitlines())
    commits = (each["commitInfo"]["operationMetrics"] for each in actions if "commitInfo" in each)
    return sum(int(each.get("numOutputRows", 0)) for each in commits)


def _priced(batch: DataFrame) -> DataFrame:
    """What the transform of the Gapless pipeline does."""
    kept = ("key", "headers", "partition", "offset")
    read = batch.selectExpr(*kept, f"from_json(CAST(value AS STRING), '{_SCHEMA}') AS fields")
    return read.selectExpr(
        *kept,
        "to_json(struct(fields.shop, fields.`order`, round(fields.cents * 1.19) AS total)) AS value",
    )


def judge(spark: SparkSession, side: Side, bootstrap: str) -> None:
    """Audit all hops of a side, write its page, and tell the figures."""
    bills = as_parquet(side.bills)
    tables = [SinkSpec("parquet", str(bills)), SinkSpec("delta", str(side.table))]
    auditor = Auditor(spark, bootstrap, side.orders, ledger=side.ledger)
    report = auditor.look()
    report.hops += auditor.look_into(tables, Matching(), None)
    # Rows of a table tell the offset of their order. Records of a topic do not, but have its key.
    report.hops += auditor.look_into([SinkSpec("kafka", side.priced)], Matching(by="key"), None)
    side.page.write_text(html(report), encoding="utf-8")
    tell(event=f"audited {side.name}", **{f"report_{side.name}": report.as_json()})


def as_parquet(database: Path) -> Path:
    """A consumer's rows, where Spark can read them."""
    import pyarrow as pa
    from pyarrow import parquet

    connection = sqlite3.connect(database)
    rows = connection.execute("SELECT partition, offset FROM bills").fetchall()
    connection.close()
    columns: list[Any] = [list(column) for column in zip(*rows, strict=True)] or [[], []]
    table = pa.table(
        {"partition": pa.array(columns[0], pa.int32()), "offset": pa.array(columns[1], pa.int64())}
    )
    path = database.with_suffix(".parquet")
    parquet.write_table(table, path)
    return path


def main() -> None:
    given, asked = json.loads(sys.argv[1]), commands()
    folder, bootstrap = Path(given["folder"]), given["bootstrap"]
    everyday, gapless = Side(EVERYDAY, folder), Side(GAPLESS, folder)
    spark = spark_session(
        "gapless demo",
        master="local[2,4]",
        short_lived=given["short"],
        config={
            "spark.sql.adaptive.enabled": "false",
            # Both sides at a time are work enough for two cores; each more task is only another start.
            "spark.sql.shuffle.partitions": "1",
            # Nobody will look for values in these tables.
            "spark.databricks.delta.stats.collect": "false",
        },
    )
    orders, moment = given["orders"], Moment()
    # Some more: what the everyday side has twice should not need a batch of its own.
    most = orders * 11 // 10 // given["batches"]
    theirs = EverydayPipeline(spark, everyday, bootstrap, most, moment)
    ours = GaplessPipeline(spark, gapless, bootstrap, most, moment, orders)
    tell(event="running")
    while True:
        command = asked.get()
        if command == "stop when written":
            moment.ask()
        elif command == "finish":
            for pipeline in (theirs, ours):
                _aside(pipeline.finish)
        elif command.startswith("audit "):
            _aside(partial(judge, spark, Side(command.removeprefix("audit "), folder), bootstrap))


def _aside(work: Callable[[], None]) -> None:
    def or_fail() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
            tell(failed=str(error))
            os._exit(1)

    threading.Thread(target=or_fail, daemon=True).start()


if __name__ == "__main__":
    main()
