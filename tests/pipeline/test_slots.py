"""A marker says whether a slot is written. Where it cannot, nobody guesses (C8)."""

from __future__ import annotations

import pytest

from gapless.pipeline.ranges import Range
from gapless.pipeline.slots import (
    MarkerMismatch,
    Mode,
    Slot,
    Verdict,
    aligned_slots,
    judge,
    shuffled_slots,
)

ALIGNED = Slot(Mode.ALIGNED, "orders-3", batch=7, start=100, end=200)
SHUFFLED = Slot(Mode.SHUFFLED, "task-2", batch=7, start=7, end=8)


def test_an_aligned_slot_is_a_source_partition_and_its_offsets() -> None:
    ranges = [Range("orders", 3, 100, 200), Range("orders-eu", 0, 5, 6)]
    assert aligned_slots(7, ranges) == [ALIGNED, Slot(Mode.ALIGNED, "orders-eu-0", 7, 5, 6)]


def test_a_shuffled_slot_is_a_task_and_its_batch() -> None:
    assert shuffled_slots(7, 3)[2] == SHUFFLED
    assert [slot.name for slot in shuffled_slots(7, 3)] == ["task-0", "task-1", "task-2"]


@pytest.mark.parametrize("slot", [ALIGNED, SHUFFLED])
def test_at_the_start_it_is_written_and_at_the_end_skipped(slot: Slot) -> None:
    assert judge(slot, slot.start) is Verdict.WRITE
    assert judge(slot, slot.end) is Verdict.SKIP


def test_a_task_that_had_no_part_in_some_batches_writes() -> None:
    """The number of tasks may change from batch to batch, and some markers then stand still."""
    assert judge(SHUFFLED, 3) is Verdict.WRITE


@pytest.mark.parametrize("slot", [ALIGNED, SHUFFLED])
def test_a_marker_that_is_gone_is_never_a_beginning(slot: Slot) -> None:
    with pytest.raises(MarkerMismatch, match=f"the marker of {slot.name} is gone"):
        judge(slot, None)


def test_a_sink_that_went_back_is_told_with_what_it_lost() -> None:
    with pytest.raises(MarkerMismatch, match=r"orders-3 only up to offset 60, .* lost 40 source offsets"):
        judge(ALIGNED, 60)


@pytest.mark.parametrize(("slot", "marker"), [(ALIGNED, 150), (ALIGNED, 201), (SHUFFLED, 9)])
def test_a_sink_that_is_ahead_was_written_by_somebody_else(slot: Slot, marker: int) -> None:
    with pytest.raises(MarkerMismatch, match=f"ahead of this checkpoint in {slot.name}"):
        judge(slot, marker)
