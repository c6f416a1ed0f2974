"""How often each number of a stream is there, kept as runs of equal counts.

What a sink holds is told here: a number that is missing is there 0 times, a doubled one twice. Sources number
their records without holes, so that the millions of a whole sink are usually one run for each stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from gapless.pipeline.dedup.runs import Flags, Ints, Runs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = "maker binary, partition int, first long, last long, times long"
"""Of rows that Spark returns: the run `first` to `last` of a stream is there so many times."""


class Counted(NamedTuple):
    """Sorted by key and number; both ends are included. What is not named is there 0 times."""

    keys: Ints
    firsts: Ints
    lasts: Ints
    times: Ints


class Layers(NamedTuple):
    """The numbers of several sets, cut where any changes: `times[i]` tells of the i-th set."""

    keys: Ints
    firsts: Ints
    lasts: Ints
    times: list[Ints]

    @property
    def sizes(self) -> Ints:
        return self.lasts - self.firsts + 1

    def where(self, flags: Flags) -> Runs:
        """Those parts, as runs that may touch."""
        return Runs(self.keys[flags], self.firsts[flags], self.lasts[flags])

    def summed(self, times: Ints, keys: int) -> Ints:
        """By key: how many records, each so many times."""
        return np.bincount(self.keys, times * self.sizes, keys).astype(np.int64)


def counted(runs: Runs, times: Ints | None = None) -> Counted:
    """Runs in any order that may touch or overlap; what is in several is there as often."""
    given = np.ones(len(runs.keys), np.int64) if times is None else times
    laid = layers(Counted(*runs, given))
    return _joined(Counted(laid.keys, laid.firsts, laid.lasts, laid.times[0]))


def plus(one: Counted, other: Counted) -> Counted:
    """As often as in both together."""
    runs = Runs(*map(np.concatenate, zip(one[:3], other[:3], strict=True)))
    return counted(runs, np.concatenate([one.times, other.times]))


def layers(*sets: Counted) -> Layers:
    """Lay sets over each other. Each may be in any order; what overlaps within one adds up."""
    sizes = [len(each.keys) for each in sets]
    keys = np.concatenate([np.concatenate([each.keys, each.keys]) for each in sets])
    places = np.concatenate([np.concatenate([each.firsts, each.lasts + 1]) for each in sets])
    steps = np.concatenate([np.concatenate([each.times, -each.times]) for each in sets])
    owners = np.repeat(np.arange(len(sets)), [2 * size for size in sizes])
    order = np.lexsort((places, keys))
    keys, places, steps, owners = keys[order], places[order], steps[order], owners[order]
    sums = [np.cumsum(np.where(owners == number, steps, 0))[:-1] for number in range(len(sets))]
    part = (keys[1:] == keys[:-1]) & (places[1:] > places[:-1]) & np.logical_or.reduce([s != 0 for s in sums])
    return Layers(keys[:-1][part], places[:-1][part], places[1:][part] - 1, [each[part] for each in sums])


def _joined(parts: Counted) -> Counted:
    """Neighbours that are there equally often become one."""
    begins = np.ones(len(parts.keys), np.bool_)
    begins[1:] = (
        (parts.keys[1:] != parts.keys[:-1])
        | (parts.firsts[1:] - parts.lasts[:-1] != 1)
        | (parts.times[1:] != parts.times[:-1])
    )
    at = np.flatnonzero(begins)
    ends = np.append(at[1:], len(begins))[: len(at)] - 1
    return Counted(parts.keys[at], parts.firsts[at], parts.lasts[ends], parts.times[at])


def counted_by_spark(names: DataFrame) -> Any:
    """An Arrow table of `COLUMNS` from names in any order: maker, partition and number."""
    together = names.repartition("maker", "partition").sortWithinPartitions("maker", "partition", "number")
    return together.mapInArrow(_runs_of, COLUMNS).toArrow()


def from_arrow(rows: Any, key: Callable[[bytes, int], int]) -> Counted:
    """What Spark has counted, with a key for each maker and partition."""
    pairs = zip(rows["maker"].to_pylist(), rows["partition"].to_pylist(), strict=True)
    keys = np.array([key(maker, partition) for maker, partition in pairs], np.int64)
    firsts, lasts, times = (
        np.asarray(rows[each].to_numpy(), np.int64) for each in ("first", "last", "times")
    )
    return counted(Runs(keys, firsts, lasts), times)


def _runs_of(batches: Iterator[Any]) -> Iterator[Any]:
    """Of names in order. What is cut between two batches is put together by who adds the runs up."""
    for batch in batches:
        if not batch.num_rows:
            continue
        makers = batch["maker"].cast(pa.binary()).dictionary_encode()
        columns = [makers.indices, batch["partition"], batch["number"]]
        streams, partitions, numbers = (column.to_numpy().astype(np.int64) for column in columns)
        differs = np.ones(len(numbers), np.bool_)
        same = (streams[1:] == streams[:-1]) & (partitions[1:] == partitions[:-1])
        differs[1:] = ~(same & (numbers[1:] == numbers[:-1]))
        at = np.flatnonzero(differs)
        times = np.diff(np.append(at, len(numbers)))
        # A maker's partition is one key for the time of this batch.
        keys = np.cumsum(np.append(False, ~same))[at]
        runs = _joined(Counted(keys, numbers[at], numbers[at], times))
        first_rows = at[np.searchsorted(keys, runs.keys, "left")]
        yield pa.RecordBatch.from_arrays(
            [
                makers.dictionary.take(makers.indices.take(pa.array(first_rows))),
                batch["partition"].take(pa.array(first_rows)),
                *(pa.array(column) for column in runs[1:]),
            ],
            names=["maker", "partition", "first", "last", "times"],
        )
