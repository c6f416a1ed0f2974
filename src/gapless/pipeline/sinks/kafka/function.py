"""The exactly-once Kafka sink as one function, for the `foreachBatch` of any streaming query."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapless.pipeline.folder import CheckpointFolder
from gapless.pipeline.plans import refuse_unrepeatable
from gapless.pipeline.sinks.kafka.sink import KafkaSink
from gapless.pipeline.sinks.port import Batch, SinkContext, Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SINK = "kafka"
_opened: dict[tuple[object, ...], KafkaSink] = {}
_lock = threading.Lock()


def exactly_once_to_kafka(
    rows: DataFrame,
    batch: int,
    *,
    name: str,
    bootstrap: str,
    checkpoint: Path | str,
    topic: str | None = None,
    tasks: int | None = None,
    properties: Mapping[str, Any] | None = None,
) -> Written:
    """Write the rows of a micro-batch to Kafka, each once, however often Spark repeats the batch.

        def each_batch(rows, batch):
            exactly_once_to_kafka(
                rows.select("key", "value"), batch, name="copy-orders", bootstrap="127.0.0.1:9092",
                topic="copied-orders", checkpoint="checkpoints/copy-orders",
            )

        query = stream.writeStream.foreachBatch(each_batch)
        query.option("checkpointLocation", "checkpoints/copy-orders").start()

    `checkpoint` is the query's checkpointLocation, and `name` belongs to it for ever: markers in the output
    cluster have it, and a new checkpoint with the name of an old one is refused. A query that writes with
    this function twice gives each its own name. Rows must come out the same when the batch is repeated:
    random numbers, the time of day and joins with what may change are refused where they can be seen, which
    is in what the function given to `foreachBatch` does. Consumers need isolation.level=read_committed.
    """
    refuse_unrepeatable(rows, rows)
    sink = _sink(rows, name, bootstrap, str(checkpoint), topic, tasks, properties)
    return sink.write(Batch(batch, rows))


def _sink(
    rows: DataFrame,
    name: str,
    bootstrap: str,
    checkpoint: str,
    topic: str | None,
    tasks: int | None,
    properties: Mapping[str, Any] | None,
) -> KafkaSink:
    """Opened for the first batch, and kept: the cluster is asked only once."""
    spark = rows.sparkSession
    folder = CheckpointFolder(spark, checkpoint)
    settings = (name, bootstrap, topic, tasks, repr(sorted((properties or {}).items())))
    # With the checkpoint's id: a folder that was removed and made again is another checkpoint.
    key = (*settings, checkpoint, folder.id)
    with _lock:
        if key not in _opened:
            sink = KafkaSink(bootstrap, topic, tasks=tasks, properties=properties)
            sink.check(rows.schema)
            sink.open(SinkContext(name, _SINK, folder, spark))
            _opened[key] = sink
        return _opened[key]
