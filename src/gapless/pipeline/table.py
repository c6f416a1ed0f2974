"""From a topic to a table on disk, every record exactly once, by Spark Structured Streaming.

    spark = spark_session()
    query = topic_to_table(spark, "127.0.0.1:9092", "orders", "orders.table")
    query.processAllAvailable()
    read_table(spark, "orders.table").show()

Exactly once has two halves. The checkpoint says which offsets each micro-batch covers *before* it is written,
so that a batch repeated after a crash has the same records. The table accepts each batch number once: Parquet
by a manifest of the files of each batch (`_spark_metadata`), Delta by its transaction log. Therefore read the
table through `read_table`, or any reader that knows these; the bare folder also shows what a crash left.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gapless.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TableFormat = Literal["parquet", "delta"]
COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value")


def read_topic(
    spark: SparkSession, bootstrap: str, topic: str, *, options: Mapping[str, str] | None = None
) -> DataFrame:
    """The topic as an unbounded DataFrame, from its beginning, committed records only.

    `options` are those of Spark's Kafka source; client properties have the prefix `kafka.` there.
    """
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    defaults = {
        "startingOffsets": "earliest",
        "failOnDataLoss": "true",
        "kafka.isolation.level": "read_committed",
    }
    return (
        reader.option("subscribe", topic).options(**{**defaults, **(options or {})}).load().select(*COLUMNS)
    )


def topic_to_table(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    table: Path | str,
    *,
    table_format: TableFormat = "parquet",
    checkpoint: Path | str | None = None,
    available_now: bool = False,
    options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Start to carry the topic into the table; goes on where it stopped if the checkpoint is there.

    The checkpoint lies beside the table unless told otherwise: the two belong together, and one must not be
    deleted without the other. It runs until it is stopped, or with `available_now` until it has carried what
    was there when it started.
    """
    if table_format not in {"parquet", "delta"}:
        raise UsageError(f"a table is parquet or delta, not {table_format}")
    records = read_topic(spark, bootstrap, topic, options=options)
    writer = (
        records.writeStream.format(table_format)
        .outputMode("append")
        .option("checkpointLocation", str(checkpoint if checkpoint is not None else f"{table}.checkpoint"))
    )
    if available_now:
        writer = writer.trigger(availableNow=True)
    return writer.start(str(table))


def read_table(spark: SparkSession, table: Path | str, table_format: TableFormat = "parquet") -> DataFrame:
    """What the table holds: the records of finished micro-batches, and nothing else."""
    return spark.read.format(table_format).load(str(table))
