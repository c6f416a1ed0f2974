"""`DeltaSink`: a Delta table that gets every row of the pipeline once, or every key's latest row.

    sink = DeltaSink("tables/orders", key=["id"], latest_by="changed")

Each batch is one commit, which carries the batch's number as the version of a Delta transaction of the
pipeline's own: Delta itself leaves out a commit whose number it has, and readers see all of a batch or
nothing. The transaction is named after the checkpoint, so that another one cannot be taken for it.

With `key`, batches are merged: rows replace rows of the same key. A batch may have several rows of one key
only if `latest_by` names the column that tells which is the latest: that one stays, in the batch and against
the table; two that are equally late are refused.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from gapless.errors import InvariantViolated
from gapless.pipeline.sinks.numbered import NO_KEY, SEVERAL, must_write, one_row_for_each_key, quoted
from gapless.pipeline.sinks.port import Batch, SinkContext, SinkRefused, Written

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

# The version of a transaction whose checkpoint is not expected any more: no batch has this number.
_RELEASED = 2**63 - 1
_LOG_FOLDER = "_delta_log"
_NO_KEYS = {"array", "double", "float", "map", "struct", "variant"}


class DeltaSink:
    """Rows into a Delta table, which is made if it is not there.

    - `path`: its folder, on any file system that Spark knows.
    - `key`: columns by which rows replace rows; without it every row is added.
    - `latest_by`: the column that tells which row of a key is the latest.
    """

    def __init__(
        self, path: Path | str, *, key: Sequence[str] | None = None, latest_by: str | None = None
    ) -> None:
        self._path = str(path)
        self._key = tuple(key or ())
        self._latest_by = latest_by
        self._context: SinkContext | None = None
        self._checked: StructType | None = None

    def check(self, schema: StructType) -> None:
        from pyspark.sql import SparkSession

        self._check(SparkSession.active(), schema)

    def _check(self, spark: SparkSession, schema: StructType) -> None:
        self._check_key(schema)
        if self._exists(spark):
            _check_fits(self._path, spark.read.format("delta").load(self._path).schema, schema)

    def open(self, context: SinkContext) -> None:
        own = _transaction_name(context)
        if self._exists(context.spark):
            for name, version in self._transactions(context.spark).items():
                if _same_sink(name, own) and name != own and version != _RELEASED:
                    raise SinkRefused(
                        f"another checkpoint of pipeline {context.pipeline} has written to {self._path}: "
                        "bring that checkpoint back, give the pipeline a new name, or run "
                        "`gapless pipeline clean FILE`, after which everything is written again"
                    )
        self._context = context

    def write(self, batch: Batch) -> Written:
        if self._context is None:
            raise InvariantViolated("a batch is written to a sink that is not open")
        spark = batch.rows.sparkSession
        last = self._last(spark, _transaction_name(self._context)) if self._exists(spark) else None
        if last == _RELEASED:
            raise SinkRefused(f"the transactions of this checkpoint in {self._path} were removed by `clean`")
        if not must_write(self._context, batch.number, last):
            return Written(0, repeated=True)
        if self._checked != batch.rows.schema:
            self._check(spark, batch.rows.schema)
            self._checked = batch.rows.schema
        rows = self._merge(batch) if self._key else self._append(batch)
        return Written(rows or 0, repeated=rows is None)

    def idle(self) -> None:
        """A table's transactions do not expire, unless its owner wants that."""

    def close(self) -> None:
        self._context = None

    def clean(self, context: SinkContext) -> list[str]:
        """Delta keeps transactions for ever: they get a version that says that nobody goes on with them."""
        if not self._exists(context.spark):
            return []
        known = {
            name: version
            for name, version in self._transactions(context.spark).items()
            if _same_sink(name, _transaction_name(context)) and version != _RELEASED
        }
        schema = context.spark.read.format("delta").load(self._path).schema
        for name in known:
            nothing = context.spark.createDataFrame([], schema)
            options = {"txnAppId": name, "txnVersion": str(_RELEASED)}
            nothing.write.format("delta").mode("append").options(**options).save(self._path)
        return [f"transaction {name} at {version} in {self._path}" for name, version in known.items()]

    def _append(self, batch: Batch) -> int | None:
        """How many rows were added; None if somebody else was quicker with this batch."""
        token = secrets.token_hex(8)
        spark = batch.rows.sparkSession
        before = self._snapshot(spark).version()
        with _settings(spark, self._transaction(batch.number, token)):
            batch.rows.write.format("delta").mode("append").save(self._path)
        for version in range(before + 1, self._snapshot(spark).version() + 1):
            info = self._commit_info(spark, version)
            if token in info.get("userMetadata", ""):
                return int(info["operationMetrics"]["numOutputRows"])
        return None

    def _merge(self, batch: Batch) -> int | None:
        from delta.tables import DeltaTable
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        spark = batch.rows.sparkSession
        DeltaTable.createIfNotExists(spark).location(self._path).addColumns(batch.rows.schema).execute()
        rows = one_row_for_each_key(batch.rows, self._key, self._latest_by)
        same = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in self._key)
        newer = None
        if self._latest_by is not None:
            column = quoted(self._latest_by)
            newer = f"t.{column} IS NULL OR s.{column} >= t.{column}"
        merge = DeltaTable.forPath(spark, self._path).alias("t").merge(rows.alias("s"), same)
        if set(self._key) != set(rows.columns):
            merge = merge.whenMatchedUpdateAll(newer)
        with _settings(spark, self._transaction(batch.number, secrets.token_hex(8))):
            try:
                answer = merge.whenNotMatchedInsertAll().execute().collect()
            except (PySparkException, Py4JJavaError) as error:
                raise _clearer(error, self._path) from error
        return int(answer[0]["num_affected_rows"]) if answer else None

    def _transaction(self, number: int, token: str) -> dict[str, str]:
        """The settings by which a commit carries the batch's number, and can be found again."""
        if self._context is None:
            raise InvariantViolated("a batch is written to a sink that is not open")
        what = f"gapless {self._context.pipeline}/{self._context.sink} batch {number} {token}"
        return {
            "spark.databricks.delta.write.txnAppId": _transaction_name(self._context),
            "spark.databricks.delta.write.txnVersion": str(number),
            "spark.databricks.delta.commitInfo.enabled": "true",
            "spark.databricks.delta.history.metricsEnabled": "true",
            "spark.databricks.delta.commitInfo.userMetadata": what,
        }

    def _check_key(self, schema: StructType) -> None:
        types = {field.name: field.dataType.typeName() for field in schema.fields}
        for name in [*self._key, *([self._latest_by] if self._latest_by else [])]:
            if name not in types:
                raise SinkRefused(f"the rows have no column {name}; they have {', '.join(types)}")
        if doubtful := [name for name in self._key if types[name] in _NO_KEYS]:
            raise SinkRefused(f"{doubtful[0]} cannot be a key: its type has no exact equality; cast it")
        if self._latest_by and (not self._key or self._latest_by in self._key):
            raise SinkRefused("latest_by chooses among rows of a key: it needs key, and a column besides")

    def _exists(self, spark: SparkSession) -> bool:
        from delta.tables import DeltaTable

        if DeltaTable.isDeltaTable(spark, self._path):
            return True
        jvm = cast("Any", spark._jvm)
        path = jvm.org.apache.hadoop.fs.Path(self._path)
        files = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        # Delta's folder without a commit, and files beside it: so a first batch that was cut off leaves it.
        is_begun = files.exists(jvm.org.apache.hadoop.fs.Path(path, _LOG_FOLDER))
        if not is_begun and files.exists(path) and len(files.listStatus(path)) > 0:
            raise SinkRefused(f"{self._path} has files but is no Delta table: choose another folder")
        return False

    def _log(self, spark: SparkSession) -> Any:
        return cast("Any", spark._jvm).org.apache.spark.sql.delta.DeltaLog.forTable(
            spark._jsparkSession, self._path
        )

    def _snapshot(self, spark: SparkSession) -> Any:
        """The table as it is now."""
        none = cast("Any", spark._jvm).scala.Option.apply(None)
        return self._log(spark).update(False, none, none)

    def _last(self, spark: SparkSession, transaction: str) -> int | None:
        version = self._snapshot(spark).transactions().get(transaction)
        return None if version.isEmpty() else int(version.get())

    def _transactions(self, spark: SparkSession) -> Mapping[str, int]:
        jvm = cast("Any", spark._jvm)
        found = jvm.scala.jdk.javaapi.CollectionConverters.asJava(self._snapshot(spark).transactions())
        return {str(name): int(version) for name, version in found.items()}

    def _commit_info(self, spark: SparkSession, version: int) -> dict[str, Any]:
        """What a commit says about itself: its first line, as a rule. The rest of it may be long."""
        jvm = cast("Any", spark._jvm)
        log_path = self._log(spark).logPath()
        path = jvm.org.apache.hadoop.fs.Path(log_path, f"{version:020d}.json")
        files = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        reader = jvm.java.io.BufferedReader(jvm.java.io.InputStreamReader(files.open(path), "UTF-8"))
        try:
            while (line := reader.readLine()) is not None:
                action = json.loads(line)
                if "commitInfo" in action:
                    return dict(action["commitInfo"])
        finally:
            reader.close()
        return {}


