"""One batch into a sink by several tasks, each with a transaction and a marker of its own.

Nothing is prepared and then decided: a task commits its rows together with its marker, or neither. A batch
that is repeated finds the markers and skips what is there. That is sound only if each row comes to the same
task again:

- Aligned: nothing shuffles, so a task's rows come from one source partition, and its marker is an offset of
  that.
- Shuffled: rows are shared out by a hash of their key, and how many tasks, by which plan, is written
  beside the checkpoint before any of them starts. A repetition that would do otherwise is refused.

What no repetition can mend (a marker that is gone, a row that the sink will never take) a task answers with,
so that Spark does not try it again; every other failure it raises, and Spark tries again."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from gapless.errors import GaplessError, InvariantViolated
from gapless.pipeline.plans import fingerprint
from gapless.pipeline.ranges import source_ranges
from gapless.pipeline.slots import MarkerMismatch, Mode, Slot, aligned_slots, shuffled_slots
from gapless.pipeline.whole import whole

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import Column, DataFrame

    from gapless.pipeline.sinks.port import Batch, SinkContext

PLAN_FILE = "plan.json"
ESTABLISHED_FILE = "established.json"
_SUMMARY_SCHEMA = "slot string, rows long, skipped boolean, seconds double, kind string, refusal string"
_NAME_BYTES = 4
_DOUBTFUL = ("map<", "variant", "float", "double")


class PlanChanged(GaplessError):
    """The batch was begun in another way, and can only be finished in that. The message says what to do."""


class RowRefused(GaplessError):
    """The sink will never take a row of the batch. The message says which, and why."""


class Done(NamedTuple):
    """What a task says when its slot is written: now, or (skipped) by an attempt before it."""

    slot: str
    rows: int
    skipped: bool
    seconds: float


class TaskWriter(Protocol):
    """Writes slots. Goes to the workers by pickle, so it holds settings and no connections."""

    def establish(self, slots: Sequence[Slot], *, reset: bool) -> None:
        """On the driver: let there be a marker at `start` for each slot, before its first use.

        With `reset`, set those that there are, too: nobody has used them since another mode was in force.
        """

    def write(self, slot: Slot, rows: Iterator[RecordBatch]) -> Done:
        """In a worker: fence off earlier attempts, judge the marker, write rows and marker as one.

        Raises `MarkerMismatch` or `RowRefused` where trying again is of no use.
        """


class Plan(NamedTuple):
    """How a batch is shared out."""

    batch: int
    mode: Mode
    tasks: int
    fingerprint: str
    name: str = ""
    """Random, so that a batch of this number that was planned anew is not taken for this one."""

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        known = json.loads(data)
        return cls(
            known["batch"], Mode(known["mode"]), known["tasks"], known["fingerprint"], known.get("name", "")
        )

    def to_json(self) -> bytes:
        return json.dumps({**self._asdict(), "mode": self.mode.value}).encode()


def run_tasks(
    context: SinkContext,
    batch: Batch,
    writer: TaskWriter,
    *,
    tasks: int | None = None,
    share_by: Sequence[str | Column] = (),
) -> list[Done]:
    """Write the batch. With `tasks`, by so many and shuffled; else aligned where that is possible.

    Shuffled, rows are shared out by the columns `share_by`, or by all that come out the same again.
    """
    # Adaptive execution would choose the number of tasks by what it sees, another one each time.
    batch.rows.sparkSession.conf.set("spark.sql.adaptive.enabled", "false")
    rows = batch.rows.select("*")
    ranges = source_ranges(rows) if tasks is None else None
    if ranges is not None:
        plan = Plan(batch.number, Mode.ALIGNED, len(ranges), "")
        slots = aligned_slots(batch.number, ranges)
        earlier = _earlier_plan(context, plan)
    else:
        wanted = tasks or int(str(rows.sparkSession.conf.get("spark.sql.shuffle.partitions")))
        print_of_plan = fingerprint(rows, batch.code, *map(str, share_by))
        plan = Plan(batch.number, Mode.SHUFFLED, wanted, print_of_plan, secrets.token_hex(_NAME_BYTES))
        earlier = _earlier_plan(context, plan)
        if earlier is not None and earlier.batch == batch.number:
            plan = earlier
        slots = shuffled_slots(batch.number, plan.tasks, plan.name)
        rows = _share_out(rows, plan.tasks, share_by)
    _establish(context, writer, slots, new_mode=earlier is not None and earlier.mode is not plan.mode)
    if plan != earlier:
        context.folder.write(context.file(PLAN_FILE), plan.to_json())
    return _act(rows, slots, writer) if slots else []


def _earlier_plan(context: SinkContext, plan: Plan) -> Plan | None:
    """The plan of this batch's first attempt, or of the batch before it."""
    data = context.folder.read(context.file(PLAN_FILE))
    if data is None:
        return None
    earlier = Plan.from_json(data)
    if earlier.batch > plan.batch:
        raise PlanChanged(
            f"batch {plan.batch} comes after batch {earlier.batch} was begun: another process runs with "
            "this checkpoint (stop it), or it is a mixture of older and newer files (bring all of it back)"
        )
    if earlier.batch == plan.batch and (earlier.mode, earlier.fingerprint) != (plan.mode, plan.fingerprint):
        raise PlanChanged(
            f"batch {plan.batch} was begun with another transform or other settings, and part of it may "
            f"be in {context.sink} already: finish it with the old definition "
            "(gapless pipeline run FILE --once), then change it"
        )
    return earlier


