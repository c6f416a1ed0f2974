"""Freezes what a batch gave, so that its repetition gives the same whatever the transform would say now.

The result is written as Parquet beside the checkpoint before any sink sees it, each attempt into a folder of
its own. When all of it is there, a note under the batch's number names the folder, and the rows' schema: the
first attempt to leave one counts, for good, even if two drivers run at once. A repeated batch takes the rows
from there. It costs one more write and read of every row, and allows transforms that draw random numbers, ask
for the time or join something that changes.
"""

from __future__ import annotations

import json
import re
import secrets
from typing import TYPE_CHECKING

from gapless.errors import GaplessError, InvariantViolated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gapless.pipeline.folder import CheckpointFolder

_STAGED = "staged"
_NUMBER = re.compile(r"(\d+)(?:-[0-9a-f]+|\.json)")


class StagedUnreadable(GaplessError):
    """What a batch gave cannot be read again."""


class Staging:
    """The frozen batches of one checkpoint: the one under way, and the one before it."""

    def __init__(self, folder: CheckpointFolder) -> None:
        self._folder = folder

    def freeze(self, rows: DataFrame, number: int) -> DataFrame:
        """The rows as they were when the batch was first made."""
        note = f"{_STAGED}/{number}.json"
        known = self._folder.read(note)
        if known is None:
            attempt = f"{number}-{secrets.token_hex(4)}"
            rows.write.parquet(self._folder.location(f"{_STAGED}/{attempt}"))
            told = {"folder": attempt, "schema": rows.schema.jsonValue()}
            self._folder.write_once(note, json.dumps(told).encode())
            known = self._folder.read(note)
            if known is None:
                raise InvariantViolated(f"{note} was written and is not there")
        self._forget_before(number - 1)
        return self._frozen(rows.sparkSession, known, note)

    def _frozen(self, spark: SparkSession, known: bytes, note: str) -> DataFrame:
        from pyspark.sql.types import StructType

        try:
            told = json.loads(known)
            where = self._folder.location(f"{_STAGED}/{told['folder']}")
            schema = StructType.fromJson(told["schema"])
        except (ValueError, KeyError, TypeError) as error:
            raise StagedUnreadable(
                f"gapless/{note} of the checkpoint cannot be read ({error}): bring the whole checkpoint back"
            ) from None
        # Not the schema of today's transform: columns that it calls otherwise would come out empty.
        return spark.read.schema(schema).parquet(where)

    def _forget_before(self, number: int) -> None:
        for name in self._folder.names(_STAGED):
            found = _NUMBER.fullmatch(name)
            if found is not None and int(found[1]) < number:
                self._folder.delete(f"{_STAGED}/{name}")
