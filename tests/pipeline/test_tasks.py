"""Each task of a sink writes its rows with its marker, once, whatever is repeated, or it is refused (C8)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gapless.errors import InvariantViolated
from gapless.pipeline.folder import CheckpointFolder
from gapless.pipeline.sinks.port import Batch, SinkContext
from gapless.pipeline.slots import MarkerMismatch
from gapless.pipeline.tasks import PlanChanged, run_tasks
from tests.pipeline import file_writer
from tests.pipeline.file_writer import FileWriter
from tests.pipeline.kafka_batches import Offsets, filled_topic, read_offsets, session_for_batches, values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Read = Callable[[Offsets], DataFrame]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

FIRST: Offsets = {0: (0, 4), 1: (0, 5)}
SECOND: Offsets = {0: (4, 10), 1: (5, 8)}
BOTH: Offsets = {0: (0, 10), 1: (0, 8)}


@pytest.fixture(scope="module", autouse=True)
def _workers_know_the_writer() -> Iterator[None]:
    """Python workers need not be able to import the tests."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[file_writer.__name__])  # type: ignore[no-untyped-call]
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[file_writer.__name__])  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def topic(bootstrap: str) -> str:
    return filled_topic(bootstrap)


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    return session_for_batches(spark)


@pytest.fixture
def read(session: SparkSession, bootstrap: str, topic: str) -> Read:
    return lambda offsets: read_offsets(session, bootstrap, topic, offsets)


@pytest.fixture
def context(session: SparkSession, tmp_path: Path) -> SinkContext:
    return SinkContext("orders", "out", CheckpointFolder(session, tmp_path / "checkpoint"), session)


@pytest.fixture
def writer(tmp_path: Path) -> FileWriter:
    (tmp_path / "sink").mkdir()
    return FileWriter(str(tmp_path / "sink"))


