"""`ParquetSink`: a folder of Parquet files that gets every row of the pipeline once.

    sink = ParquetSink("tables/orders", partition_by=["day"])

It writes as Spark's own streaming file sink does: files first, then an entry in the manifest
`_spark_metadata` with the batch's number and its files. A batch is there with its entry, as a whole, and a
number that has one is left out. So read the folder with something that knows the manifest, as
`spark.read.parquet` does: the bare folder also has files of batches that a crash ended.

Beside the manifest lies a note of who writes here, so that another checkpoint, whose batches have the same
numbers, cannot be taken for this one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from gapless.errors import InvariantViolated
from gapless.pipeline.folder import CheckpointFolder
from gapless.pipeline.sinks.numbered import must_write
from gapless.pipeline.sinks.port import Batch, SinkContext, SinkRefused, Written

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_MANIFEST = "_spark_metadata"
_OWNER_FILE = "owner.json"
_COUNT = "gapless_rows"


class _Owner(NamedTuple):
    """Who writes to the folder. Its batch 0 is `base` in the manifest; without a checkpoint it is free."""

    pipeline: str
    sink: str
    checkpoint: str | None
    base: int
    partition_by: list[str]


class ParquetSink:
    """Rows into Parquet files, in subfolders by `partition_by`. The folder is made if it is not there."""

    def __init__(self, path: Path | str, *, partition_by: Sequence[str] = ()) -> None:
        self._path = str(path)
        self._partition_by = list(partition_by)
        self._context: SinkContext | None = None
        self._base = 0
        self._own_last: int | None = None
        self._checked: StructType | None = None

    def check(self, schema: StructType) -> None:
        from pyspark.sql import SparkSession

        self._check(SparkSession.active(), schema)

    def _check(self, spark: SparkSession, schema: StructType) -> None:
        self._check_columns(schema)
        owner, last = self._owner(spark), self._last(spark)
        self._refuse_strangers(spark, owner, last)
        if last is not None:
            there = spark.read.parquet(self._path).schema
            _check_same(self._path, there, schema, self._partition_by)

    def open(self, context: SinkContext) -> None:
        owner, last = self._owner(context.spark), self._last(context.spark)
        self._refuse_strangers(context.spark, owner, last)
        ours = _Owner(context.pipeline, context.sink, context.folder.id, 0, self._partition_by)
        if owner is None:
            self._claim(context.spark, ours)
        elif owner.checkpoint is None:
            ours = ours._replace(base=owner.base)
            self._claim(context.spark, ours)
        elif owner.checkpoint != ours.checkpoint:
            raise SinkRefused(
                f"another checkpoint (of pipeline {owner.pipeline}, sink {owner.sink}) has written to "
                f"{self._path}: bring that checkpoint back, choose another folder, or run "
                "`gapless pipeline clean FILE`, after which everything is written again"
            )
        self._base = ours.base if owner is None else owner.base
        # From here on it is this process that writes: the manifest, which grows, is not read again.
        self._own_last = None if last is None or last < self._base else last - self._base
        self._context = context

    def write(self, batch: Batch) -> Written:
        if self._context is None:
            raise InvariantViolated("a batch is written to a sink that is not open")
        spark = batch.rows.sparkSession
        if not must_write(self._context, batch.number, self._own_last):
            return Written(0, repeated=True)
        if self._checked != batch.rows.schema:
            self._check(spark, batch.rows.schema)
            self._checked = batch.rows.schema
        count = self._add(batch.rows, self._base + batch.number)
        self._own_last = batch.number
        return Written(count, repeated=False)

    def idle(self) -> None:
        """A manifest does not expire."""

    def close(self) -> None:
        self._context = None

    def clean(self, context: SinkContext) -> list[str]:
        """The manifest stays, or its rows would be gone; whoever comes next counts on from its last batch."""
        owner, last = self._owner(context.spark), self._last(context.spark)
        if owner is None or owner.checkpoint is None:
            return []
        if (owner.pipeline, owner.sink) != (context.pipeline, context.sink):
            raise SinkRefused(f"{self._path} belongs to pipeline {owner.pipeline}, sink {owner.sink}")
        base = owner.base if last is None else last + 1
        self._claim(context.spark, owner._replace(checkpoint=None, base=base))
        return [f"owner {owner.checkpoint} of {self._path}"]

    def _add(self, rows: DataFrame, number: int) -> int:
        """Write the rows as a batch of the manifest. They are counted on their way."""
        from pyspark.sql import functions as F  # noqa: N812

        counted = rows.observe(_COUNT, F.count(F.lit(1)).alias(_COUNT))
        spark = rows.sparkSession
        jvm = cast("Any", spark._jvm)
        utils = jvm.org.apache.spark.api.python.PythonUtils
        sink = jvm.org.apache.spark.sql.execution.streaming.sinks.FileStreamSink(
            spark._jsparkSession,
            self._path,
            jvm.org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat(),
            utils.toSeq(self._partition_by),
            utils.toScalaMap({"path": self._path}),
        )
        sink.addBatch(number, counted._jdf)
        return int(counted._jdf.queryExecution().observedMetrics().apply(_COUNT).getLong(0))

    def _check_columns(self, schema: StructType) -> None:
        names = [field.name for field in schema.fields]
        if missing := [name for name in self._partition_by if name not in names]:
            raise SinkRefused(
                f"the rows have no column {missing[0]} to partition by; they have {', '.join(names)}"
            )
        if set(names) == set(self._partition_by):
            raise SinkRefused("partition_by has every column: at least one must be left for the files")

    def _refuse_strangers(self, spark: SparkSession, owner: _Owner | None, last: int | None) -> None:
        """Raise if the folder has something that is not ours, or is laid out in another way."""
        if owner is not None:
            if owner.partition_by != self._partition_by:
                raise SinkRefused(
                    f"{self._path} is partitioned by {', '.join(owner.partition_by) or 'nothing'}, not by "
                    f"{', '.join(self._partition_by) or 'nothing'}: choose another folder"
                )
        elif last is not None:
            raise SinkRefused(f"{self._path} was written by another streaming job: choose another folder")
        elif self._names(spark, self._path):
            raise SinkRefused(
                f"{self._path} has files that are in no manifest, and readers would not see them any more: "
                "choose another folder"
            )

    def _owner(self, spark: SparkSession) -> _Owner | None:
        data = self._notes(spark).read(_OWNER_FILE)
        return None if data is None else _Owner(**json.loads(data))

    def _claim(self, spark: SparkSession, owner: _Owner) -> None:
        self._notes(spark).write(_OWNER_FILE, json.dumps(owner._asdict()).encode())

    def _notes(self, spark: SparkSession) -> CheckpointFolder:
        return CheckpointFolder(spark, f"{self._path}/{_MANIFEST}")

    def _last(self, spark: SparkSession) -> int | None:
        """The last batch in the manifest. Now and then Spark joins entries: `9.compact` has 0 to 9."""
        stems = [name.removesuffix(".compact") for name in self._names(spark, f"{self._path}/{_MANIFEST}")]
        return max((int(stem) for stem in stems if stem.isdecimal()), default=None)

    def _names(self, spark: SparkSession, folder: str) -> list[str]:
        path = cast("Any", spark._jvm).org.apache.hadoop.fs.Path(folder)
        files = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        if not files.exists(path):
            return []
        return [str(status.getPath().getName()) for status in files.listStatus(path)]


def _check_same(path: str, there: StructType, rows: StructType, partition_by: Sequence[str]) -> None:
    """Readers take the schema of one file for all."""
    known = {
        each.name: each.dataType.simpleString() for each in there.fields if each.name not in partition_by
    }
    given = {each.name: each.dataType.simpleString() for each in rows.fields if each.name not in partition_by}
    for name in [*given, *known]:
        if known.get(name) != given.get(name):
            raise SinkRefused(
                f"the files in {path} have {name} as {known.get(name, 'nothing')}, the rows as "
                f"{given.get(name, 'nothing')}: change the transform, or choose another folder"
            )
