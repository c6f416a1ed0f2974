"""What a pipeline asks of a sink: take each batch once, however often it is offered."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from gapless.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from gapless.pipeline.folder import CheckpointFolder


class SinkRefused(UsageError):
    """The sink cannot take this pipeline's rows. The message says why, and what to do."""


class SinkContext(NamedTuple):
    """Whose sink it is. The names are part of transactional ids and markers, and must never change."""

    pipeline: str
    sink: str
    folder: CheckpointFolder
    spark: SparkSession

    def file(self, name: str) -> str:
        """A file of this sink's own in the checkpoint's folder."""
        return f"sinks/{self.sink}/{name}"


class Batch(NamedTuple):
    """A micro-batch, ready to be written. A repeated batch has the same number and the same rows."""

    number: int
    rows: DataFrame
    code: str = ""
    """Tells versions of the transform apart where the plan does not: the hash of its Python source."""


class Written(NamedTuple):
    """What a sink did with a batch: rows that it wrote now, and whether it had (some of) it already."""

    rows: int
    repeated: bool


class Sink(Protocol):
    """Somewhere rows go, each once."""

    def check(self, schema: StructType) -> None:
        """Raise `SinkRefused` if rows of this schema cannot go there, or nothing can. Writes nothing."""

    def open(self, context: SinkContext) -> None:
        """Get ready for the first batch. Raises `SinkRefused` if another checkpoint wrote there."""

    def write(self, batch: Batch) -> Written:
        """Write the batch, or find that it is written. When it returns, the batch is there for good."""

    def idle(self) -> None:
        """Called now and then while there is nothing to write, to keep alive what would expire."""

    def close(self) -> None:
        """Give up connections. What was written stays."""

    def clean(self, context: SinkContext) -> list[str]:
        """Remove the markers of this pipeline, not its rows. Says what was removed."""
