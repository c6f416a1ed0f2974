"""A pipeline through failures, stops and changes of its definition: nothing is lost, doubled or hushed up."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.cimpl import _AdminClientImpl

from gapless.errors import GaplessError
from gapless.pipeline.batches import BatchRunner
from gapless.pipeline.definition import Definition
from gapless.pipeline.progress import Progress
from gapless.pipeline.run import Pipeline
from gapless.pipeline.sinks.delta import DeltaSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
Define = Callable[..., Definition]
TWO_SINKS = '[[sinks]]\ntype = "parquet"\npath = "files"\n[[sinks]]\ntype = "delta"\npath = "table"\n'


class Broken(GaplessError):
    """A sink that is away."""


@pytest.fixture
def define(bootstrap: str, topic: str, tmp_path: Path) -> Define:
    def make(
        sql: str = "SELECT offset FROM records",
        more: str = TWO_SINKS,
        source: str = "",
        value: str = "text",
    ) -> Definition:
        text = f"""\
name = "run"
checkpoint = "checkpoint"
[source]
bootstrap = "{bootstrap}"
topics = ["{topic}"]
value = "{value}"
{source}
[transform]
sql = "{sql}"
{more}"""
        return Definition.parse(text, "run.toml", tmp_path)

    return make


@pytest.fixture
def run(spark: SparkSession) -> Callable[[Definition], list[Progress]]:
    def go(definition: Definition) -> list[Progress]:
        told: list[Progress] = []
        Pipeline(definition, spark=spark).run(once=True, on_progress=told.append)
        return told

    return go


def values(spark: SparkSession, tmp_path: Path) -> tuple[list[Any], list[Any]]:
    """What is in both sinks."""
    files = spark.read.parquet(str(tmp_path / "files")).collect()
    table = spark.read.format("delta").load(str(tmp_path / "table")).collect()
    return sorted(map(tuple, files)), sorted(map(tuple, table))


def test_a_sink_that_fails_gets_the_same_rows_later_and_others_get_nothing_twice(
    spark: SparkSession,
    define: Define,
    run: Callable[[Definition], list[Progress]],
    send: Callable[[range], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Staged, so that even random rows are the same for those that have them and those that have not (C8)."""
    send(range(20))
    definition = define("SELECT value, uuid() AS random FROM records", f"stage = true\n{TWO_SINKS}")

    def fail(*_: Any) -> None:
        raise Broken("the table is away")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaSink, "write", fail)
        with pytest.raises(Broken, match="the table is away"):
            run(definition)
    send(range(20, 30))
    told = run(definition)
    files, table = values(spark, tmp_path)
    assert files == table
    assert sorted(int(value) for value, _ in files) == list(range(30))
    assert [(each.batch, each.repeated, each.written) for each in told] == [
        (0, True, {"parquet": 0, "delta": 20}),
        (1, False, {"parquet": 10, "delta": 10}),
    ]


def test_it_stops_between_batches_and_goes_on_in_the_same_process(
    spark: SparkSession, define: Define, send: Callable[[range], None], tmp_path: Path
) -> None:
    send(range(40))
    told: list[Progress] = []
    for _ in range(2):
        pipeline = Pipeline(
            define("SELECT value FROM records", source="max_records_per_batch = 10"), spark=spark
        )

        def stop_soon(progress: Progress, pipeline: Pipeline = pipeline) -> None:
            told.append(progress)
            pipeline.stop()

        pipeline.run(on_progress=stop_soon)
    never = Pipeline(define("SELECT value FROM records"), spark=spark)
    never.stop()
    never.run(on_progress=told.append)
    assert [(each.batch, each.repeated) for each in told] == [(0, False), (1, False)]
    files, table = values(spark, tmp_path)
    assert files == table
    assert len({value for (value,) in files}) == len(files) == sum(each.rows_in for each in told)


