"""Batches of Spark in a PostgreSQL table, each row once, whatever is repeated or fails (C8, E6)."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gapless.errors import GaplessError, Unreachable, UsageError
from gapless.pipeline.folder import CheckpointFolder
from gapless.pipeline.sinks.port import Batch, SinkContext, SinkRefused, Written
from gapless.pipeline.sinks.postgres import PostgresSink
from gapless.pipeline.sinks.postgres.tables import Column
from gapless.pipeline.sinks.postgres.writer import Limits, PostgresWriter
from gapless.pipeline.slots import MarkerMismatch
from gapless.pipeline.tasks import RowRefused
from tests.pipeline.kafka_batches import Offsets, filled_topic, read_offsets, values
from tests.pipeline.sinks.postgres import failing_writer
from tests.pipeline.sinks.postgres.failing_writer import FailingWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Read = Callable[[Offsets], DataFrame]
    Query = Callable[[str], list[tuple[Any, ...]]]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

FIRST: Offsets = {0: (0, 4), 1: (0, 5)}
SECOND: Offsets = {0: (4, 10), 1: (5, 8)}
BOTH: Offsets = {0: (0, 10), 1: (0, 8)}
HASTY = Limits(server_s=20, lock_s=5, idle_s=20)


@pytest.fixture(scope="module", autouse=True)
def _workers_know_the_writer() -> Iterator[None]:
    """Python workers need not be able to import the tests."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[failing_writer.__name__])  # type: ignore[no-untyped-call]
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[failing_writer.__name__])  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def topic(bootstrap: str) -> str:
    return filled_topic(bootstrap)


@pytest.fixture
def read(session: SparkSession, bootstrap: str, topic: str) -> Read:
    return lambda offsets: read_offsets(session, bootstrap, topic, offsets)


