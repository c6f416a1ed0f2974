"""The account: each acknowledged number looked up in the topic and in the table.

Lost: acknowledged and absent. Doubled: there more than once. Reordered: in its partition a smaller number
follows a greater one. Moved: acknowledged at one place, found at another. A number that is there without
having been acknowledged is no fault: its receipt may have been lost in the crash.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gapless.demo.numbered import Sightings

EXAMPLES_MAX = 10

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Account:
    """How one place compares with what was acknowledged. The examples are numbers of records."""

    records: int  # how many records are there, doubled ones counted as often as they are there
    lost: int
    doubled: int
    reordered: int
    moved: int
    unacknowledged: int  # there, though never acknowledged
    unknown: int  # there, though never sent
    examples: dict[str, list[int]]

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.reordered or self.moved or self.unknown)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "clean": self.clean}


@dataclass(frozen=True, slots=True)
class Columns:
    """Sightings as arrays."""

    numbers: Numbers
    partitions: Numbers
    offsets: Numbers

    @classmethod
    def of(cls, seen: Sightings) -> Columns:
        return cls(
            *(np.array(column, dtype=np.int64) for column in (seen.numbers, seen.partitions, seen.offsets))
        )

    @classmethod
    def from_file(cls, path: Path) -> Columns:
        """The rows that the Spark job wrote down; a value without number counts as number -1."""
        with pa.memory_map(str(path)) as source:
            rows = pa.ipc.open_file(source).read_all()
            columns = (rows.column(name).fill_null(-1) for name in ("number", "partition", "offset"))
            return cls(*(np.array(column.to_numpy(), dtype=np.int64) for column in columns))


def account(sent: int, receipts: Columns, seen: Columns) -> Account:
    """Compare what is at one place with the receipts, record by record."""
    known = (seen.numbers >= 0) & (seen.numbers < sent)
    numbers, partitions, offsets = seen.numbers[known], seen.partitions[known], seen.offsets[known]
    times_there = np.bincount(numbers, minlength=sent)
    acknowledged = np.zeros(sent, dtype=bool)
    acknowledged[receipts.numbers] = True
    found = {
        "lost": np.flatnonzero(acknowledged & (times_there == 0)),
        "doubled": np.flatnonzero(times_there > 1),
        "reordered": _followers_of_greater(numbers, partitions, offsets),
        "moved": _found_elsewhere(sent, receipts, Columns(numbers, partitions, offsets)),
        "unacknowledged": np.flatnonzero(~acknowledged & (times_there > 0)),
    }
    counts = {name: len(which) for name, which in found.items()}
    examples = {name: which[:EXAMPLES_MAX].tolist() for name, which in found.items() if len(which)}
    return Account(records=len(seen.numbers), unknown=int((~known).sum()), examples=examples, **counts)


def _followers_of_greater(numbers: Numbers, partitions: Numbers, offsets: Numbers) -> Numbers:
    order = np.lexsort((offsets, partitions))
    number, partition = numbers[order], partitions[order]
    backwards = (np.diff(number) < 0) & (np.diff(partition) == 0)
    followers: Numbers = number[1:][backwards]
    return followers


def _found_elsewhere(sent: int, receipts: Columns, seen: Columns) -> Numbers:
    partition, offset = np.full(sent, -1), np.full(sent, -1)
    partition[seen.numbers], offset[seen.numbers] = seen.partitions, seen.offsets
    is_there = partition[receipts.numbers] >= 0
    differs = (partition[receipts.numbers] != receipts.partitions) | (
        offset[receipts.numbers] != receipts.offsets
    )
    # A doubled number has two places and is reported as doubled.
    doubled = np.bincount(seen.numbers, minlength=sent)[receipts.numbers] > 1
    elsewhere: Numbers = receipts.numbers[is_there & differs & ~doubled]
    return elsewhere
