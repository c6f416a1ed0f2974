"""A batch that comes again: what is written is skipped, the rest is written, whatever stopped it (C8, E2)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from gapless.client.formats import LEDGER_TOPIC
from gapless.pipeline.folder import CheckpointFolder
from gapless.pipeline.sinks.port import Batch, SinkContext, SinkRefused, Written
from gapless.pipeline.slots import MarkerMismatch
from gapless.pipeline.tasks import PlanChanged
from tests.pipeline.sinks.kafka.helpers import PATIENCE_S, Case
from tests.pipeline.sinks.kafka.mortal import MOMENTS, MortalSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
NewCase = Callable[..., Case]


@pytest.fixture
def new_case(spark: SparkSession, bootstrap: str, tmp_path: Path) -> NewCase:
    """On the embedded broker."""

    def make(**settings: object) -> Case:
        return Case(spark, bootstrap, bootstrap, tmp_path, **settings)  # type: ignore[arg-type]

    return make


@pytest.mark.parametrize("tasks", [None, 2])
def test_a_batch_that_is_repeated_by_hand_writes_nothing(new_case: NewCase, tasks: int | None) -> None:
    """Also where its rows are more than fit between Spark and a worker that does not read them."""
    case = new_case(records=4_000, padding=2_000, tasks=tasks)
    assert case.sink.write(case.batch(0, 0, 2_000)) == Written(4_000, repeated=False)
    assert case.sink.write(case.batch(0, 0, 2_000)) == Written(0, repeated=True)
    assert case.opened().write(case.batch(0, 0, 2_000)) == Written(0, repeated=True)
    assert case.written() == list(range(4_000))


@pytest.mark.slow_variants("apache", 2)
@pytest.mark.parametrize(
    ("output", "tasks"),
    [
        ("embedded", None),
        ("embedded", 2),
        ("apache", None),
    ],
    indirect=["output"],
)
def test_workers_that_die_at_any_moment(
    spark: SparkSession,
    bootstrap: str,
    tmp_path: Path,
    output: str,
    tasks: int | None,
) -> None:
    """C8: one of two tasks dies in each batch, the batch comes again, and every record is there once."""
    case = Case(spark, bootstrap, output, tmp_path, records=2_000, tasks=tasks)
    case.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 20)
    for number, moment in enumerate(MOMENTS):
        batch = case.batch(number, number * 100, number * 100 + 100)
        mortal = case.opened(MortalSink, ends={"moment": moment, "victim": "-1"})
        with pytest.raises(Exception, match="Python worker exited unexpectedly"):
            mortal.write(batch)
        done = case.sink.write(batch)
        assert moment == "before" or done.repeated or done.rows == 200
    assert case.sink.write(case.batch(len(MOMENTS), 500, 1_000)) == Written(1_000, repeated=False)
    assert case.written() == list(range(2_000))


@pytest.mark.parametrize("moment", ["sending", "committed"])
def test_a_task_that_fails_leaves_nothing_half_done(new_case: NewCase, moment: str) -> None:
    case = new_case(records=200)
    mortal = case.opened(MortalSink, ends={"moment": moment, "victim": "-1", "dies": False})
    with pytest.raises(Exception, match=f"fails: {moment}"):
        mortal.write(case.batch(0, 0, 100))
    done = case.sink.write(case.batch(0, 0, 100))
    # Spark ends the other task when it hears of the failure: perhaps before that one has committed.
    assert done.repeated or (moment == "sending" and done.rows == 200)
    assert case.written() == list(range(200))


@pytest.mark.parametrize("tasks", [None, 2])
def test_rows_that_fail_on_their_way_to_the_task_are_not_taken_for_all(
    new_case: NewCase, tasks: int | None
) -> None:
    """Spark only closes the connection then, which Arrow takes for an end: half a batch, and a marker."""
    case = new_case(records=2_000, tasks=tasks)
    case.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 50)
    rows = case.batch(0, 0, 1_000).rows
    failing = rows.selectExpr("key", "IF(value = '1501', raise_error('a bad record'), value) AS value")
    with pytest.raises(Exception, match="a bad record"):
        case.sink.write(Batch(0, failing))
    assert 1_501 not in case.written()
    if tasks is None:
        assert case.sink.write(Batch(0, rows)).rows >= 1_000
    else:  # the failure is in the stage before: no task of the sink has begun
        assert case.written() == []
        with pytest.raises(PlanChanged, match="another transform"):
            case.sink.write(Batch(0, rows))
        return
    assert case.written() == list(range(2_000))


def test_the_number_of_tasks_and_the_mode_may_change_between_batches(new_case: NewCase) -> None:
    case = new_case(records=1_400)
    for number, tasks in enumerate([2, 4, None, None, 1, 4, None]):
        sink = case.opened(tasks=tasks)
        batch = case.batch(number, number * 100, number * 100 + 100)
        assert sink.write(batch) == Written(200, repeated=False)
        if number % 2 == 0:
            assert sink.write(batch) == Written(0, repeated=True)
    assert case.written() == list(range(1_400))


def test_a_half_written_batch_can_only_be_finished_as_it_was_begun(new_case: NewCase) -> None:
    """Another number of tasks: the old one is used. Another transform, or mode: refused."""
    case = new_case(records=200, tasks=3)
    mortal = case.opened(MortalSink, ends={"moment": "sent", "victim": "-1"})
    batch = case.batch(0, 0, 100)
    with pytest.raises(Exception, match="Python worker exited unexpectedly"):
        mortal.write(batch)
    other = Batch(0, batch.rows.selectExpr("key", "concat(value, '0') AS value"))
    with pytest.raises(PlanChanged, match="finish it with the old definition"):
        case.sink.write(other)
    with pytest.raises(PlanChanged, match="finish it with the old definition"):
        case.opened(tasks=None).write(batch)
    case.opened(tasks=7).write(batch)
    assert case.written() == list(range(200))
    assert sorted(case.sink.markers(case.context)) == ["task-0", "task-1", "task-2"]


def test_markers_that_are_gone_are_no_beginning_and_can_be_restored(new_case: NewCase) -> None:
    case = new_case(records=400)
    case.sink.write(case.batch(0, 0, 100))
    removed = case.sink.clean(case.context)
    assert len(removed) == 3  # two slots, and the owner
    assert case.sink.markers(case.context) == {}
    for sink in (case.sink, case.opened()):
        with pytest.raises(MarkerMismatch, match="gone from the sink"):
            sink.write(case.batch(1, 100, 200))
    assert case.written() == list(range(200))
    positions = {f"{case.input_topic}-{partition}": 100 for partition in (0, 1)}
    assert case.sink.restore_markers(case.context, positions, 0) == list(positions)
    assert case.sink.restore_markers(case.context, dict.fromkeys(positions, 7), 0) == []
    assert case.sink.write(case.batch(1, 100, 200)).rows == 200
    assert case.written() == list(range(400))


def test_markers_that_went_back_or_ahead_are_refused(new_case: NewCase, tmp_path: Path) -> None:
    """A sink restored from a backup; a checkpoint restored from one."""
    case = new_case(records=800)
    case.sink.write(case.batch(0, 0, 100))
    shutil.copytree(case.checkpoint, tmp_path / "old")
    case.sink.write(case.batch(1, 100, 200))
    shutil.rmtree(case.checkpoint)
    shutil.copytree(tmp_path / "old", case.checkpoint)
    with pytest.raises(MarkerMismatch, match="ahead of this checkpoint"):
        case.opened().write(case.batch(1, 100, 150))
    assert case.opened().write(case.batch(1, 100, 200)) == Written(0, repeated=True)
    slot = f"{case.input_topic}-0"
    metadata = case.sink.markers(case.context)[slot].metadata
    group = f"gapless.pipeline.{case.name}.out.{slot}"
    back = ConsumerGroupTopicPartitions(group, [TopicPartition(LEDGER_TOPIC, 0, 100, metadata)])
    admin = AdminClient({"bootstrap.servers": case.output})
    admin.alter_consumer_group_offsets([back])[group].result(PATIENCE_S)
    with pytest.raises(MarkerMismatch, match="only up to offset 100"):
        case.sink.write(case.batch(2, 200, 300))
    assert [value for value in case.written() if value % 2 == 0] == list(range(0, 400, 2))


def test_an_old_checkpoint_that_plans_a_shuffled_batch_anew_is_refused(
    new_case: NewCase, tmp_path: Path
) -> None:
    """Its batch has the number of one that is written, but other rows, which would be taken for written."""
    case = new_case(records=800, tasks=2)
    case.sink.write(case.batch(0, 0, 100))
    shutil.copytree(case.checkpoint, tmp_path / "old")
    case.sink.write(case.batch(1, 100, 200))
    assert case.opened().write(case.batch(1, 100, 200)) == Written(0, repeated=True)
    shutil.rmtree(case.checkpoint)
    shutil.copytree(tmp_path / "old", case.checkpoint)
    with pytest.raises(MarkerMismatch, match="old copy"):
        case.opened().write(case.batch(1, 100, 300))
    assert case.written() == list(range(400))


@pytest.mark.parametrize("tasks", [None, 2])
def test_a_new_checkpoint_is_refused_where_another_has_written(
    new_case: NewCase, tmp_path: Path, tasks: int | None
) -> None:
    """Before anything is written, in whichever mode; until its markers are removed."""
    case = new_case(records=200)
    case.sink.write(case.batch(0, 0, 100))
    fresh = SinkContext(case.name, "out", CheckpointFolder(case.spark, tmp_path / "fresh"), case.spark)
    sink = case.opened(tasks=tasks)
    with pytest.raises(SinkRefused, match="bring that checkpoint back, give the pipeline a new name"):
        sink.open(fresh)
    sink.clean(fresh)
    sink.open(fresh)
    assert sink.write(case.batch(0, 0, 100)).rows == 200
    with pytest.raises(SinkRefused):
        sink.open(case.context)


def test_markers_are_kept_alive_between_batches(new_case: NewCase) -> None:
    """Old ones only; and whoever kept a producer for such a slot notices."""
    case = new_case(records=600, keep_alive_s=0.0)
    case.sink.write(case.batch(0, 0, 100))
    before = case.sink.markers(case.context)
    case.sink.idle()
    after = case.sink.markers(case.context)
    assert all(after[slot].at_ms > before[slot].at_ms for slot in before)
    assert [marker[:3] for marker in after.values()] == [marker[:3] for marker in before.values()]
    assert case.sink.write(case.batch(1, 100, 200)).rows == 200
    patient = case.opened(keep_alive_s=3_600.0)
    patient.write(case.batch(2, 200, 300))
    before = case.sink.markers(case.context)
    patient.idle()
    assert case.sink.markers(case.context) == before
    assert case.written() == list(range(600))


def test_a_transaction_that_comes_near_its_timeout_is_told(
    new_case: NewCase, caplog: pytest.LogCaptureFixture
) -> None:
    case = new_case(records=200, transaction_timeout_ms=2_000)
    slow = case.opened(MortalSink, ends={"pause_s": 0.3})
    assert slow.write(case.batch(0, 0, 100)).rows == 200
    assert "was open for 1." in caplog.text
    assert "transaction_timeout_ms" in caplog.text
    assert case.written() == list(range(200))