class FailingSink(PostgresSink):
    """A sink one of whose tasks fails once."""

    def __init__(self, way: str, failed: Path, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._way = way
        self._failed = failed

    def _writer(self, context: SinkContext, columns: Sequence[Column]) -> PostgresWriter:
        made = super()._writer(context, columns)
        settings = {each.name: getattr(made, each.name) for each in fields(made)}
        return FailingWriter(**settings, way=self._way, failed=str(self._failed))


def opened(sink: PostgresSink, context: SinkContext) -> PostgresSink:
    sink.open(context)
    return sink


def found(query: Query) -> list[str]:
    return sorted(value for (value,) in query("SELECT value FROM out"))


# Each row once


@pytest.mark.parametrize("tasks", [None, 3])
def test_a_repeated_batch_writes_nothing(
    context: SinkContext, dsn: str, read: Read, query: Query, topic: str, tasks: int | None
) -> None:
    sink = opened(PostgresSink(dsn, "out", tasks=tasks), context)
    assert sink.write(Batch(0, read(FIRST))) == Written(9, repeated=False)
    assert sink.write(Batch(0, read(FIRST))) == Written(0, repeated=True)
    assert sink.write(Batch(1, read(SECOND))) == Written(9, repeated=False)
    assert found(query) == values(BOTH)
    expected = {f"task-{number}": 2 for number in range(3)} if tasks else {f"{topic}-0": 10, f"{topic}-1": 8}
    assert sink.positions(context) == expected
    # Another process goes on with the same checkpoint.
    again = opened(PostgresSink(dsn, "out", tasks=tasks), context)
    assert again.write(Batch(1, read(SECOND))) == Written(0, repeated=True)
    assert found(query) == values(BOTH)


@pytest.mark.parametrize(
    ("way", "tasks"), [("killed before", None), ("killed after", None), ("killed after", 2)]
)
def test_a_worker_that_dies_around_its_commit_leaves_each_row_once(
    context: SinkContext, dsn: str, read: Read, query: Query, tmp_path: Path, tasks: int | None, way: str
) -> None:
    failing = opened(FailingSink(way, tmp_path / "failed", dsn, "out", tasks=tasks, limits=HASTY), context)
    with pytest.raises(GaplessError, match="Python worker exited unexpectedly"):
        failing.write(Batch(0, read(FIRST)))
    written = failing.write(Batch(0, read(FIRST)))
    assert found(query) == values(FIRST)
    if way == "killed after":
        assert written.repeated
    failing.write(Batch(1, read(SECOND)))
    assert found(query) == values(BOTH)


@pytest.mark.parametrize("way", ["cut off before", "answer lost"])
def test_a_connection_that_breaks_around_the_commit_is_a_matter_of_trying_again(
    context: SinkContext, dsn: str, read: Read, query: Query, tmp_path: Path, way: str
) -> None:
    sink = opened(FailingSink(way, tmp_path / "failed", dsn, "out", limits=HASTY), context)
    sink.write(Batch(0, read(FIRST)))
    assert (tmp_path / "failed").exists()
    assert found(query) == values(FIRST)
    assert sink.write(Batch(1, read(SECOND))) == Written(9, repeated=False)
    assert found(query) == values(BOTH)


@pytest.mark.slow
def test_the_number_of_tasks_may_change_between_batches(
    context: SinkContext, dsn: str, read: Read, query: Query
) -> None:
    steps: list[tuple[int | None, Offsets]] = [
        (2, {0: (0, 3), 1: (0, 1)}),
        (5, {0: (3, 4), 1: (1, 5)}),
        (None, {0: (4, 6), 1: (5, 6)}),
        (1, {0: (6, 10), 1: (6, 8)}),
    ]
    for number, (tasks, offsets) in enumerate(steps):
        sink = opened(PostgresSink(dsn, "out", tasks=tasks), context)
        assert not sink.write(Batch(number, read(offsets))).repeated
        assert sink.write(Batch(number, read(offsets))) == Written(0, repeated=True)
    assert found(query) == values(BOTH)


# Whose rows they are


def test_another_checkpoint_is_refused_until_the_markers_are_cleaned(
    context: SinkContext,
    dsn: str,
    read: Read,
    query: Query,
    session: SparkSession,
    tmp_path: Path,
    topic: str,
) -> None:
    sink = opened(PostgresSink(dsn, "out"), context)
    sink.write(Batch(0, read(FIRST)))
    fresh = context._replace(folder=CheckpointFolder(session, tmp_path / "fresh"))
    with pytest.raises(SinkRefused, match="another checkpoint of pipeline orders has written to sink out"):
        PostgresSink(dsn, "out").open(fresh)
    PostgresSink(dsn, "out").open(fresh._replace(pipeline="others"))
    assert [line.split(" in ")[0] for line in sink.clean(context)] == [
        f"marker {topic}-0 at 4",
        f"marker {topic}-1 at 5",
    ]
    assert sink.clean(context) == []
    assert found(query) == values(FIRST)
    opened(PostgresSink(dsn, "out"), fresh).write(Batch(0, read(FIRST)))
    assert found(query) == sorted(values(FIRST) * 2)
    with pytest.raises(MarkerMismatch, match="another checkpoint"):
        sink.write(Batch(1, read(SECOND)))


def test_an_old_copy_of_the_checkpoint_is_refused(
    context: SinkContext, dsn: str, read: Read, query: Query, session: SparkSession, tmp_path: Path
) -> None:
    """It plans the batch anew, perhaps with other rows, which must not be taken for those that are there."""
    sink = opened(PostgresSink(dsn, "out", tasks=2), context)
    sink.write(Batch(0, read(FIRST)))
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "old")
    sink.write(Batch(1, read(SECOND)))
    old = context._replace(folder=CheckpointFolder(session, tmp_path / "old"))
    with pytest.raises(MarkerMismatch, match="has batch 1, which this checkpoint has not reached"):
        opened(PostgresSink(dsn, "out", tasks=2), old).write(Batch(1, read({0: (4, 10), 1: (5, 10)})))
    assert opened(PostgresSink(dsn, "out", tasks=2), context).write(Batch(1, read(SECOND))).repeated
    assert found(query) == values(BOTH)


