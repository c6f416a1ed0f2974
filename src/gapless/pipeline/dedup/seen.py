"""What was seen of a pipeline's sources, and its versions beside the checkpoint.

Batch N reads version N-1 and writes version N, so a batch that is repeated after a crash finds what it found
the first time. A version is a small Parquet file with the columns topic, partition, made_by (the header `gs`:
source and incarnation), first, last: the sequences that were seen. Its size follows sources × partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gapless.errors import GaplessError
from gapless.pipeline.dedup.runs import Ints, Runs, united

if TYPE_CHECKING:
    from gapless.pipeline.folder import CheckpointFolder

Place: TypeAlias = tuple[str, int]
"""Topic and partition."""
_FOLDER = "dedup"
_FIRST_FILE = f"{_FOLDER}/first"
_ENDING = ".parquet"
_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("made_by", pa.binary()),
        ("first", pa.int64()),
        ("last", pa.int64()),
    ]
)
KEPT_VERSIONS = 100
"""As many as Spark keeps of its own."""


class SeenLost(GaplessError):
    """What was seen is not where it must be. The message says what to do."""


class Seen(NamedTuple):
    """Sequences seen in one place, sorted by maker and number. `makers` is an Arrow array of bytes."""

    makers: Any
    firsts: Ints
    lasts: Ints

    @classmethod
    def nothing(cls) -> Seen:
        return cls(pa.array([], pa.binary()), np.empty(0, np.int64), np.empty(0, np.int64))

    def runs_of(self, makers: Any) -> Runs:
        """What was seen of some makers. Their places in the array are the keys."""
        found = pc.index_in(self.makers, value_set=makers)
        known = np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False))
        keys = found.drop_null().to_numpy().astype(np.int64)
        order = np.argsort(keys, kind="stable")
        at = known[order]
        return Runs(keys[order], self.firsts[at], self.lasts[at])

    def with_also(self, other: Seen) -> Seen:
        """What was seen here or there, which has nothing in common."""
        every = pc.unique(pa.concat_arrays([self.makers, other.makers]))
        makers = every.take(pc.sort_indices(every))
        keys = [
            pc.index_in(each.makers, value_set=makers).to_numpy(zero_copy_only=False).astype(np.int64)
            for each in (self, other)
        ]
        runs = united(Runs(keys[0], self.firsts, self.lasts), Runs(keys[1], other.firsts, other.lasts))
        return Seen(makers.take(pa.array(runs.keys)), runs.firsts, runs.lasts)


Table: TypeAlias = Mapping[Place, Seen]


class Versions:
    """The versions of one checkpoint. For the driver only."""

    def __init__(self, folder: CheckpointFolder) -> None:
        self._folder = folder
        self._last: tuple[int, Table] | None = None

    def before(self, batch: int) -> Table:
        """What had been seen when this batch began."""
        if self._last is not None and self._last[0] == batch - 1:
            return self._last[1]
        first = self._first(batch)
        if batch == first:
            return {}
        data = self._folder.read(_name(batch - 1)) if batch > first else None
        if data is None:
            raise SeenLost(
                f"what was seen before batch {batch} is gone from the checkpoint ({_name(batch - 1)} of its "
                "folder `gapless`): bring the whole checkpoint back; or, if dedup was off for a while, "
                "remove gapless/dedup there, and records seen until now will count as new"
            )
        return from_bytes(data)

    def write(self, batch: int, table: Table) -> None:
        """Keep what was seen when this batch ended."""
        self._folder.write(_name(batch), to_bytes(table))
        if self._last is None:
            self._remove_older(batch)
        else:
            self._folder.delete(_name(batch - KEPT_VERSIONS))
        self._last = (batch, table)

    def _first(self, batch: int) -> int:
        """The first batch of this checkpoint that was deduplicated."""
        data = self._folder.read(_FIRST_FILE)
        if data is not None:
            return int(data)
        if self._folder.names(_FOLDER):
            raise SeenLost(f"gapless/{_FIRST_FILE} is gone from the checkpoint: bring the whole of it back")
        self._folder.write(_FIRST_FILE, b"%d" % batch)
        return batch

    def _remove_older(self, batch: int) -> None:
        for name in self._folder.names(_FOLDER):
            number = name.removesuffix(_ENDING)
            if number.isdecimal() and int(number) <= batch - KEPT_VERSIONS:
                self._folder.delete(f"{_FOLDER}/{name}")


def _name(batch: int) -> str:
    return f"{_FOLDER}/{batch}{_ENDING}"


def to_bytes(table: Table) -> bytes:
    """The same bytes for the same table."""
    parts = [
        pa.table(
            {
                "topic": pa.repeat(pa.scalar(topic, pa.string()), len(seen.firsts)),
                "partition": pa.repeat(pa.scalar(partition, pa.int32()), len(seen.firsts)),
                "made_by": seen.makers,
                "first": seen.firsts,
                "last": seen.lasts,
            }
        )
        for (topic, partition), seen in sorted(table.items(), key=lambda item: item[0])
    ]
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.concat_tables([_SCHEMA.empty_table(), *parts]), buffer, compression="zstd")
    return bytes(buffer.getvalue())


def from_bytes(data: bytes) -> Table:
    try:
        found = pq.read_table(pa.BufferReader(data), schema=_SCHEMA).combine_chunks()
    except (pa.ArrowException, OSError) as error:
        raise SeenLost(f"what was seen cannot be read from the checkpoint: {error}") from None
    places = list(zip(found["topic"].to_pylist(), found["partition"].to_pylist(), strict=True))
    starts = [at for at in range(len(places)) if at == 0 or places[at] != places[at - 1]]
    table: dict[Place, Seen] = {}
    for start, end in pairwise([*starts, len(places)]):
        part = found.slice(start, end - start)
        table[places[start]] = Seen(
            part["made_by"].combine_chunks(), part["first"].to_numpy(), part["last"].to_numpy()
        )
    return table
