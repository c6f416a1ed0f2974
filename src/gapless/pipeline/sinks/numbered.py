"""For sinks that take a batch as a whole and keep its number: is it written already?

The sink's own ledger says which batch was its last. The checkpoint says which it began last: that is noted
beside it before the batch is written. Together they tell a repetition from a checkpoint and a sink that do
not belong together: an old copy of the one or of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gapless.pipeline.slots import MarkerMismatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from gapless.pipeline.sinks.port import SinkContext

BEGUN_FILE = "begun"
SEVERAL = "several rows of one batch have the same key"
NO_KEY = "a row has no value in a column of the key"


def must_write(context: SinkContext, number: int, last: int | None) -> bool:
    """Whether the batch is not in the sink, whose last one is `last`; notes that it is begun."""
    data = context.folder.read(context.file(BEGUN_FILE))
    begun = None if data is None else int(data)
    if last is not None and (number < last or (number == last and begun != number)):
        raise MarkerMismatch(
            f"sink {context.sink} has batch {last}, which this checkpoint has not reached: it is an old "
            "copy. Bring the newest one back, or give the pipeline a new name"
        )
    if last == number:
        return False
    if begun is not None and begun < number and (last is None or last < begun):
        has = "nothing" if last is None else f"only batches up to {last}"
        raise MarkerMismatch(
            f"sink {context.sink} has {has} of this checkpoint, which has written batch {begun} to it: "
            "the sink lost what was committed (deleted, or a restored backup?)"
        )
    if begun != number:
        context.folder.write(context.file(BEGUN_FILE), str(number).encode())
    return True


def one_row_for_each_key(rows: DataFrame, key: Sequence[str], latest_by: str | None) -> DataFrame:
    """The latest row of each key. It fails when it runs, with a phrase from above, if none can be chosen."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    if set(key) == set(rows.columns):
        rows = rows.distinct()
    columns = [F.col(quoted(name)) for name in key]
    window = Window.partitionBy(*columns)
    if latest_by is not None:
        latest_first = window.orderBy(F.col(quoted(latest_by)).desc_nulls_last())
        rows = rows.withColumn("gapless_rank", F.rank().over(latest_first)).where("gapless_rank = 1")
        rows = rows.drop("gapless_rank")
    without_key = F.greatest(F.lit(False), *(column.isNull() for column in columns))
    fine = (
        F.when(without_key, F.raise_error(NO_KEY).cast("boolean"))
        .when(F.col("gapless_count") > 1, F.raise_error(SEVERAL).cast("boolean"))
        .otherwise(F.lit(True))
    )
    return rows.withColumn("gapless_count", F.count(F.lit(1)).over(window)).where(fine).drop("gapless_count")


def quoted(name: str) -> str:
    """A column's name as SQL takes it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"