def test_a_batch_that_fails_while_it_is_awaited_is_told(
    spark: SparkSession, define: Define, send: Callable[[range], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    send(range(4))
    pipeline = Pipeline(define(), spark=spark)
    stopping = threading.Event()

    def fail(*_: Any) -> Progress:
        pipeline.stop()
        assert stopping.wait(60)
        raise Broken("disk on fire")

    finish = pipeline._finish

    def finish_soon(query: Any) -> None:
        stopping.set()
        finish(query)

    monkeypatch.setattr(BatchRunner, "run", fail)
    monkeypatch.setattr(pipeline, "_finish", finish_soon)
    with pytest.raises(Broken, match="disk on fire"):
        pipeline.run()


def test_a_failing_listener_is_told_as_itself_and_costs_no_record(
    spark: SparkSession,
    define: Define,
    run: Callable[[Definition], list[Progress]],
    send: Callable[[range], None],
    tmp_path: Path,
) -> None:
    """`gapless pipeline run --json | head` is no failure of Spark's."""
    send(range(10))

    def hang_up(progress: Progress) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        Pipeline(define("SELECT value FROM records"), spark=spark).run(once=True, on_progress=hang_up)
    assert [each.repeated for each in run(define("SELECT value FROM records"))] == [True]
    files, table = values(spark, tmp_path)
    assert files == table == sorted((str(number),) for number in range(10))


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_leaves_neither_clients_nor_its_callers_variables_to_spark(
    spark: SparkSession,
    define: Define,
    send: Callable[[range], None],
    monkeypatch: pytest.MonkeyPatch,
    fails: bool,
) -> None:
    """PySpark keeps the function of a query, and its last exception, until Java collects them."""
    send(range(4))
    definition = define("SELECT value FROM records")
    if fails:
        monkeypatch.setattr(DeltaSink, "write", _fail)
    gc.collect()
    before = _admins()
    witness = _witness_of_run(definition, spark)
    gc.collect()
    assert (witness(), _admins()) == (None, before)


def _witness_of_run(definition: Definition, spark: SparkSession) -> weakref.ref[Any]:
    """Run, and return a reference to what only the caller of the run refers to."""
    told: list[Progress] = []

    def witness(progress: Progress) -> None:
        told.append(progress)

    with suppress(Broken):
        Pipeline(definition, spark=spark).run(once=True, on_progress=witness)
    return weakref.ref(witness)


def _fail(*_: Any) -> None:
    raise Broken("the table is away")


def _admins() -> int:
    return sum(isinstance(each, _AdminClientImpl) for each in gc.get_objects())


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT 1 / (offset - 1) AS x FROM records", "Division by zero"),
        ("SELECT CAST(concat('x', value) AS INT) AS x FROM records", "'x[01]' of the type .* cannot be cast"),
        ("SELECT assert_true(offset < 1) AS x, offset FROM records", "is not true"),
    ],
)
def test_what_fails_in_a_task_is_one_line(
    define: Define,
    run: Callable[[Definition], list[Progress]],
    send: Callable[[range], None],
    sql: str,
    message: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    send(range(6))
    with pytest.raises(GaplessError, match=message) as told:
        run(define(sql, '[[sinks]]\ntype = "parquet"\npath = "files"'))
    assert "\n" not in str(told.value)
    assert "Exception" not in str(told.value)
    said = [line for line in "".join(capfd.readouterr()).splitlines() if "rdkafka" not in line]
    assert said == []


def test_a_first_batch_that_was_cut_off_leaves_nothing_in_the_way_of_the_next_attempt(
    spark: SparkSession,
    define: Define,
    run: Callable[[Definition], list[Progress]],
    send: Callable[[range], None],
    tmp_path: Path,
) -> None:
    send(range(6))
    with pytest.raises(GaplessError, match="Division by zero"):
        run(define("SELECT value, 1 / (offset - 1) AS x FROM records"))
    run(define("SELECT value, 1.0D AS x FROM records"))
    files, table = values(spark, tmp_path)
    assert files == table == sorted((str(number), 1.0) for number in range(6))


@pytest.mark.parametrize("key", ["", 'key = "value"'])
def test_a_delta_table_of_which_there_is_only_a_beginning_is_made(
    spark: SparkSession,
    define: Define,
    run: Callable[[Definition], list[Progress]],
    send: Callable[[range], None],
    tmp_path: Path,
    key: str,
) -> None:
    send(range(6))
    sink = f'[[sinks]]\ntype = "delta"\npath = "table"\n{key}'
    with pytest.raises(GaplessError, match="Division by zero"):
        run(define("SELECT value, 1 / (offset - 1) AS x FROM records", sink))
    run(define("SELECT value, 1.0D AS x FROM records", sink))
    rows = spark.read.format("delta").load(str(tmp_path / "table")).collect()
    assert sorted(int(row.value) for row in rows) == list(range(6))


def test_an_unreadable_record_is_not_hidden_by_a_transform_that_would_leave_it_out(
    define: Define, run: Callable[[Definition], list[Progress]], send: Callable[[range], None]
) -> None:
    """Numbers are JSON, but no objects: without dead letters the first one stops the pipeline."""
    send(range(4))
    json = define(
        "SELECT amount FROM records WHERE amount > 0 AND value IS NULL",
        source='schema = "amount DOUBLE"',
        value="json",
    )
    with pytest.raises(GaplessError, match=r"-[01], offset 0: the value is not one JSON object"):
        run(json)


def test_a_checkpoint_has_one_pipeline_at_a_time(
    spark: SparkSession, define: Define, send: Callable[[range], None]
) -> None:
    send(range(4))
    errors: list[GaplessError] = []

    def start_another(progress: Progress) -> None:
        try:
            Pipeline(define(), spark=spark).run(once=True)
        except GaplessError as error:
            errors.append(error)

    Pipeline(define(), spark=spark).run(once=True, on_progress=start_another)
    assert len(errors) == 1
    assert "\n" not in str(errors[0])
    assert f"process {os.getpid()} runs a pipeline with the checkpoint" in str(errors[0])


def test_a_checkpoint_that_cannot_be_used_is_told(
    define: Define, run: Callable[[Definition], list[Progress]], tmp_path: Path
) -> None:
    (tmp_path / "checkpoint").write_text("no folder")
    with pytest.raises(GaplessError, match="checkpoint") as told:
        run(define())
    assert "\n" not in str(told.value)
