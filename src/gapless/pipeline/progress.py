"""What a pipeline tells of each batch, when the batch is in all its sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class TopicPartition(NamedTuple):
    """A partition of a source topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Progress(NamedTuple):
    """One batch: what came in, what became of it, and what is still to come."""

    batch: int
    rows_in: int  # records read from the source
    duplicates: int  # of these, taken out because they had been seen
    dead_letters: int  # of these, not readable, and sent to the dead letters
    written: Mapping[str, int]  # rows by sink, written now
    repeated: bool  # (part of) the batch was in its sinks already: the pipeline had been stopped in it
    seconds: float  # from the batch's start to the last sink's commit
    lag: Mapping[TopicPartition, int]  # records behind the end of the source, by partition

    @property
    def rows_per_s(self) -> float:
        return self.rows_in / self.seconds if self.seconds > 0 else 0.0

    @property
    def total_lag(self) -> int:
        return sum(self.lag.values())

    def to_json(self) -> dict[str, Any]:
        """For `--json`: plain values, partitions as `topic-partition`."""
        return {
            "batch": self.batch,
            "rows_in": self.rows_in,
            "duplicates": self.duplicates,
            "dead_letters": self.dead_letters,
            "written": dict(self.written),
            "repeated": self.repeated,
            "seconds": round(self.seconds, 3),
            "rows_per_s": round(self.rows_per_s, 1),
            "lag": {str(where): behind for where, behind in self.lag.items()},
        }


OnProgress = Callable[[Progress], None]