def _share_out(rows: DataFrame, tasks: int, share_by: Sequence[str | Column]) -> DataFrame:
    """Sums of fractions depend on their order, and maps have no hash: neither may choose a task."""
    certain = [name for name, kind in rows.dtypes if not any(doubtful in kind for doubtful in _DOUBTFUL)]
    columns = [*share_by] or [*certain]
    if not columns:
        raise PlanChanged("the rows have no column by which they can be shared out among tasks: add a key")
    # A dot in a name would be taken for a field of a struct.
    quoted = ["`" + each.replace("`", "``") + "`" if isinstance(each, str) else each for each in columns]
    return rows.repartition(tasks, *quoted)


def _establish(context: SinkContext, writer: TaskWriter, slots: Sequence[Slot], *, new_mode: bool) -> None:
    """Make the markers that were never there; what was there once and is gone is for the task to refuse.

    While another mode was in force the markers of this one stood still. They are set anew, each before the
    first batch that has its slot, which need not be the first batch of the mode.
    """
    data = context.folder.read(context.file(ESTABLISHED_FILE))
    known: dict[str, bool] = json.loads(data) if data is not None else {}  # name -> stands where it should
    if new_mode:
        known = dict.fromkeys(known, False)
    new = [slot for slot in slots if slot.name not in known]
    left_behind = [slot for slot in slots if known.get(slot.name) is False]
    if new:
        writer.establish(new, reset=False)
    if left_behind:
        writer.establish(left_behind, reset=True)
    if new or left_behind or new_mode:
        known.update((slot.name, True) for slot in slots)
        context.folder.write(context.file(ESTABLISHED_FILE), json.dumps(known, sort_keys=True).encode())


def _act(rows: DataFrame, slots: Sequence[Slot], writer: TaskWriter) -> list[Done]:
    """The one action on the batch: every partition is written by one task, which answers with one row."""

    def in_task(record_batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        task = TaskContext.get()
        if task is None:
            raise InvariantViolated("a sink's task runs outside of Spark")
        slot = slots[task.partitionId()]
        try:
            done = writer.write(slot, whole(record_batches))
            answer = {**done._asdict(), "kind": "", "refusal": ""}
        except (MarkerMismatch, RowRefused) as error:
            nothing = Done(slot.name, 0, skipped=False, seconds=0.0)
            answer = {**nothing._asdict(), "kind": type(error).__name__, "refusal": str(error)}
        yield pa.RecordBatch.from_pylist([answer])

    answers = rows.mapInArrow(in_task, _SUMMARY_SCHEMA).collect()
    if sorted(row.slot for row in answers) != sorted(slot.name for slot in slots):
        raise InvariantViolated(f"{len(slots)} tasks were to write, {len(answers)} answered")
    for row in answers:
        if row.refusal:
            raise (RowRefused if row.kind == RowRefused.__name__ else MarkerMismatch)(row.refusal)
    return [Done(row.slot, row.rows, row.skipped, row.seconds) for row in answers]
