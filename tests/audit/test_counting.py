"""Counts kept as runs say what counting one by one says."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from gapless.audit.counting import Counted, _runs_of, counted, from_arrow, layers, plus
from gapless.pipeline.dedup.runs import Runs

Numbers = Counter[tuple[int, int]]
"""How often each number of a key is there."""


def some(random: Random) -> tuple[Numbers, Counted]:
    """The same in both ways."""
    told: Numbers = Counter()
    rows = []
    for _ in range(random.randrange(8)):
        key, first, times = random.randrange(3), random.randrange(30), random.randrange(1, 3)
        last = first + random.randrange(10)
        rows.append((key, first, last, times))
        for number in range(first, last + 1):
            told[key, number] += times
    columns = np.array(rows, np.int64).reshape(len(rows), 4).T
    return told, counted(Runs(*columns[:3]), columns[3])


def one_by_one(runs: Counted) -> Numbers:
    told: Numbers = Counter()
    for key, first, last, times in zip(*(column.tolist() for column in runs), strict=True):
        for number in range(first, last + 1):
            assert (key, number) not in told
            told[key, number] = times
    return told


@pytest.mark.parametrize("seed", range(200))
def test_sums_and_layers(seed: int) -> None:
    random = Random(seed)
    (one, its_runs), (other, other_runs) = some(random), some(random)
    assert one_by_one(its_runs) == one
    assert one_by_one(plus(its_runs, other_runs)) == one + other
    laid = layers(its_runs, other_runs)
    pairs = {}
    for key, first, last, here, there in zip(laid.keys, laid.firsts, laid.lasts, *laid.times, strict=True):
        pairs.update({(int(key), number): (int(here), int(there)) for number in range(first, last + 1)})
    assert pairs == {place: (one[place], other[place]) for place in one.keys() | other.keys()}


def test_what_is_equally_often_there_is_one_run() -> None:
    many = counted(Runs(*np.array([(7, n, n) for n in range(1000)], np.int64).T))
    assert [column.tolist() for column in many] == [[7], [0], [999], [1]]


@pytest.mark.parametrize("seed", range(50))
def test_names_in_order_are_counted_however_they_are_cut(seed: int) -> None:
    random = Random(seed)
    makers = [b"a", b"bb"]
    names = sorted(
        (random.choice(makers), random.randrange(2), random.randrange(40))
        for _ in range(random.randrange(1, 200))
    )
    tables = []
    while names:
        size = random.randrange(1, 50)
        part, names = names[:size], names[size:]
        columns = zip(*part, strict=True)
        kinds = (pa.binary(), pa.int32(), pa.int64())
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, names=["maker", "partition", "number"])
        tables.append((part, batch))
    every: Numbers = Counter()
    for part, _ in tables:
        every.update((makers.index(maker) * 2 + partition, number) for maker, partition, number in part)
    rows = pa.Table.from_batches(_runs_of(batch for _, batch in tables))
    found = from_arrow(rows, lambda maker, partition: makers.index(maker) * 2 + partition)
    assert one_by_one(found) == every