def test_markers_lie_beside_the_table(context: SinkContext, dsn: str, read: Read, query: Query) -> None:
    query("CREATE SCHEMA sales")
    opened(PostgresSink(dsn, "sales.out"), context).write(Batch(0, read(FIRST)))
    assert query("SELECT count(*) FROM sales.out") == [(9,)]
    assert query("SELECT count(*) FROM sales.gapless_markers") == [(2,)]


# Types and tables

EVERY_TYPE = """
    SELECT 'text' AS text, CAST(1 AS BYTE) AS byte, CAST(2 AS SHORT) AS short, 3 AS int, 4L AS long,
    CAST(0.5 AS FLOAT) AS float, CAST(0.25 AS DOUBLE) AS double, CAST(-12.34 AS DECIMAL(20, 4)) AS decimal,
    true AS flag, DATE'2026-02-03' AS day, TIMESTAMP'2026-02-03 04:05:06.789' AS moment,
    TIMESTAMP_NTZ'2026-02-03 04:05:06' AS clock, X'00FF' AS bytes, array(1, NULL) AS list,
    named_struct('a', 1, 'b', CAST(NULL AS INT)) AS struct, map('k', 1.5D) AS map, 'x' AS `a "b".c`
    UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL
"""


def test_every_type_has_a_column_in_a_table_that_is_made(
    context: SinkContext, dsn: str, session: SparkSession, query: Query
) -> None:
    rows = session.sql(EVERY_TYPE)
    sink = PostgresSink(dsn, "out", tasks=1)
    sink.check(rows.schema)
    assert query("SELECT to_regclass('out'), to_regclass('gapless_markers')") == [(None, None)]
    sink.open(context)
    assert sink.write(Batch(0, rows)).rows == 2
    types = query(
        "SELECT column_name, udt_name FROM information_schema.columns"
        " WHERE table_schema = 'public' AND table_name = 'out' ORDER BY ordinal_position"
    )
    assert [kind for _, kind in types] == [
        *("text", "int2", "int2", "int4", "int8", "float4", "float8", "numeric", "bool", "date"),
        *("timestamptz", "timestamp", "bytea", "jsonb", "jsonb", "jsonb", "text"),
    ]
    assert [name for name, _ in types] == rows.columns
    query("SET TIME ZONE 'UTC'")
    assert query("SELECT * FROM out WHERE int IS NOT NULL") == [
        (
            *("text", 1, 2, 3, 4, 0.5, 0.25, Decimal("-12.3400"), True, date(2026, 2, 3)),
            datetime(2026, 2, 3, 4, 5, 6, 789_000, tzinfo=UTC),
            datetime(2026, 2, 3, 4, 5, 6),  # noqa: DTZ001
            *(b"\x00\xff", [1, None], {"a": 1, "b": None}, {"k": 1.5}, "x"),
        )
    ]
    assert query("SELECT * FROM out WHERE int IS NULL") == [(None,) * len(types)]