def _transaction_name(context: SinkContext) -> str:
    return f"gapless.{context.pipeline}.{context.sink}.{context.folder.id}"


def _same_sink(name: str, other: str) -> bool:
    """Whether two transactions differ at most in the checkpoint."""
    return name.rpartition(".")[0] == other.rpartition(".")[0]


def _check_fits(path: str, there: StructType, rows: StructType) -> None:
    """Delta would leave out, fill up or cast; here the columns must be the same."""
    known = {field.name: field for field in there.fields}
    for field in rows.fields:
        if field.name not in known:
            raise SinkRefused(
                f"the table {path} has no column {field.name} (it has {', '.join(known)}): "
                "add it to the table, or select other columns in the transform"
            )
        wanted, given = known[field.name].dataType.simpleString(), field.dataType.simpleString()
        if wanted != given:
            raise SinkRefused(
                f"{field.name} is {wanted} in the table {path}, but the rows have {given}: "
                "cast it in the transform"
            )
    given_names = {field.name for field in rows.fields}
    if lacking := [field.name for field in there.fields if field.name not in given_names]:
        raise SinkRefused(
            f"the table {path} has {', '.join(lacking)}, which the rows have not: add it in the transform"
        )


def _clearer(error: Exception, path: str) -> Exception:
    text = str(error)
    if SEVERAL in text:
        return SinkRefused(
            f"{SEVERAL}, and nothing says which of them {path} should keep: set latest_by to a column that "
            "tells, or leave one row for each key"
        )
    return SinkRefused(f"{NO_KEY}: leave such rows out in the transform") if NO_KEY in text else error


@contextmanager
def _settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Settings of the session for the time of a write. MERGE takes its transaction from nowhere else."""
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, earlier in before.items():
            if earlier is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, earlier)
