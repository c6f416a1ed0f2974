"""`PostgresSink`: a table that gets every row of the pipeline once, or every key's latest row.

What it promises: rows of a task and its marker commit together, so a batch that is repeated, in whole or in
part, after any crash, adds nothing. Across tasks a batch is not one transaction: give `tasks=1` if readers
must never see a part of it.

With `key`, rows replace rows of the same key. All rows of a key go to one task. A batch may have several rows
of one key only if `latest_by` names the column that tells which is the latest: that row stays, in the batch
and against the table, whatever order they come in; two that are equally late are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gapless.errors import ExitCode, GaplessError, InvariantViolated
from gapless.pipeline.failures import explain
from gapless.pipeline.sinks.port import Batch, SinkContext, SinkRefused, Written
from gapless.pipeline.sinks.postgres import tables
from gapless.pipeline.sinks.postgres.connection import clear_errors, connect, parsed, place
from gapless.pipeline.sinks.postgres.markers import NAME as MARKERS
from gapless.pipeline.sinks.postgres.markers import Markers
from gapless.pipeline.sinks.postgres.tables import Column, Table
from gapless.pipeline.sinks.postgres.writer import Limits, PostgresWriter
from gapless.pipeline.tasks import PLAN_FILE, Done, Plan, run_tasks

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_ATTEMPTS = 3
# Sums of fractions may differ in their last digit when a batch is repeated; JSON may have some in it.
_NOT_CERTAIN = frozenset({"float", "double"}) | tables.AS_JSON
_log = logging.getLogger(__name__)


class PostgresSink:
    """Rows into a PostgreSQL table.

    - `url`: a connection string or URL, as libpq takes it.
    - `table`: NAME or SCHEMA.NAME. Made from the rows' schema if it is not there, unless `create` is false.
    - `key`: columns by which rows replace rows; without it every row is added.
    - `latest_by`: the column that tells which row of a key is the latest.
    - `tasks`: write by so many tasks; without it by a task for each source partition, where nothing shuffles.
    """

    def __init__(
        self,
        url: str,
        table: str,
        *,
        key: Sequence[str] | None = None,
        latest_by: str | None = None,
        tasks: int | None = None,
        create: bool = True,
        limits: Limits | None = None,
    ) -> None:
        self._url = parsed(url)
        self._table = Table.named(table)
        self._key = tuple(key or ())
        self._latest_by = latest_by
        self._tasks = tasks
        self._create = create
        self._limits = limits or Limits()
        self._context: SinkContext | None = None
        self._is_first_batch = True
        self._fitted: tuple[StructType, list[Column]] | None = None

    def check(self, schema: StructType) -> None:
        tables.check_key(schema, self._key, self._latest_by)
        with self._clear_errors(), connect(self._url) as connection:
            fitted = tables.fitted(connection, self._table, schema, self._key)
            if fitted is None and not self._create:
                raise self._no_table()

    def open(self, context: SinkContext) -> None:
        markers = self._markers(context)
        with self._clear_errors(), connect(self._url) as connection:
            markers.make_table(connection)
            markers.check_owner(connection)
        self._context = context
        self._is_first_batch = True

    def write(self, batch: Batch) -> Written:
        if self._context is None:
            raise InvariantViolated("a batch is written to a sink that is not open")
        if self._is_first_batch:
            self._check_not_ahead(self._context, batch.number)
            self._is_first_batch = False
        writer = self._writer(self._context, self._columns(batch.rows.schema))
        done = self._run(self._context, batch._replace(rows=_sent(batch.rows)), writer, batch.rows.schema)
        return Written(sum(each.rows for each in done), any(each.skipped for each in done))

    def idle(self) -> None:
        """Markers in a table do not expire."""

    def close(self) -> None:
        self._context = None

    def clean(self, context: SinkContext) -> list[str]:
        markers = self._markers(context)
        with self._clear_errors(), connect(self._url) as connection:
            positions = markers.positions(connection)
            if positions:
                markers.remove(connection)
        return [
            f"marker {slot} at {position} in {markers.table} of {place(self._url)}"
            for slot, position in positions.items()
        ]

    def positions(self, context: SinkContext) -> dict[str, int]:
        """How far each slot is written, whichever checkpoint did it."""
        with self._clear_errors(), connect(self._url) as connection:
            return self._markers(context).positions(connection)

    def restore_markers(self, context: SinkContext, positions: Mapping[str, int], batch: int) -> list[str]:
        """Set markers that are gone to where the checkpoint says that slots are, after this batch.

        Only the user can know that no batch was half-written then. Markers that are there stay as they are.
        Says which slots were set.
        """
        markers = self._markers(context)
        with self._clear_errors(), connect(self._url) as connection:
            markers.make_table(connection)
            return markers.restore(connection, positions, batch)

    def _run(
        self, context: SinkContext, batch: Batch, writer: PostgresWriter, schema: StructType
    ) -> list[Done]:
        """Repeat the batch if the server was away for a moment: what is written is not written again."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        tasks = self._tasks
        if self._key and tasks is None:  # rows of a key may be in several source partitions
            tasks = int(str(batch.rows.sparkSession.conf.get("spark.sql.shuffle.partitions")))
        share_by = _shared_by(schema, self._key)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return run_tasks(context, batch, writer, tasks=tasks, share_by=share_by)
            except (GaplessError, PySparkException, Py4JJavaError) as error:
                explained = explain(error)
                if explained.exit_code is not ExitCode.UNREACHABLE or attempt == _ATTEMPTS:
                    raise explained from (None if explained is error else error)
                _log.warning("batch %d is tried again: %s", batch.number, explained)
        raise InvariantViolated("every attempt ends")

    def _check_not_ahead(self, context: SinkContext, number: int) -> None:
        """Once is enough: from the first batch on it is this process that writes."""
        plan = context.folder.read(context.file(PLAN_FILE))
        if plan is None or Plan.from_json(plan).batch != number:
            with self._clear_errors(), connect(self._url) as connection:
                self._markers(context).check_not_ahead(connection, number)

    def _columns(self, schema: StructType) -> list[Column]:
        """How the table takes rows of this schema; makes it if need be."""
        if self._fitted is None or self._fitted[0] != schema:
            tables.check_key(schema, self._key, self._latest_by)
            self._fitted = (schema, self._fit(schema))
        return self._fitted[1]

    def _fit(self, schema: StructType) -> list[Column]:
        with self._clear_errors(), connect(self._url) as connection:
            fitted = tables.fitted(connection, self._table, schema, self._key)
            if fitted is None and self._create:
                tables.make(connection, tables.definition(self._table, schema, self._key))
                fitted = tables.fitted(connection, self._table, schema, self._key)
            if fitted is None:
                raise self._no_table()
            return fitted

    def _no_table(self) -> SinkRefused:
        return SinkRefused(
            f"there is no table {self._table} at {place(self._url)}: make it, or set create = true"
        )

    def _markers(self, context: SinkContext) -> Markers:
        return Markers(self._table.beside(MARKERS), context.pipeline, context.sink, context.folder.id)

    def _writer(self, context: SinkContext, columns: Sequence[Column]) -> PostgresWriter:
        return PostgresWriter(
            url=self._url,
            table=self._table,
            columns=columns,
            markers=self._markers(context),
            key=self._key,
            latest_by=self._latest_by,
            limits=self._limits,
        )

    def _clear_errors(self) -> AbstractContextManager[None]:
        return clear_errors(place(self._url), str(self._table))


def _sent(rows: DataFrame) -> DataFrame:
    """The rows as they go to tasks: named by position, as PySpark stumbles over dots; nested ones as JSON."""
    from pyspark.sql import functions as F  # noqa: N812

    options = {"ignoreNullFields": "false"}
    columns = []
    for index, field in enumerate(rows.schema.fields):
        column = F.col("`" + field.name.replace("`", "``") + "`")
        if field.dataType.typeName() in tables.AS_JSON:
            column = F.to_json(column, options)
        columns.append(column.alias(str(index)))
    return rows.select(*columns)


def _shared_by(schema: StructType, key: Sequence[str]) -> list[str | SparkColumn]:
    """What chooses a row's task: its key, or all that is sure to be the same when the batch is repeated."""
    from pyspark.sql import functions as F  # noqa: N812

    chosen = [
        str(index)
        for index, field in enumerate(schema.fields)
        if (field.name in key if key else field.dataType.typeName() not in _NOT_CERTAIN)
    ]
    return [*chosen] or [F.lit(0)]
