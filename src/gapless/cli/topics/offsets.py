"""Where partitions start and end, asked in one request for many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec


class Range(NamedTuple):
    """A partition's first offset and the one that its next record gets; None where no leader answers."""

    start: int | None
    end: int | None

    @property
    def records(self) -> int | None:
        return None if self.start is None or self.end is None else self.end - self.start


def ask_ranges(admin: AdminClient, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Range]:
    """The range of each (topic, partition)."""
    starts = _ask(admin, partitions, OffsetSpec.earliest())
    ends = _ask(admin, partitions, OffsetSpec.latest())
    return {partition: Range(starts[partition], ends[partition]) for partition in partitions}


def _ask(
    admin: AdminClient, partitions: Sequence[tuple[str, int]], where: OffsetSpec
) -> dict[tuple[str, int], int | None]:
    if not partitions:
        return {}
    answers = admin.list_offsets({TopicPartition(*partition): where for partition in partitions})
    offsets: dict[tuple[str, int], int | None] = {}
    for asked, answer in answers.items():
        try:
            offsets[asked.topic, asked.partition] = answer.result().offset
        except KafkaException:  # an offline partition has no offsets to show; the others have
            offsets[asked.topic, asked.partition] = None
    return offsets