def fails(run: Callable[[], object], match: str) -> None:
    """A task's own exception comes back inside of one of Spark's."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=match):
        run()


def test_aligned_each_source_partition_is_a_slot_with_its_next_offset(
    context: SinkContext, writer: FileWriter, read: Read, topic: str
) -> None:
    done = run_tasks(context, Batch(0, read(FIRST)), writer)
    assert sorted((each.slot, each.rows, each.skipped) for each in done) == [
        (f"{topic}-0", 4, False),
        (f"{topic}-1", 5, False),
    ]
    assert writer.values(f"{topic}-0") == values({0: (0, 4)})
    assert writer.values(f"{topic}-1") == values({1: (0, 5)})
    assert writer.markers() == {f"{topic}-0": 4, f"{topic}-1": 5}
    run_tasks(context, Batch(1, read(SECOND).where("offset <> 6")), writer)
    assert writer.markers() == {f"{topic}-0": 10, f"{topic}-1": 8}
    assert writer.values() == sorted(set(values(BOTH)) - {"0.6", "1.6"})


def test_shuffled_each_task_is_a_slot_with_the_next_batch(
    context: SinkContext, writer: FileWriter, read: Read
) -> None:
    done = run_tasks(context, Batch(0, read(FIRST)), writer, tasks=3)
    assert sorted(each.slot for each in done) == ["task-0", "task-1", "task-2"]
    assert sum(each.rows for each in done) == 9
    run_tasks(context, Batch(1, read(SECOND)), writer, tasks=3)
    assert writer.markers() == {f"task-{number}": 2 for number in range(3)}
    assert writer.values() == values(BOTH)


def test_what_shuffles_is_shuffled_without_being_told(
    context: SinkContext, writer: FileWriter, read: Read
) -> None:
    done = run_tasks(context, Batch(0, read(FIRST).distinct()), writer)
    assert sorted(each.slot for each in done) == ["task-0", "task-1"]
    assert writer.values() == values(FIRST)


@pytest.mark.parametrize("tasks", [None, 3])
def test_every_partition_is_consumed_by_one_action_also_the_empty_ones(
    context: SinkContext, writer: FileWriter, read: Read, tasks: int | None
) -> None:
    for batch, rows in enumerate([read(FIRST), read(SECOND).where("value = 'none'")]):
        done = run_tasks(context, Batch(batch, rows), writer, tasks=tasks)
        assert writer.calls("write", batch) == sorted(each.slot for each in done)
        assert len(done) == (tasks or 2)
    assert writer.values() == values(FIRST)
    assert set(writer.markers().values()) == ({2} if tasks else {8, 10})


@pytest.mark.parametrize("tasks", [None, 3])
def test_a_repeated_batch_is_skipped(
    context: SinkContext, writer: FileWriter, read: Read, tasks: int | None
) -> None:
    run_tasks(context, Batch(0, read(FIRST)), writer, tasks=tasks)
    done = run_tasks(context, Batch(0, read(FIRST)), writer, tasks=tasks)
    assert all(each.skipped for each in done)
    assert writer.values() == values(FIRST)
    run_tasks(context, Batch(1, read(SECOND)), writer, tasks=tasks)
    assert writer.values() == values(BOTH)


@pytest.mark.parametrize("tasks", [None, 2])
def test_a_half_written_batch_is_completed(
    context: SinkContext, writer: FileWriter, read: Read, topic: str, tasks: int | None
) -> None:
    slot = frozenset({"task-1" if tasks else f"{topic}-1"})
    for failing in (replace(writer, fail_before=slot), replace(writer, fail_after=slot)):
        fails(partial(run_tasks, context, Batch(0, read(FIRST)), failing, tasks=tasks), "fails")
    done = run_tasks(context, Batch(0, read(FIRST)), writer, tasks=tasks)
    assert {each.slot for each in done if each.skipped} >= slot
    assert writer.values() == values(FIRST)


def test_a_repetition_has_as_many_tasks_as_the_first_attempt(
    context: SinkContext, writer: FileWriter, read: Read
) -> None:
    failing = replace(writer, fail_before=frozenset({"task-1"}))
    fails(lambda: run_tasks(context, Batch(0, read(FIRST)), failing, tasks=3), "task-1 fails")
    assert len(run_tasks(context, Batch(0, read(FIRST)), writer, tasks=5)) == 3
    assert writer.values() == values(FIRST)
    assert len(run_tasks(context, Batch(1, read(SECOND)), writer, tasks=5)) == 5
    assert writer.values() == values(BOTH)


def test_another_transform_cannot_complete_a_half_written_batch(
    context: SinkContext, writer: FileWriter, read: Read
) -> None:
    failing = replace(writer, fail_before=frozenset({"task-1"}))
    fails(lambda: run_tasks(context, Batch(0, read(FIRST)), failing, tasks=2), "task-1 fails")
    before = writer.values()
    with pytest.raises(PlanChanged, match=r"batch 0 was begun with another transform.*in out already"):
        run_tasks(context, Batch(0, read(FIRST).where("offset < 3")), writer, tasks=2)
    assert writer.values() == before
    run_tasks(context, Batch(0, read(FIRST)), writer, tasks=2)
    run_tasks(context, Batch(1, read(SECOND).where("offset < 7")), writer, tasks=2)
    assert writer.values() == values({0: (0, 7), 1: (0, 7)})


@pytest.mark.parametrize(("first", "then"), [(None, 2), (2, None)])
def test_another_mode_cannot_complete_a_half_written_batch(
    context: SinkContext, writer: FileWriter, read: Read, topic: str, first: int | None, then: int | None
) -> None:
    failing = replace(writer, fail_before=frozenset({"task-1", f"{topic}-1"}))
    fails(lambda: run_tasks(context, Batch(0, read(FIRST)), failing, tasks=first), "fails before")
    with pytest.raises(PlanChanged):
        run_tasks(context, Batch(0, read(FIRST)), writer, tasks=then)
    run_tasks(context, Batch(0, read(FIRST)), writer, tasks=first)
    assert writer.values() == values(FIRST)


def test_the_mode_may_change_between_batches(
    context: SinkContext, writer: FileWriter, read: Read, topic: str
) -> None:
    """A slot's marker is set anew at its first use after the change, be that some batches later."""
    steps: list[tuple[int | None, Offsets]] = [
        (None, {0: (0, 2), 1: (0, 2)}),
        (2, {0: (2, 4), 1: (2, 4)}),
        (None, {0: (4, 6)}),
        (None, {0: (6, 7), 1: (4, 6)}),
        (2, {0: (7, 8), 1: (6, 8)}),
        (None, {0: (8, 10), 1: (8, 10)}),
    ]
    for number, (tasks, offsets) in enumerate(steps):
        run_tasks(context, Batch(number, read(offsets)), writer, tasks=tasks)
        if number in (2, 3):
            again = run_tasks(context, Batch(number, read(offsets)), writer, tasks=tasks)
            assert all(done.skipped for done in again)
    assert writer.values() == values({0: (0, 10), 1: (0, 10)})
    assert writer.calls("reset", 2) == [f"{topic}-0"]
    assert writer.calls("reset", 3) == [f"{topic}-1"]
    assert writer.calls("reset", 4) == ["task-0", "task-1"]


