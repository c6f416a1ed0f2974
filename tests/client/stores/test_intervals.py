"""Intervals say of every number what a set of numbers says, and stay as few as they can be."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.client.stores.intervals import Intervals, IntervalsOverlap, Run

numbers = st.lists(st.integers(0, 40))


@given(numbers)
def test_adding_is_what_it_is_for_a_set(added: list[int]) -> None:
    model: set[int] = set()
    intervals = Intervals()
    for number in added:
        assert intervals.add(number) == (number not in model)
        model.add(number)
    assert [number for number in range(45) if number in intervals] == sorted(model)
    assert intervals.count() == len(model)


@given(numbers)
def test_intervals_are_apart_and_in_order(added: list[int]) -> None:
    intervals = Intervals()
    for number in added:
        intervals.add(number)
    runs = list(intervals)
    assert all(run.first <= run.last for run in runs)
    assert all(one.last + 1 < other.first for one, other in pairwise(runs))
    assert list(Intervals(runs)) == runs
    assert len(intervals) == len(runs)


@given(numbers, st.integers(0, 40), st.integers(1, 5))
def test_what_is_taken_out_is_gone_and_nothing_else(kept: list[int], first: int, length: int) -> None:
    taken = range(first, first + length)
    intervals = Intervals()
    for number in {*kept, *taken}:
        intervals.add(number)
    intervals.remove(Run(taken[0], taken[-1]))
    assert {number for number in range(50) if number in intervals} == set(kept) - set(taken)


@given(numbers, st.integers(0, 40))
def test_the_run_of_a_number(added: list[int], asked: int) -> None:
    intervals = Intervals()
    for number in added:
        intervals.add(number)
    run = intervals.run_with(asked)
    assert (run is not None) == (asked in added)
    if run is not None:
        assert run.first <= asked <= run.last
        assert run in list(intervals)


def test_numbers_in_order_are_one_interval() -> None:
    intervals = Intervals()
    assert all(intervals.add(number) for number in range(10_000))
    assert list(intervals) == [Run(0, 9_999)]


@pytest.mark.parametrize("runs", [[(3, 2)], [(0, 4), (5, 6)], [(5, 6), (0, 1)], [(-1, 3)]])
def test_what_cannot_have_been_written_is_refused(runs: list[tuple[int, int]]) -> None:
    with pytest.raises(IntervalsOverlap):
        Intervals(runs)


def test_what_is_not_there_cannot_be_taken_out() -> None:
    with pytest.raises(IntervalsOverlap, match="3-5"):
        Intervals([(0, 4)]).remove(Run(3, 5))
