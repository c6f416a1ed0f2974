"""Where to start and stop reading: `beginning`, `end`, an offset, or a time in ISO 8601."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition

from gapless.errors import UsageError

ANSWER_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Position:
    """A place in every partition. Exactly one of the three is given."""

    edge: str | None = None  # "beginning" or "end"
    offset: int | None = None
    time_ms: int | None = None


class Bounds(NamedTuple):
    """A partition's first offset and the end up to which it may be read."""

    start: int
    end: int


def parse_position(text: str, option: str) -> Position:
    """What the user wrote after `--from` or `--to`. A time without zone is local time."""
    if text in {"beginning", "end"}:
        return Position(edge=text)
    if text.isascii() and text.isdigit():
        return Position(offset=int(text))
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{option} expects beginning, end, an offset or a time such as 2026-01-31T12:00, found: {text}"
        ) from None
    return Position(time_ms=int(when.timestamp() * 1000))


def ask_bounds(consumer: Consumer, topic: str, partitions: Sequence[int]) -> dict[int, Bounds]:
    """Under read_committed the end is the last stable offset, so that open transactions hold nobody up."""
    bounds = {}
    for partition in partitions:
        start, end = consumer.get_watermark_offsets(
            TopicPartition(topic, partition), timeout=ANSWER_TIMEOUT_S
        )
        bounds[partition] = Bounds(start, end)
    return bounds


def resolve(
    consumer: Consumer, topic: str, position: Position, bounds: Mapping[int, Bounds]
) -> dict[int, int]:
    """The offset that a position means in each partition; a time after the last record means the end."""
    if position.edge is not None:
        return {p: bound.start if position.edge == "beginning" else bound.end for p, bound in bounds.items()}
    if position.offset is not None:
        return dict.fromkeys(bounds, position.offset)
    asked = [TopicPartition(topic, partition, position.time_ms or 0) for partition in bounds]
    answers = consumer.offsets_for_times(asked, timeout=ANSWER_TIMEOUT_S)
    return {a.partition: a.offset if a.offset >= 0 else bounds[a.partition].end for a in answers}
