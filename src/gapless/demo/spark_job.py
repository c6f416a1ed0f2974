"""The Spark side, a process of its own: carries the topic into the table until it is told where to stop.

    python -m gapless.demo.spark_job BOOTSTRAP TOPIC FOLDER RECORDS_PER_BATCH

It reports by JSON lines on stdout: `running`, `carried` with a count, `restarted`, `carried-all`, `finished`,
or `failed` with a reason. One line on stdin, the end offsets by partition, says where to stop; then it writes
what the table holds to FOLDER/rows.arrow. A closed stdin means that its parent is gone: it ends at once.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapless.demo.numbered import DIGITS, ROWS_FILE
from gapless.errors import GaplessError
from gapless.pipeline import read_table, spark_session, topic_to_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_EVERY_S = 0.1
RESTARTS_MAX = 5


def report(event: str, **details: Any) -> None:
    """One line for the parent."""
    sys.stdout.write(json.dumps({"event": event, **details}) + "\n")
    sys.stdout.flush()


class Job:
    """One run. A query that fails is started again from its checkpoint, as an operator would."""

    def __init__(self, bootstrap: str, topic: str, folder: Path, records_per_batch: int) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._folder = folder
        self._records_per_batch = records_per_batch
        self._stop_at: dict[int, int] | None = None
        self._restarts = 0

    def listen(self) -> None:
        """Wait for the word where to stop; runs in a thread."""
        line = sys.stdin.readline()
        if line:
            self._stop_at = {int(partition): offset for partition, offset in json.loads(line).items()}
            line = sys.stdin.readline()
        if not line:
            os._exit(1)

    def run(self) -> None:
        """Carry until the end that was asked for, then write down what the table holds."""
        spark = spark_session("gapless-demo", short_lived=True)
        query = self._start(spark)
        while query.isActive and query.status["message"].startswith("Initializing"):
            time.sleep(LOOK_EVERY_S)
        report("running")
        carried: dict[int, int] = {}
        reported = 0
        while not self._is_done(carried):
            time.sleep(LOOK_EVERY_S)
            if not query.isActive:
                query = self._restart(spark, query)
            carried = _end_offsets(query, self._topic) or carried
            if sum(carried.values()) != reported:
                reported = sum(carried.values())
                report("carried", records=reported)
        report("carried-all")
        query.stop()
        self._write_rows(spark)
        report("finished")

    def _start(self, spark: SparkSession) -> StreamingQuery:
        options = {"maxOffsetsPerTrigger": str(self._records_per_batch)}
        return topic_to_table(spark, self._bootstrap, self._topic, self._folder / "table", options=options)

    def _restart(self, spark: SparkSession, query: StreamingQuery) -> StreamingQuery:
        reason = str(query.exception() or "it ended").splitlines()[0]
        self._restarts += 1
        if self._restarts > RESTARTS_MAX:
            raise GaplessError(
                f"the streaming query failed {self._restarts} times, the last time with: {reason}"
            )
        report("restarted", reason=reason)
        return self._start(spark)

    def _is_done(self, carried: dict[int, int]) -> bool:
        stop_at = self._stop_at
        return stop_at is not None and all(carried.get(p, 0) >= end for p, end in stop_at.items())

    def _write_rows(self, spark: SparkSession) -> None:
        """The table as Spark's own reader sees it: number, partition and offset of every row."""
        import pyarrow as pa
        from pyspark.sql.functions import col, substring

        number = substring(col("value"), 1, DIGITS).cast("string").cast("long").alias("number")
        rows = read_table(spark, self._folder / "table").select(number, "partition", "offset").toArrow()
        with (
            pa.OSFile(str(self._folder / ROWS_FILE), "wb") as sink,
            pa.ipc.new_file(sink, rows.schema) as writer,
        ):
            writer.write_table(rows)


def _end_offsets(query: StreamingQuery, topic: str) -> dict[int, int]:
    """Up to where the last finished micro-batch has read."""
    progress: Any = query.lastProgress
    if not progress:
        return {}
    end = progress["sources"][0]["endOffset"]
    offsets = json.loads(end) if isinstance(end, str) else end
    return {int(partition): offset for partition, offset in (offsets or {}).get(topic, {}).items()}


def main(argv: list[str]) -> int:
    """Run the job; whatever ends it is reported to the parent."""
    bootstrap, topic, folder, records_per_batch = argv
    job = Job(bootstrap, topic, Path(folder), int(records_per_batch))
    threading.Thread(target=job.listen, daemon=True).start()
    try:
        job.run()
    except Exception as error:  # the parent shows the reason, the log has the traceback
        report("failed", reason=str(error).splitlines()[0])
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
