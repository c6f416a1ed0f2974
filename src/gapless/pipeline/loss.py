"""What was gone from the source before it was read: by retention, or because a topic was deleted.

Only offsets below a partition's first readable one are loss. Offsets that are missing above it are not: there
compaction removed a record that a later one replaces, or a transaction has its marker.

With `on_loss = "stop"` Spark fails, in one of many ways; `explain_loss` makes one clear error of it. With
`"continue"` it skips, and `missing_ranges` tells what it skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from gapless.errors import GaplessError, Unreachable
from gapless.pipeline.lag import Edges, edges_of
from gapless.pipeline.notes import ends_of, last_finished
from gapless.pipeline.progress import TopicPartition

if TYPE_CHECKING:
    from gapless.pipeline.folder import CheckpointFolder
    from gapless.pipeline.properties import ClientProperties
    from gapless.pipeline.ranges import Range
    from gapless.pipeline.sections import Source

_SIGNS = (
    "KAFKA_DATA_LOSS",
    "failOnDataLoss",
    "OffsetOutOfRangeException",
    "UnknownTopicOrPartitionException",
    "UnknownTopicIdException",
    "InvalidTopicException",
)
_SHOWN = 5


class Lost(NamedTuple):
    """Offsets of a source partition that nobody can read any more, both ends included."""

    topic: str
    partition: int
    first: int
    last: int

    def __str__(self) -> str:
        count = self.last - self.first + 1
        which = f"offset {self.first}" if count == 1 else f"offsets {self.first} to {self.last}"
        return f"{self.topic}-{self.partition}: {which}"


class RecordsLost(GaplessError):
    """Records were gone before they were read. `lost` says which."""

    def __init__(self, lost: Iterable[Lost]) -> None:
        self.lost = list(lost)
        count = sum(each.last - each.first + 1 for each in self.lost)
        super().__init__(
            f"up to {count} records were deleted by retention before they were read ({_listed(self.lost)}): "
            'set on_loss = "continue" in [source] to go on without them'
        )


class SourceReplaced(GaplessError):
    """The checkpoint is of a topic that is no longer the one there. The message says what to do."""


def missing_ranges(ranges: Iterable[Range], earliest: Mapping[TopicPartition, int]) -> list[Lost]:
    """What a batch of these ranges cannot have read, if the partitions began at these offsets."""
    found = []
    for each in ranges:
        readable = min(earliest.get(TopicPartition(each.topic, each.partition), 0), each.end)
        if each.start < readable:
            found.append(Lost(each.topic, each.partition, each.start, readable - 1))
    return found


def explain_loss(
    error: BaseException, folder: CheckpointFolder, source: Source, properties: ClientProperties
) -> GaplessError | None:
    """A clear error, if this is how Spark tells that something of the source is gone; else None."""
    if not any(sign in str(error) for sign in _SIGNS):
        return None
    return judge_positions(positions(folder), source_edges(source, properties))


def judge_positions(
    standing: Mapping[TopicPartition, int], edges: Mapping[TopicPartition, Edges]
) -> GaplessError | None:
    """What is wrong between where a checkpoint stands and what its source has; None if nothing is."""
    gone = sorted(standing.keys() - edges.keys())
    if gone:
        return SourceReplaced(
            f"{_listed(gone)} does not exist any more, and the checkpoint has read a part of it: bring it "
            "back, or start a new pipeline with another name and checkpoint"
        )
    ahead = sorted(where for where, offset in standing.items() if offset > edges[where].end)
    if ahead:
        where = ahead[0]
        return SourceReplaced(
            f"{where} ends at offset {edges[where].end}, but the checkpoint is at {standing[where]}: "
            "the topic was deleted and made again. Start a new pipeline with another name and checkpoint"
        )
    lost = [
        Lost(*where, standing.get(where, 0), edge.earliest - 1)
        for where, edge in sorted(edges.items())
        if standing and standing.get(where, 0) < edge.earliest
    ]
    return RecordsLost(lost) if lost else None


def source_edges(source: Source, properties: ClientProperties) -> dict[TopicPartition, Edges]:
    """The offsets that the source has now, by partition."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    admin = AdminClient(properties.for_librdkafka(source.bootstrap))
    try:
        return edges_of(admin, source.topics)
    except (KafkaException, TimeoutError) as error:
        raise Unreachable(f"cannot reach a Kafka broker at {source.bootstrap}: {error}") from None


def positions(folder: CheckpointFolder) -> dict[TopicPartition, int]:
    """The next offset of each partition, by the last batch that is done, or where the first one starts."""
    done = last_finished(folder)
    return ends_of(folder, -1 if done is None else done)


def _listed(things: list[Lost] | list[TopicPartition]) -> str:
    shown = [str(thing) for thing in things[:_SHOWN]]
    more = [f"and {len(things) - _SHOWN} more"] if len(things) > _SHOWN else []
    return ", ".join([*shown, *more])
