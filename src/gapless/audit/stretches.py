"""Sequences that lie together, and where they lie: what a partition holds, in a few rows for millions.

A `Stretches` has the columns of `Runs` (key, first and last sequence), and of both ends where they are:
offset, time, and the how-manieth record of the partition it is. What lies between is known to be there; at
which offsets is not. Arithmetic on whole columns; see `gapless.pipeline.dedup.runs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gapless.pipeline.dedup.runs import Flags, Ints, Places, Runs, joined

HIGHEST = 2**62
"""A sequence from here on is nobody's: sums and differences of two never overflow."""


class Spots(NamedTuple):
    """Where records are: one row for each."""

    offsets: Ints
    times_ms: Ints
    rows: Ints
    """The how-manieth record of its partition, from 0."""

    def at(self, places: Places | Flags) -> Spots:
        return Spots(*(column[places] for column in self))


class Stretches(NamedTuple):
    """Sorted by key and sequence, where nothing else is said. Both ends are included."""

    keys: Ints
    firsts: Ints
    lasts: Ints
    begins: Spots
    ends: Spots

    @property
    def runs(self) -> Runs:
        return Runs(self.keys, self.firsts, self.lasts)

    @property
    def sizes(self) -> Ints:
        """How many records each has."""
        return self.lasts - self.firsts + 1

    def at(self, places: Places | Flags) -> Stretches:
        keys, firsts, lasts = (column[places] for column in self.runs)
        return Stretches(keys, firsts, lasts, self.begins.at(places), self.ends.at(places))


def no_stretches() -> Stretches:
    nothing = np.empty(0, np.int64)
    spots = Spots(nothing, nothing, nothing)
    return Stretches(nothing, nothing, nothing, spots, spots)


def stretches_of(keys: Ints, sequences: Ints, spots: Spots) -> Stretches:
    """Records in some order, as stretches in the same: one ends where the next record does not follow."""
    return rejoined(Stretches(keys, sequences, sequences, spots, spots))


def concatenated(parts: Sequence[Stretches]) -> Stretches:
    """One after the other, not sorted."""
    begins, ends = (
        Spots(*map(np.concatenate, zip(*spots, strict=True)))
        for spots in zip(*((each.begins, each.ends) for each in parts), strict=True)
    )
    keys, firsts, lasts = map(np.concatenate, zip(*(each.runs for each in parts), strict=True))
    return Stretches(keys, firsts, lasts, begins, ends)


def united(one: Stretches, other: Stretches) -> Stretches:
    """All that is in either, which have nothing in common; what touches becomes one."""
    both = concatenated([one, other])
    return rejoined(both.at(np.lexsort((both.firsts, both.keys))))


def rejoined(parts: Stretches) -> Stretches:
    """Stretches in some order; one that follows the one before it becomes a part of it."""
    begins = np.ones(len(parts.keys), np.bool_)
    begins[1:] = (parts.keys[1:] != parts.keys[:-1]) | (parts.firsts[1:] - parts.lasts[:-1] != 1)
    at = np.flatnonzero(begins)
    until = np.append(at[1:], len(begins))[: len(at)] - 1
    return Stretches(
        parts.keys[at], parts.firsts[at], parts.lasts[until], parts.begins.at(at), parts.ends.at(until)
    )


class Overlay(NamedTuple):
    """The numbers of several sets, cut where any begins or ends: `inside[i]` tells of the i-th set."""

    keys: Ints
    firsts: Ints
    lasts: Ints
    inside: list[Flags]

    def where(self, flags: Flags) -> Runs:
        """Those parts, as runs that may touch."""
        return Runs(self.keys[flags], self.firsts[flags], self.lasts[flags])


def overlay(*sets: Runs) -> Overlay:
    """Lay sets over each other. Each may be in any order, and may have the same number more than once."""
    sizes = [len(each.keys) for each in sets]
    keys = np.concatenate([np.concatenate([each.keys, each.keys]) for each in sets])
    places = np.concatenate([np.concatenate([each.firsts, each.lasts + 1]) for each in sets])
    steps = np.concatenate([np.repeat([1, -1], size) for size in sizes])
    owners = np.repeat(np.arange(len(sets)), [2 * size for size in sizes])
    order = np.lexsort((places, keys))
    keys, places, steps, owners = keys[order], places[order], steps[order], owners[order]
    # Between two neighbouring places the same sets hold: as many as have begun and not ended.
    part = (keys[1:] == keys[:-1]) & (places[1:] > places[:-1])
    inside = [(np.cumsum(np.where(owners == number, steps, 0))[:-1] > 0)[part] for number in range(len(sets))]
    return Overlay(keys[:-1][part], places[:-1][part], places[1:][part] - 1, inside)


def either(one: Runs, other: Runs) -> Runs:
    """The numbers that are in one or in the other, or in both."""
    return as_set(Runs(*map(np.concatenate, zip(one, other, strict=True))))


def as_set(runs: Runs) -> Runs:
    """Runs in any order that may touch or overlap, sorted and as few as can be."""
    laid = overlay(runs)
    return joined(*laid.where(laid.inside[0]))
