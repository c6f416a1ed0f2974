"""A process with two streaming queries from one topic, aligned and shuffled, for tests that kill it.

    python -m tests.pipeline.sinks.kafka.driver JSON

It goes on until it is killed, or with `once` until it has carried what is there. The report gets a line for
every batch that is written.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapless.pipeline import read_topic, spark_session
from gapless.pipeline.folder import CheckpointFolder
from gapless.pipeline.sinks.port import Batch, SinkContext
from tests.pipeline.sinks.kafka.mortal import MortalSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TASKS = {"aligned": None, "shuffled": 2}


def start(spark: SparkSession, mode: str, arguments: dict[str, Any]) -> StreamingQuery:
    checkpoint = f"{arguments['folder']}/{mode}"
    folder = CheckpointFolder(spark, checkpoint)
    sink = MortalSink(
        arguments["output"],
        arguments["topics"][mode],
        tasks=TASKS[mode],
        transaction_timeout_ms=60_000,
        ends=arguments.get("ends", {}),
    )
    sink.open(SinkContext(f"{arguments['name']}-{mode}", "out", folder, spark))

    def write(rows: DataFrame, number: int) -> None:
        sink.write(Batch(number, rows.selectExpr("key", "value")))
        with Path(arguments["report"]).open("a") as report:
            report.write(f"{mode} {number}\n")

    options = {"maxOffsetsPerTrigger": str(arguments["per_batch"])}
    records = read_topic(spark, arguments["source"], arguments["topic"], options=options)
    stream = records.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    if arguments.get("once"):
        stream = stream.trigger(availableNow=True)
    return stream.start()


def main() -> None:
    arguments = json.loads(sys.argv[1])
    spark = spark_session(
        "kafka-sink",
        master=arguments.get("master", "local[2]"),
        short_lived=True,
        config=arguments.get("config", {}),
    )
    queries = [start(spark, mode, arguments) for mode in arguments["topics"]]
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main()
