"""Freezes what a batch gave, so that its repetition gives the same whatever the transform would say now.

The result is written as Parquet under the batch's number, beside the checkpoint, before any sink sees it; a
repeated batch finds it there. It costs one more write and read of every row, and allows transforms that
draw random numbers, ask for the time or join something that changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gapless.pipeline.folder import CheckpointFolder

_STAGED = "staged"
# Written by Spark when all files of a table are there.
_COMPLETE = "_SUCCESS"


class Staging:
    """The frozen batches of one checkpoint: the one under way, and the one before it."""

    def __init__(self, folder: CheckpointFolder) -> None:
        self._folder = folder

    def freeze(self, rows: DataFrame, number: int) -> DataFrame:
        """The rows as they were when the batch was first made."""
        name = f"{_STAGED}/{number}"
        where = self._folder.location(name)
        if self._folder.read(f"{name}/{_COMPLETE}") is None:
            rows.write.mode("overwrite").parquet(where)
        self._forget_before(number - 1)
        return _read(rows.sparkSession, where, rows)

    def _forget_before(self, number: int) -> None:
        for name in self._folder.names(_STAGED):
            if int(name) < number:
                self._folder.delete(f"{_STAGED}/{name}")


def _read(spark: SparkSession, where: str, like: DataFrame) -> DataFrame:
    # The schema is known: inferring it would open a file for each batch.
    return spark.read.schema(like.schema).parquet(where)
