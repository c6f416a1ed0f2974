"""Take out records that have no identity when the same comes again within a while.

Spark keeps what it has seen, a row for each record, for as long as the watermark says, and forgets it then.
The time is that at which a batch is read, and not the records' own: by their own time Spark would silently
drop those that come late, and a record that is kept twice does less harm than one that is lost.

Which of several copies in one batch is kept is not certain: where copies may differ in what a sink writes
(in their offset, say), stage the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gapless.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_TIME, _HASH, _LONELY = "gapless_read_at", "gapless_hash", "gapless_lonely"


def drop_within(stream: DataFrame, by: str | Sequence[str], watermark: str) -> DataFrame:
    """The stream without records equal to one that was read at most `watermark` ("10 minutes") before.

    `by` is `key`, `hash` (key and value) or a list of columns. Where one of them is null there is nothing to
    compare, and the record passes.
    """
    from pyspark.sql import functions as sf

    columns = {"key": ["key"], "hash": ["key", "value"]}[by] if isinstance(by, str) else list(by)
    missing = [name for name in columns if name not in stream.columns]
    if missing:
        raise UsageError(
            f"there is no column {', '.join(missing)} to compare records by: "
            f"the columns are {', '.join(stream.columns)}"
        )
    if by == "hash":
        compared = stream.withColumn(_HASH, _hash())
        columns = [_HASH]
    else:
        lacks = sf.lit(False)
        for name in columns:
            lacks = lacks | sf.col(name).isNull()
        where = sf.struct("topic", "partition", "offset")
        compared = stream.withColumn(_LONELY, sf.when(lacks, where))
        columns = [*columns, _LONELY]
    timed = compared.withColumn(_TIME, sf.current_timestamp()).withWatermark(_TIME, watermark)
    return timed.dropDuplicatesWithinWatermark(columns).select(*stream.columns)


def _hash() -> Column:
    """SHA-256 of key and value, null and empty told apart, and where the one ends and the other begins."""
    from pyspark.sql import functions as sf

    key, value = (sf.coalesce(sf.col(name), sf.lit(b"")) for name in ("key", "value"))
    lengths = sf.concat_ws(
        ":", *(sf.coalesce(sf.octet_length(sf.col(name)), sf.lit(-1)) for name in ("key", "value"))
    )
    return sf.sha2(sf.concat(sf.encode(sf.concat(lengths, sf.lit(":")), "utf-8"), key, value), 256)


def bring_up_to_date(rows: DataFrame) -> None:
    """Run a batch of such a stream to its end, where it may not have been: all sinks had it already.

    Spark remembers what it has seen while the rows are read, and fails a batch in which they were not.
    """
    rows.write.format("noop").mode("append").save()
