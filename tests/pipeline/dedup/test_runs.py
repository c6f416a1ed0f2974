"""Runs of numbers against sets: the same answers, however rows come."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.pipeline.dedup.runs import Runs, no_runs, sift, united

TOP = 2**63 - 1
NUMBERS = st.integers(0, 12) | st.integers(TOP - 3, TOP)
BATCHES = st.lists(st.lists(st.tuples(st.integers(0, 2), NUMBERS), max_size=30), max_size=5)


def columns(rows: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.array(rows, np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def check_form(runs: Runs) -> None:
    """Sorted, apart from each other, none empty: the one way to write a set down."""
    listed = list(zip(*(column.tolist() for column in runs), strict=True))
    assert all(first <= last for _, first, last in listed)
    assert all(one[0] < two[0] or (one[0] == two[0] and one[2] + 1 < two[1]) for one, two in pairwise(listed))


def contains(runs: Runs, row: tuple[int, int]) -> bool:
    key, number = row
    return bool(np.any((runs.keys == key) & (runs.firsts <= number) & (number <= runs.lasts)))


@given(BATCHES)
@settings(max_examples=300, deadline=None)
def test_batch_after_batch_the_first_of_equal_rows_is_new_and_no_other(
    batches: list[list[tuple[int, int]]],
) -> None:
    known: set[tuple[int, int]] = set()
    seen = no_runs()
    for batch in batches:
        expected = []
        before = set(known)
        for row in batch:
            expected.append(row not in known)
            known.add(row)
        is_new, new = sift(*columns(batch), seen)
        assert is_new.tolist() == expected
        check_form(new)
        assert all(contains(new, row) for row in known - before)
        assert not any(contains(new, row) for row in before)
        seen = united(seen, new)
        check_form(seen)
        assert all(contains(seen, row) for row in known)
        assert sum(seen.lasts.tolist()) - sum(seen.firsts.tolist()) + len(seen.keys) == len(known)


def test_a_million_records_of_a_source_are_one_run_and_many_keys_are_no_trouble() -> None:
    numbers = np.arange(1_000_000, dtype=np.int64)
    is_new, runs = sift(np.zeros_like(numbers), numbers, no_runs())
    assert is_new.all()
    assert [column.tolist() for column in runs] == [[0], [0], [999_999]]
    is_new, runs = sift(numbers % 100_000, numbers // 100_000, no_runs())
    assert is_new.all()
    assert len(runs.keys) == 100_000
    is_new, _ = sift(numbers % 100_000, numbers // 100_000, runs)
    assert not is_new.any()