def test_a_new_partition_has_a_marker_before_its_first_use(
    context: SinkContext, writer: FileWriter, read: Read, topic: str
) -> None:
    run_tasks(context, Batch(0, read({0: (0, 4)})), writer)
    assert writer.calls("establish", 0) == [f"{topic}-0"]
    failing = replace(writer, fail_before=frozenset({f"{topic}-1"}))
    fails(lambda: run_tasks(context, Batch(1, read({0: (4, 5), 1: (3, 5)})), failing), "fails before")
    assert writer.calls("establish", 1) == [f"{topic}-1"]
    assert writer.marker(f"{topic}-1") == 3
    run_tasks(context, Batch(1, read({0: (4, 5), 1: (3, 5)})), writer)
    assert writer.calls("establish", 1) == [f"{topic}-1"]
    assert writer.values() == values({0: (0, 5), 1: (3, 5)})


@pytest.mark.parametrize("tasks", [None, 2])
def test_a_sink_that_is_away_at_first_is_established_later(
    context: SinkContext, writer: FileWriter, read: Read, tasks: int | None
) -> None:
    with pytest.raises(OSError, match="the sink is away"):
        run_tasks(context, Batch(0, read(FIRST)), replace(writer, fail_establishing=True), tasks=tasks)
    run_tasks(context, Batch(0, read(FIRST)), writer, tasks=tasks)
    assert writer.values() == values(FIRST)


@pytest.mark.parametrize("tasks", [None, 2])
def test_a_marker_that_is_gone_is_refused(
    context: SinkContext, writer: FileWriter, read: Read, topic: str, tasks: int | None
) -> None:
    run_tasks(context, Batch(0, read(FIRST)), writer, tasks=tasks)
    lost = "task-1" if tasks else f"{topic}-1"
    writer.lose_marker(lost)
    with pytest.raises(MarkerMismatch, match=f"marker of {lost} is gone"):
        run_tasks(context, Batch(1, read(SECOND)), writer, tasks=tasks)
    assert writer.marker(lost) is None


def test_a_task_that_does_not_answer_is_noticed(
    context: SinkContext, writer: FileWriter, read: Read, topic: str
) -> None:
    wrong = replace(writer, answers={f"{topic}-1": f"{topic}-0"})
    with pytest.raises(InvariantViolated, match="2 tasks were to write"):
        run_tasks(context, Batch(0, read(FIRST)), wrong)


@pytest.mark.parametrize("tasks", [None, 2])
def test_an_older_batch_than_the_last_is_refused(
    context: SinkContext, writer: FileWriter, read: Read, tasks: int | None
) -> None:
    run_tasks(context, Batch(0, read(FIRST)), writer, tasks=tasks)
    run_tasks(context, Batch(1, read(SECOND)), writer, tasks=tasks)
    with pytest.raises(PlanChanged, match="batch 0 comes after batch 1"):
        run_tasks(context, Batch(0, read(FIRST)), writer, tasks=4)
    assert writer.values() == values(BOTH)


def test_adaptive_execution_does_not_choose_the_tasks(
    context: SinkContext, writer: FileWriter, read: Read, session: SparkSession
) -> None:
    session.conf.set("spark.sql.adaptive.enabled", "true")
    done = run_tasks(context, Batch(0, read(FIRST).distinct()), writer, tasks=8)
    assert len(done) == 8
    assert writer.values() == values(FIRST)


def test_a_row_comes_to_the_same_task_from_wherever_it_comes(
    context: SinkContext, writer: FileWriter, read: Read, session: SparkSession, tmp_path: Path
) -> None:
    """By its content, and not by its place among the others, nor by what is only nearly equal in it."""
    extra = ["value", "rand() AS chance", "map('k', rand()) AS m", "struct(rand() AS f) AS s"]
    run_tasks(context, Batch(0, read(FIRST).selectExpr(*extra)), writer, tasks=3)
    (tmp_path / "other").mkdir()
    other = replace(writer, folder=str(tmp_path / "other"))
    other_context = context._replace(sink="other")
    rows = read(FIRST).orderBy("offset", ascending=False).coalesce(1).selectExpr(*extra)
    run_tasks(other_context, Batch(0, rows), other, tasks=3)
    assert [writer.values(f"task-{n}") for n in range(3)] == [other.values(f"task-{n}") for n in range(3)]
    assert writer.values() == values(FIRST)


def test_rows_without_a_column_that_can_choose_a_task_are_refused(
    context: SinkContext, writer: FileWriter, read: Read
) -> None:
    with pytest.raises(PlanChanged, match="no column by which"):
        run_tasks(context, Batch(0, read(FIRST).selectExpr("offset / 2 AS half")), writer, tasks=2)


def test_rows_are_shared_out_by_the_columns_that_are_named(
    context: SinkContext, writer: FileWriter, read: Read
) -> None:
    run_tasks(context, Batch(0, read(FIRST)), writer, tasks=3, share_by=["partition"])
    together = [{value.partition(".")[0] for value in writer.values(f"task-{task}")} for task in range(3)]
    assert sorted(partition for slot in together for partition in slot) == ["0", "1"]
    assert writer.values() == values(FIRST)
