"""A pipeline's markers, outside of any run: show them, remove them, set again those that were lost.

    with Upkeep(definition, spark) as upkeep:
        for marker in upkeep.markers():
            print(marker)

A marker that is gone stops a pipeline, for nobody can tell what was written. The checkpoint can: if no batch
was under way when the pipeline stopped, each marker was where the last finished batch ended.
"""

from __future__ import annotations

import json
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from gapless.errors import GaplessError, UsageError
from gapless.pipeline.alone import alone
from gapless.pipeline.definition import Definition
from gapless.pipeline.folder import CheckpointFolder
from gapless.pipeline.loss import positions
from gapless.pipeline.notes import last_finished
from gapless.pipeline.sections import SinkSettings, sink_type
from gapless.pipeline.sinks.making import make_sink
from gapless.pipeline.sinks.port import Sink, SinkContext
from gapless.pipeline.slots import Mode
from gapless.pipeline.tasks import ESTABLISHED_FILE, PLAN_FILE, Plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ShownMarker(NamedTuple):
    """How far a slot is written, and where the checkpoint expects it to be (None: it does not know)."""

    sink: str
    slot: str
    position: int | None
    expected: int | None

    @property
    def words(self) -> str:
        if self.position is None:
            return "gone"
        if self.expected is None or self.expected == self.position:
            return "as expected" if self.expected is not None else "not of this checkpoint"
        return "ahead (a batch is under way)" if self.position > self.expected else "behind"


class Restored(NamedTuple):
    """A marker that was set again."""

    sink: str
    slot: str
    position: int


class Upkeep:
    """The sinks of a definition, for their markers only."""

    def __init__(self, definition: Definition, spark: SparkSession) -> None:
        self._folder = CheckpointFolder(spark, definition.checkpoint)
        self._definition = definition
        self._sinks: list[tuple[SinkSettings, Sink, SinkContext]] = [
            (
                settings,
                make_sink(definition, settings),
                SinkContext(definition.name, settings.name, self._folder, spark),
            )
            for _, settings in definition.all_sinks()
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _, sink, _ in self._sinks:
            sink.close()

    def markers(self) -> list[ShownMarker]:
        """Those of all sinks that have some of their own, also those that are gone."""
        found: list[ShownMarker] = []
        for settings, sink, context in self._sinks:
            there = _positions(sink, context)
            if there is None:
                continue
            expected = self._expected(context)
            found += [
                ShownMarker(settings.name, slot, there.get(slot), expected.get(slot))
                for slot in sorted({*there, *expected}, key=_by_number)
            ]
        return found

    def without_markers(self) -> list[str]:
        """The sinks that need none: every batch is one commit of theirs, which has the batch's number."""
        return [
            f"{settings.name} ({sink_type(settings)})"
            for settings, sink, _ in self._sinks
            if not hasattr(sink, "markers") and not hasattr(sink, "positions")
        ]

    def restore(self) -> list[Restored]:
        """Set the markers that are gone to where the last finished batch ended. Others stay."""
        with alone(self._folder, self._definition.checkpoint):
            return self._restore()

    def _restore(self) -> list[Restored]:
        last = last_finished(self._folder)
        if last is None:
            raise UsageError(
                f"the checkpoint {self._definition.checkpoint} has no finished batch to restore markers from"
            )
        restored: list[Restored] = []
        for settings, sink, context in self._sinks:
            set_again = getattr(sink, "restore_markers", None)
            if set_again is None:
                continue
            expected = self._expected(context)
            gone = expected.keys() - (_positions(sink, context) or {}).keys()
            if not gone:
                continue
            self._refuse_unfinished(settings, context, last)
            done = set_again(context, {slot: expected[slot] for slot in gone}, last)
            restored += [
                Restored(settings.name, slot, expected[slot]) for slot in sorted(done, key=_by_number)
            ]
        return restored

    def clean(self) -> list[str]:
        """Remove the markers of all sinks, not their rows. Says what was removed."""
        with alone(self._folder, self._definition.checkpoint):
            return [line for _, sink, context in self._sinks for line in sink.clean(context)]

    def _refuse_unfinished(self, settings: SinkSettings, context: SinkContext, last: int) -> None:
        plan = self._plan(context)
        if plan is not None and plan.batch > last:
            raise GaplessError(
                f"batch {plan.batch} was under way when the pipeline stopped, and the markers that tell "
                f"what {settings.name} has of it are gone: look there which of its records are written, or "
                "start anew (gapless pipeline clean, and another checkpoint)"
            )

    def _expected(self, context: SinkContext) -> dict[str, int]:
        """Where the last finished batch left each slot that was ever used, in the mode that is in force."""
        last, plan = last_finished(self._folder), self._plan(context)
        data = self._folder.read(context.file(ESTABLISHED_FILE))
        if last is None or plan is None or data is None:
            return {}
        stands: dict[str, bool] = json.loads(data)
        known = {slot for slot, in_force in stands.items() if in_force}
        if plan.mode is Mode.SHUFFLED:
            return {f"task-{index}": last + 1 for index in range(plan.tasks) if f"task-{index}" in known}
        return {str(where): at for where, at in positions(self._folder).items() if str(where) in known}

    def _plan(self, context: SinkContext) -> Plan | None:
        data = self._folder.read(context.file(PLAN_FILE))
        return None if data is None else Plan.from_json(data)


def _positions(sink: Sink, context: SinkContext) -> dict[str, int] | None:
    """The markers of a sink by slot; None if it has no such thing."""
    if hasattr(sink, "markers"):
        return {slot: marker.position for slot, marker in sink.markers(context).items()}
    if hasattr(sink, "positions"):
        return dict(sink.positions(context))
    return None


def _by_number(slot: str) -> tuple[str, int]:
    name, _, number = slot.rpartition("-")
    return (name, int(number)) if number.isdecimal() else (slot, -1)
