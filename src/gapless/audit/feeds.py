"""What has come to a sink since one last looked: how each kind of sink is read on and on.

    feed = feed_of(spec, spark, cluster, reader)
    feed.read(due, each)        # calls `each` with DataFrames of the rows that are new

Topics are read from offset to offset, and tables by the files that were added. A database cannot say what
is new: it is asked for rows of records that have become due, and whether the others are as many as before.
A feed that cannot go on (the sink was cut, or rows were changed) says `Changed`: it must be made anew.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from gapless.audit.cluster import Cluster, Ends, may_have_lost
from gapless.audit.naming import Taken
from gapless.audit.reading import Reader
from gapless.audit.tables import ITS_OWN, SinkSpec, deleted_from, jdbc_options, reading_errors
from gapless.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Each: TypeAlias = Callable[["DataFrame"], None]
Due: TypeAlias = Mapping[int, int]
"""By partition of the topic: the offset before which records must be in the sink."""
# These add rows, or leave them as they are.
_ADDING = ("WRITE", "STREAMING UPDATE", "CREATE TABLE", "CREATE TABLE AS SELECT", "OPTIMIZE")
_KEEPING = ("VACUUM", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "ADD COLUMNS", "UPGRADE PROTOCOL")


class Changed(Exception):
    """The sink is not what it was and more: it must be read from its beginning."""


class Feed(Protocol):
    """The rows of one sink, as they come."""

    @property
    def columns(self) -> list[str]: ...

    def read(self, due: Due, each: Each) -> None:
        """Give what is new to `each`. Raises `Changed` if what was read before is not true any more."""

    def begins_ms(self) -> int | None:
        """Its retention had taken rows from before this time when it was read from the beginning."""

    @property
    def is_deleted_from(self) -> bool:
        """Whether rows were deleted before it was first read."""

    @property
    def taken(self) -> Taken | None:
        """How many rows were taken before it was first read: by retention, or since somebody deleted them."""

    @property
    def is_open(self) -> bool:
        """Whether a transaction has not ended, behind which there may be more."""

    @property
    def empty(self) -> int:
        """How many offsets of a compacted topic held nothing when they were read."""

    def close(self) -> None:
        """Leave nothing behind."""


class TopicFeed:
    """Another topic: from offset to offset."""

    is_deleted_from = False

    def __init__(self, topic: str, cluster: Cluster, reader: Reader) -> None:
        self._topic = topic
        self._cluster = cluster
        self._reader = reader
        self._read_to: dict[int, Ends] = {}
        self._began_at = self._ends = cluster.ends(topic)
        self.empty = 0
        rows = reader.records(topic, self._ends)
        self.columns = [name for name in rows.columns if name not in ITS_OWN]

    def read(self, due: Due, each: Each) -> None:
        del due
        self._ends = now = self._cluster.settled_ends(self._topic)
        before = self._read_to
        for partition, last in before.items():
            # What retention took before it was read may have been anything.
            if may_have_lost(last, now.get(partition)) or now[partition].earliest > last.end:
                raise Changed
        if not before:
            self._began_at = now
        starts = {partition: last.end for partition, last in before.items()}
        if any(at.end > starts.get(partition, at.earliest) for partition, at in now.items()):
            each(self._reader.records(self._topic, now, starts).drop(*ITS_OWN))
            if self._cluster.is_compacted(self._topic):
                self.empty += self._reader.empty(self._topic, now, starts)
        self._read_to = now

    def begins_ms(self) -> int | None:
        return self._reader.begins_ms(self._topic, self._began_at)

    @property
    def taken(self) -> Taken | None:
        return Taken(sum(at.earliest for at in self._began_at.values()))

    @property
    def is_open(self) -> bool:
        return any(at.high > at.end for at in self._ends.values())

    def close(self) -> None:
        """Nothing is kept."""


class _Receiver:
    """Passes a query's batches to a function, until it is released, and fails later batches.

    PySpark refers to the function of a query until the JVM collects its own counterpart of it, long after
    the query has ended. That function refers to the whole audit, and so to clients of the cluster.
    """

    def __init__(self, each: Each) -> None:
        self._each: Each | None = each

    def __call__(self, rows: DataFrame, _batch: int) -> None:
        if self._each is None:
            # Spark must not note this batch as read: nothing has seen it.
            raise RuntimeError("the batch came after its reader had ended")
        self._each(rows)

    def release(self) -> None:
        self._each = None


class TableFeed:
    """A Delta table, or a folder of Parquet files: by the files that are added."""

    is_open = False
    empty = 0

    def __init__(self, spec: SinkSpec, spark: SparkSession) -> None:
        self._spec = spec
        self._spark = spark
        with reading_errors(spec):
            self._schema = spark.read.format(spec.kind).load(spec.where).schema
        self.columns = self._schema.names
        self._version: int | None = None
        self._memory: tempfile.TemporaryDirectory[str] | None = None
        self.taken: Taken | None = None

    @property
    def is_deleted_from(self) -> bool:
        return self.taken is not None

    def read(self, due: Due, each: Each) -> None:
        del due
        if self._spec.kind == "delta":
            self._notice_changes()
        if self._memory is None:
            self._memory = tempfile.TemporaryDirectory(prefix="gapless-audit-")
            self.taken = deleted_from(self._spec, self._spark) if self._spec.kind == "delta" else None
        receiver = _Receiver(each)
        try:
            with reading_errors(self._spec):
                query = (
                    self._stream()
                    .writeStream.foreachBatch(receiver)
                    .option("checkpointLocation", str(Path(self._memory.name, "read")))
                    .trigger(availableNow=True)
                    .start()
                )
                query.awaitTermination()
        finally:
            receiver.release()

    def begins_ms(self) -> int | None:
        return None

    def close(self) -> None:
        if self._memory is not None:
            self._memory.cleanup()
            self._memory = None

    def _stream(self) -> DataFrame:
        reading = self._spark.readStream.format(self._spec.kind)
        if self._spec.kind == "delta":
            return reading.option("skipChangeCommits", "true").load(self._spec.where)
        # However old a file is.
        return reading.schema(self._schema).option("maxFileAge", "36500d").load(self._spec.where)

    def _notice_changes(self) -> None:
        """Rows that were changed or deleted do not come as new ones: all has to be read again."""
        from delta.tables import DeltaTable
        from pyspark.sql import functions as sf

        with reading_errors(self._spec):
            history = DeltaTable.forPath(self._spark, self._spec.where).history()
            before, newest = self._version, history.agg(sf.max("version")).collect()[0][0]
            since = history.filter(sf.col("version") > (newest if before is None else before))
            adds = sf.col("operation").isin(*_ADDING) & (
                sf.coalesce(sf.col("operationParameters")["mode"], sf.lit("Append")) != "Overwrite"
            )
            keeps = sf.col("operation").rlike("^(" + "|".join(_KEEPING) + ")")
            is_changed = not since.filter(~(adds | keeps)).isEmpty()
        self._version = newest
        if is_changed:
            raise Changed


class DatabaseFeed:
    """A table of PostgreSQL: rows of records that have become due; of the others, how many there are."""

    is_open = False
    is_deleted_from = False
    taken = None
    empty = 0

    def __init__(self, spec: SinkSpec, topic: str, spark: SparkSession) -> None:
        self._spec = spec
        self._topic = topic
        self._spark = spark
        self._read_to: dict[int, int] = {}
        self._rows: dict[int, int] = {}
        self.columns = self._asked(f"SELECT * FROM {spec.table} WHERE false").columns
        if not {"partition", "offset"} <= set(self.columns):
            raise UsageError(
                f"{spec} cannot be watched: a database does not tell what is new, so its rows must tell the "
                "records' `partition` and `offset`; compare it without --watch"
            )

    def read(self, due: Due, each: Each) -> None:
        if self._read_to and self._counts() != self._rows:
            raise Changed
        ranges = {
            partition: (self._read_to.get(partition, 0), end)
            for partition, end in due.items()
            if end > self._read_to.get(partition, 0)
        }
        if not ranges:
            return
        new = " OR ".join(
            f'("partition" = {partition} AND "offset" >= {first} AND "offset" < {end})'
            for partition, (first, end) in ranges.items()
        )
        asked = f'SELECT "partition", "offset" FROM {self._spec.table} WHERE {self._own} ({new})'
        rows = self._asked(asked).persist()  # once: the next answer may be another
        try:
            with reading_errors(self._spec):
                for partition, count in rows.groupBy("partition").count().collect():
                    self._rows[int(partition)] = self._rows.get(int(partition), 0) + int(count)
            each(rows)
        finally:
            rows.unpersist()
        self._read_to.update({partition: end for partition, (_, end) in ranges.items()})

    def begins_ms(self) -> int | None:
        return None

    def close(self) -> None:
        """Nothing is kept."""

    def _counts(self) -> dict[int, int]:
        """How many rows there are of what was read."""
        read = " OR ".join(
            f'("partition" = {each} AND "offset" < {end})' for each, end in self._read_to.items()
        )
        asked = self._asked(
            f'SELECT "partition", count(*) AS rows FROM {self._spec.table} WHERE {self._own} ({read}) '
            'GROUP BY "partition"'
        )
        with reading_errors(self._spec):
            return {int(row[0]): int(row[1]) for row in asked.collect()}

    @property
    def _own(self) -> str:
        return f"topic = '{self._topic}' AND" if "topic" in self.columns else ""

    def _asked(self, query: str) -> DataFrame:
        options: dict[str, Any] = {**jdbc_options(self._spec), "query": query}
        del options["dbtable"]
        with reading_errors(self._spec):
            return self._spark.read.format("jdbc").options(**options).load()


def feed_of(spec: SinkSpec, topic: str, spark: SparkSession, cluster: Cluster, reader: Reader) -> Feed:
    if spec.kind == "kafka":
        return TopicFeed(spec.where, cluster, reader)
    if spec.kind == "postgres":
        return DatabaseFeed(spec, topic, spark)
    return TableFeed(spec, spark)
