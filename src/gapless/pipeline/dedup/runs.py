"""Sets of numbers, one for each key, kept as the runs that they fill. Arithmetic on whole columns.

A source numbers its records without holes and a partition keeps their order: millions of records are usually
one run. Keys are small whole numbers; what they stand for is the caller's affair. Numbers are from 0 to
2^63 - 1, so that differences of two never overflow.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]
Places: TypeAlias = npt.NDArray[np.intp]

_FEW_KEYS = 2**16


class Runs(NamedTuple):
    """Sorted by key and number; runs of one key neither overlap nor touch. Both ends are included."""

    keys: Ints
    firsts: Ints
    lasts: Ints


def no_runs() -> Runs:
    nothing = np.empty(0, np.int64)
    return Runs(nothing, nothing, nothing)


def sift(keys: Ints, numbers: Ints, *seen: Runs) -> tuple[Flags, Runs]:
    """Which rows are new, and the runs of the new ones. Of equal rows the first is new, if none was seen."""
    if not len(keys):
        return np.empty(0, np.bool_), no_runs()
    order = _in_order(keys, numbers)
    keys, numbers = keys[order], numbers[order]
    fresh = _differs(keys, numbers)
    for runs in seen:
        if len(runs.keys):
            fresh &= ~_contained(keys, numbers, fresh, runs)
    is_new = np.empty(len(keys), np.bool_)
    is_new[order] = fresh
    return is_new, joined(keys[fresh], numbers[fresh], numbers[fresh])


def united(one: Runs, other: Runs) -> Runs:
    """All numbers of both, which have none in common."""
    keys, firsts, lasts = (np.concatenate(columns) for columns in zip(one, other, strict=True))
    order = np.lexsort((firsts, keys))
    return joined(keys[order], firsts[order], lasts[order])


def _in_order(keys: Ints, numbers: Ints) -> Places:
    """By key, then number, then as they came."""
    # Small keys are sorted in linear time, and what one source sends has mostly kept its order.
    few = bool(keys.max() < _FEW_KEYS)
    order = np.argsort(keys.astype(np.uint16) if few else keys, kind="stable")
    sorted_keys, sorted_numbers = keys[order], numbers[order]
    falls = (sorted_keys[1:] == sorted_keys[:-1]) & (sorted_numbers[1:] < sorted_numbers[:-1])
    return np.lexsort((numbers, keys)) if falls.any() else order


def _differs(keys: Ints, numbers: Ints) -> Flags:
    """Of sorted rows, those that are not equal to the one before."""
    differs = np.ones(len(keys), np.bool_)
    differs[1:] = (keys[1:] != keys[:-1]) | (numbers[1:] != numbers[:-1])
    return differs


def _contained(keys: Ints, numbers: Ints, fresh: Flags, seen: Runs) -> Flags:
    """Of sorted rows, those that were seen. Looks at runs first: of most sources nothing comes again."""
    inside = np.zeros(len(keys), np.bool_)
    runs = joined(keys[fresh], numbers[fresh], numbers[fresh])
    at = floor(seen, runs.keys, runs.lasts)
    repeats = (at >= 0) & (seen.lasts[at] >= runs.firsts)
    if not repeats.any():
        return inside
    suspects = np.flatnonzero(np.isin(keys, runs.keys[repeats]))
    at = floor(seen, keys[suspects], numbers[suspects])
    inside[suspects] = (at >= 0) & (seen.lasts[at] >= numbers[suspects])
    return inside


def floor(runs: Runs, keys: Ints, numbers: Ints) -> Places:
    """For each row the last run of its key that begins at or before its number; -1 if there is none."""
    start = np.searchsorted(runs.keys, keys, "left")
    low, high = start, np.searchsorted(runs.keys, keys, "right")
    # A binary search for all rows at once: of most sources there is a single run, and one step will do.
    while (unsure := low < high).any():
        middle = (low + high) // 2
        begins_before = unsure.copy()
        begins_before[unsure] = runs.firsts[middle[unsure]] <= numbers[unsure]
        low = np.where(begins_before, middle + 1, low)
        high = np.where(unsure & ~begins_before, middle, high)
    return np.where(low > start, low - 1, -1)


def joined(keys: Ints, firsts: Ints, lasts: Ints) -> Runs:
    """Sorted runs that may touch, as runs that do not."""
    begins = np.ones(len(keys), np.bool_)
    begins[1:] = (keys[1:] != keys[:-1]) | (firsts[1:] - lasts[:-1] != 1)
    at = np.flatnonzero(begins)
    ends = np.append(at[1:], len(keys))[: len(at)] - 1
    return Runs(keys[at], firsts[at], lasts[ends])
