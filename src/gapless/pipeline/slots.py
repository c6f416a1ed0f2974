"""What a task of a sink writes, and how its marker tells whether it is written already.

A slot is the share of one sink task in one batch. Its marker lives where its rows go and moves with them, in
the same transaction: from `start` to `end`. So it is at the one or the other, and tells what to do.

Aligned: the slot is a source partition, the marker the next source offset. Shuffled: the slot is the number
of a task, the marker the next batch.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from gapless.errors import GaplessError
from gapless.pipeline.ranges import Range


class Mode(Enum):
    ALIGNED = "aligned"
    SHUFFLED = "shuffled"


class Slot(NamedTuple):
    """One task's share of a batch."""

    mode: Mode
    name: str
    batch: int
    start: int
    end: int
    plan: str = ""
    """Shuffled: which plan of that batch it belongs to. An old copy of a checkpoint makes another one."""


class Verdict(Enum):
    WRITE = "write"
    SKIP = "skip"


class MarkerMismatch(GaplessError):
    """A sink's marker is not where this checkpoint can have left it. The message says what to do."""


def aligned_slots(batch: int, ranges: list[Range]) -> list[Slot]:
    return [Slot(Mode.ALIGNED, each.name, batch, each.start, each.end) for each in ranges]


def shuffled_slots(batch: int, tasks: int, plan: str = "") -> list[Slot]:
    return [Slot(Mode.SHUFFLED, f"task-{number}", batch, batch, batch + 1, plan) for number in range(tasks)]


def judge(slot: Slot, marker: int | None) -> Verdict:
    """Write or skip; raises `MarkerMismatch` where neither would be right."""
    if marker is None:
        raise MarkerMismatch(
            f"the marker of {slot.name} is gone from the sink (expired or deleted), so nobody knows whether "
            f"batch {slot.batch} was written. If no batch was under way when the pipeline stopped, "
            "`gapless pipeline markers FILE --restore` sets it from the checkpoint"
        )
    if slot.mode is Mode.SHUFFLED:
        if marker > slot.end:
            raise _ahead(slot, f"batch {marker - 1} is written there, this one is {slot.batch}")
        return Verdict.SKIP if marker == slot.end else Verdict.WRITE
    if marker == slot.end:
        return Verdict.SKIP
    if marker == slot.start:
        return Verdict.WRITE
    if marker > slot.start:
        raise _ahead(
            slot, f"offset {marker} is next there, batch {slot.batch} goes from {slot.start} to {slot.end}"
        )
    raise MarkerMismatch(
        f"the sink has {slot.name} only up to offset {marker}, but the checkpoint says up to {slot.start}: "
        f"the sink lost {slot.start - marker} source offsets that were committed to it (a restored backup?)"
    )


def _ahead(slot: Slot, how: str) -> MarkerMismatch:
    return MarkerMismatch(
        f"the sink is ahead of this checkpoint in {slot.name} ({how}): the checkpoint is an old copy, or "
        "another one wrote under the same names. Bring the newest one back, or give the pipeline a new name"
    )
