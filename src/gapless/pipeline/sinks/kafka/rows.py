"""From rows to Kafka records: which columns there may be, and their values as librdkafka takes them.

The columns are those of Spark's own Kafka sink: `value`, and if wanted `key`, `topic`, `partition`,
`headers`, `timestamp`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any

from gapless.pipeline.sinks.port import SinkRefused
from gapless.pipeline.tasks import RowRefused

if TYPE_CHECKING:
    from pyarrow import Array, RecordBatch
    from pyspark.sql.types import StructType

ANY_PARTITION = -1
NOW = 0
_BYTES = ("binary", "string")
_HEADERS = "array<struct<key:string,value:binary>>"
COLUMNS: dict[str, tuple[str, ...]] = {
    "value": _BYTES,
    "key": _BYTES,
    "topic": ("string",),
    "partition": ("int",),
    "headers": (_HEADERS,),
    "timestamp": ("timestamp",),
}
# A record of the source has them, and a record that is written gets its own.
_NOT_WRITTEN = frozenset(("offset", "timestampType"))

Headers = list[tuple[str, str | bytes | None]]
Record = tuple[str, bytes | None, bytes | None, int, int, Headers | None]
"""topic, value, key, partition, timestamp in ms, headers"""


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raise `SinkRefused` unless each row of this schema is a record."""
    kinds = {column.name: column.dataType.simpleString() for column in schema.fields}
    if "value" not in kinds:
        raise SinkRefused(
            f"the rows have no column `value`, only {_listed(kinds)}: "
            "make it, for example by SELECT to_json(struct(*)) AS value"
        )
    if topic is None and "topic" not in kinds:
        raise SinkRefused("nothing says which topic the rows go to: set `topic`, or make a column `topic`")
    for name, kind in kinds.items():
        if name in _NOT_WRITTEN:
            continue
        if name not in COLUMNS:
            raise SinkRefused(
                f"a Kafka record has nothing that `{name}` could be, only {_listed(COLUMNS)}: "
                "leave it out, or put it into `value`"
            )
        if kind not in COLUMNS[name]:
            raise SinkRefused(f"column `{name}` must be {' or '.join(COLUMNS[name])}, not {kind}: cast it")


def written_columns(schema: StructType, topic: str | None) -> list[str]:
    """Those columns of the rows that a task needs. A topic that is set goes before the column."""
    return [name for name in schema.names if name in COLUMNS and not (name == "topic" and topic is not None)]


def records(batch: RecordBatch, topic: str | None) -> Iterator[Record]:
    """The rows of a batch, by columns until the last moment: this is what bounds the throughput."""
    names = batch.schema.names

    def column(name: str) -> Any:
        return batch.column(names.index(name)) if name in names else None

    topics = repeat(topic) if topic is not None else column("topic").to_pylist()
    keys, partitions, timestamps, headers = map(column, ("key", "partition", "timestamp", "headers"))
    return zip(
        topics,
        _as_bytes(column("value")),
        repeat(None) if keys is None else _as_bytes(keys),
        repeat(ANY_PARTITION) if partitions is None else _or(ANY_PARTITION, partitions.to_pylist()),
        repeat(NOW) if timestamps is None else _as_ms(timestamps),
        repeat(None) if headers is None else _as_pairs(headers),
        strict=False,  # what is repeated has no end
    )


def _as_bytes(column: Array) -> list[bytes | None]:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_string(kind):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(kind):
        column = column.cast(pa.large_binary())
    return column.to_pylist()  # type: ignore[no-any-return]


def _as_ms(column: Array) -> list[int]:
    import pyarrow as pa

    microseconds = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
    return [NOW if each is None else each // 1_000 for each in microseconds]


def _as_pairs(column: Array) -> list[Headers]:
    ends = column.offsets.to_pylist()
    names, values = (column.values.field(index).to_pylist() for index in (0, 1))
    if None in names[ends[0] : ends[-1]]:
        raise RowRefused("a row is no Kafka record: one of its headers has no key")
    pairs = list(zip(names, values, strict=True))
    return [pairs[start:end] for start, end in pairwise(ends)]


def _or(default: int, values: list[int | None]) -> list[int]:
    return [default if each is None else each for each in values]


def _listed(names: dict[str, Any]) -> str:
    return ", ".join(f"`{name}`" for name in names)