def test_a_table_that_is_there_may_have_other_types_that_fit(
    context: SinkContext, dsn: str, session: SparkSession, query: Query
) -> None:
    query("CREATE TYPE mood AS ENUM ('sad', 'happy')")
    query("CREATE DOMAIN positive AS integer CHECK (VALUE > 0)")
    query(
        "CREATE TABLE out (made timestamptz DEFAULT now(), id uuid PRIMARY KEY, name varchar(20), doc jsonb,"
        " raw json, feeling mood, big numeric, small positive, price numeric(12, 2), fixed char(3))"
    )
    rows = session.sql(
        "SELECT '6e8bc430-9c3a-11d9-9669-0800200c9a66' AS id, 'Ada' AS name, '{\"a\": 1}' AS doc,"
        " '[1]' AS raw, 'happy' AS feeling, 5L AS big, 7 AS small, 1.50BD AS price, 'abc' AS fixed"
    )
    sink = PostgresSink(dsn, "out", create=False, tasks=1)
    sink.check(rows.schema)
    sink.open(context)
    assert sink.write(Batch(0, rows)).rows == 1
    assert query("SELECT id::text, name, doc, raw, feeling, big, small, price, fixed FROM out") == [
        *[
            (
                "6e8bc430-9c3a-11d9-9669-0800200c9a66",
                "Ada",
                {"a": 1},
                [1],
                "happy",
                5,
                7,
                Decimal("1.50"),
                "abc",
            )
        ]
    ]
    with pytest.raises(RowRefused, match=r"value too long for type character varying\(20\)"):
        sink.write(Batch(1, rows.selectExpr("uuid() AS id", "repeat('x', 21) AS name")))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (
            "id int, value text, price numeric",
            "out.id is integer, but the rows have bigint, which needs int8: cast it",
        ),
        ("id bigint", "table out has no column value, price"),
        (
            "id bigint, value text, price numeric(9, 2)",
            r"price is numeric\(9,2\), too narrow for decimal\(10,2\)",
        ),
        ("id bigint, value text, price numeric(14, 1)", r"price is numeric\(14,1\), too narrow"),
        ("id bigint, value bytea, price numeric", "out.value is bytea, but the rows have string"),
        ("id bigint, value text, price numeric, at date NOT NULL", "needs a value for at"),
        (
            "id bigint GENERATED ALWAYS AS IDENTITY, value text, price numeric",
            "out.id is generated by PostgreSQL",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused_before_anything_is_written(
    dsn: str, session: SparkSession, query: Query, table: str, said: str
) -> None:
    rows = session.sql("SELECT 1L AS id, 'a' AS value, CAST(1 AS DECIMAL(10, 2)) AS price")
    query(f"CREATE TABLE out ({table})")
    with pytest.raises(SinkRefused, match=said):
        PostgresSink(dsn, "out").check(rows.schema)


def test_what_cannot_be_a_table_or_a_key_is_refused(dsn: str, session: SparkSession, query: Query) -> None:
    schema = session.sql("SELECT 1L AS id, 0.5D AS weight, 'a' AS value, INTERVAL 1 DAY AS gap").schema
    plain = session.sql("SELECT 1L AS id, 0.5D AS weight, 'a' AS value").schema

    def refused(sink: PostgresSink, said: str, of: Any = plain) -> None:
        with pytest.raises(SinkRefused, match=said):
            sink.check(of)

    refused(PostgresSink(dsn, "out"), "column gap is interval day, which has no type in PostgreSQL", schema)
    refused(PostgresSink(dsn, "out", create=False), "there is no table out at 127.0.0.1:")
    refused(PostgresSink(dsn, "out", key=["nr"]), "the rows have no column nr; they have id, weight, value")
    refused(PostgresSink(dsn, "out", key=["weight"]), "weight cannot be a key")
    refused(PostgresSink(dsn, "out", latest_by="id"), "set key, too")
    refused(PostgresSink(dsn, "out", key=["id"], latest_by="id"), "latest_by cannot be id")
    query("CREATE TABLE out (id bigint, weight float8, value text, UNIQUE (id, value))")
    refused(
        PostgresSink(dsn, "out", key=["id"]), r"no unique index on \(id\).*CREATE UNIQUE INDEX ON out \(id\)"
    )
    PostgresSink(dsn, "out", key=["value", "id"]).check(plain)
    query("CREATE VIEW seen AS SELECT * FROM out")
    refused(PostgresSink(dsn, "seen"), "seen is no table")
    with pytest.raises(SinkRefused, match=r"the table must be NAME or SCHEMA\.NAME"):
        PostgresSink(dsn, "a.b.c")


# Upserts


def changes(session: SparkSession, *rows: tuple[int, str, int | None]) -> DataFrame:
    return session.createDataFrame(list(rows), "id long, value string, at int")


def test_rows_of_a_key_replace_each_other(
    context: SinkContext, dsn: str, session: SparkSession, query: Query
) -> None:
    sink = opened(PostgresSink(dsn, "out", key=["id"]), context)
    assert sink.write(Batch(0, changes(session, (1, "a", 1), (2, "b", 1)))) == Written(2, repeated=False)
    second = changes(session, (2, "c", 2), (3, "d", 2))
    assert sink.write(Batch(1, second)) == Written(2, repeated=False)
    assert sink.write(Batch(1, second)) == Written(0, repeated=True)
    assert query("SELECT id, value FROM out ORDER BY id") == [(1, "a"), (2, "c"), (3, "d")]


def test_the_latest_row_of_a_key_stays_whatever_order_they_come_in(
    context: SinkContext, dsn: str, session: SparkSession, query: Query
) -> None:
    sink = opened(PostgresSink(dsn, "out", key=["id"], latest_by="at", tasks=2), context)
    first = changes(session, (1, "old", 1), (1, "new", 5), (1, "older", 0), (2, "b", None), (3, "c", 3))
    assert sink.write(Batch(0, first)).rows == 3
    late = changes(session, (1, "late", 4), (2, "known", 1), (3, "same", 3))
    assert sink.write(Batch(1, late)).rows == 2
    assert query("SELECT id, value FROM out ORDER BY id") == [(1, "new"), (2, "known"), (3, "same")]


@pytest.mark.parametrize("latest_by", [None, "at"])
def test_two_rows_of_a_key_of_which_none_is_the_latest_are_refused(
    context: SinkContext, dsn: str, session: SparkSession, query: Query, latest_by: str | None
) -> None:
    sink = opened(PostgresSink(dsn, "out", key=["id"], latest_by=latest_by), context)
    with pytest.raises(RowRefused, match=r"several rows of one batch have the same key.*set latest_by"):
        sink.write(Batch(0, changes(session, (1, "a", 1), (1, "b", 1))))
    with pytest.raises(RowRefused, match='null value in column "id"'):
        sink.write(Batch(1, session.sql("SELECT CAST(NULL AS LONG) AS id, 'x' AS value, 1 AS at")))
    assert query("SELECT * FROM out") == []


def test_a_table_of_keys_alone_keeps_each_once(
    context: SinkContext, dsn: str, session: SparkSession, query: Query
) -> None:
    sink = opened(PostgresSink(dsn, "out", key=["id"]), context)
    sink.write(Batch(0, session.sql("SELECT explode(array(1, 2, 2)) AS id")))
    sink.write(Batch(1, session.sql("SELECT explode(array(2, 3)) AS id")))
    assert query("SELECT id FROM out ORDER BY id") == [(1,), (2,), (3,)]


def test_upserts_survive_a_dying_worker_as_well(
    context: SinkContext, dsn: str, read: Read, query: Query, tmp_path: Path
) -> None:
    sink = opened(
        FailingSink("killed before", tmp_path / "failed", dsn, "out", key=["partition"], latest_by="offset"),
        context,
    )
    with pytest.raises(GaplessError, match="Python worker exited unexpectedly"):
        sink.write(Batch(0, read(FIRST)))
    sink.write(Batch(0, read(FIRST)))
    sink.write(Batch(1, read(SECOND)))
    assert Counter(query("SELECT partition, value FROM out")) == Counter([(0, "0.9"), (1, "1.7")])


# When the server does not want


def test_what_is_wrong_with_the_server_is_told_in_one_line(
    context: SinkContext, dsn: str, read: Read, query: Query
) -> None:
    schema = read(FIRST).schema
    unheard = dsn.replace("127.0.0.1", "no-such-host.invalid")
    with pytest.raises(Unreachable, match=r"^PostgreSQL at no-such-host\.invalid:") as away:
        PostgresSink(unheard, "out").check(schema)
    with pytest.raises(Unreachable, match='database "nowhere" does not exist') as missing:
        PostgresSink(dsn.replace("/postgres", "/nowhere"), "out").check(schema)
    with pytest.raises(UsageError, match="url of the postgres sink cannot be read") as unreadable:
        PostgresSink("postgresql://[", "out")
    query('CREATE TABLE out (topic text, partition int, "offset" bigint, value text UNIQUE)')
    sink = opened(PostgresSink(dsn, "out"), context)
    sink.write(Batch(0, read(FIRST)))
    with pytest.raises(RowRefused, match=r"violates unique constraint.*Key \(value\)=\(0.3\)") as doubled:
        sink.write(Batch(1, read({0: (4, 6)}).selectExpr("topic", "partition", "offset", "'0.3' AS value")))
    for error in (away, missing, unreadable, doubled):
        assert "\n" not in str(error.value)
    assert found(query) == values(FIRST)
