"""Numbered records: what is sent, and columns of evidence about where each number was seen."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

DIGITS = 12
ROWS_FILE = "rows.arrow"  # what the Spark job found in the table


def value_of(number: int, filler: bytes) -> bytes:
    """A record's value: its number, then filler."""
    return b"%012d%b" % (number, filler)


def number_of(value: bytes) -> int:
    """The number in a record's value."""
    return int(value[:DIGITS])


@dataclass(slots=True)
class Sightings:
    """Numbers with the partition and offset at which each was seen. Columns: a million take 20 MB."""

    numbers: array[int] = field(default_factory=lambda: array("q"))
    partitions: array[int] = field(default_factory=lambda: array("i"))
    offsets: array[int] = field(default_factory=lambda: array("q"))

    def add(self, number: int, partition: int, offset: int) -> None:
        self.numbers.append(number)
        self.partitions.append(partition)
        self.offsets.append(offset)

    def __len__(self) -> int:
        return len(self.numbers)
