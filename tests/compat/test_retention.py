"""Data stays until retention takes it, by age or by size; then it is gone for every client."""

from __future__ import annotations

import time

from .clients import Deadline, Sending
from .clients.confluent import Confluent
from .conftest import NewTopic
from .sample import Record, numbered, numbers

SMALLEST_SEGMENT_BYTES = 1_048_576


def first_offset_moves(reader: Confluent, topic: str) -> int:
    """Wait until retention has acted."""
    deadline = Deadline(f"retention in {topic}")
    while deadline.open():
        first, _ = reader.bounds(topic, 0)
        if first > 0:
            return first
    raise AssertionError


def test_what_is_too_old_goes_and_offsets_go_on(reader: Confluent, new_topic: NewTopic) -> None:
    """Claim A7: whether it was read or not; what is written later has the next offsets."""
    topic = new_topic(1, {"retention.ms": "600000"})
    an_hour_ago_ms = int(time.time() * 1000) - 3_600_000
    reader.produce(topic, [Record(b"old", timestamp_ms=an_hour_ago_ms)] * 10)
    assert first_offset_moves(reader, topic) == 10
    assert reader.bounds(topic, 0) == (10, 10)
    reader.produce(topic, [Record(b"young")])
    (found,) = reader.read(topic, 0, 10, 1)
    assert (found.value, found.offset) == (b"young", 10)


def test_what_is_too_much_goes_from_the_beginning(reader: Confluent, new_topic: NewTopic) -> None:
    """Claim A7: whole segments, as long as what is left is not less than the limit."""
    limits = {
        "segment.bytes": str(SMALLEST_SEGMENT_BYTES),
        "retention.bytes": str(2 * SMALLEST_SEGMENT_BYTES),
    }
    topic = new_topic(1, limits)
    count, size_bytes = 500, 10_000
    reader.produce(
        topic, numbered(count, size_bytes=size_bytes), Sending(idempotent=True, batch_bytes=100_000)
    )
    first = first_offset_moves(reader, topic)
    kept = reader.read(topic, 0, first, count - first)
    assert numbers(kept) == list(range(first, count))
    assert len(kept) * size_bytes > 2 * SMALLEST_SEGMENT_BYTES - 200_000


def test_what_is_within_limits_stays_though_it_was_read(reader: Confluent, new_topic: NewTopic) -> None:
    """Claim A7, next to a topic whose retention has demonstrably acted in the meantime."""
    kept, cleared = new_topic(), new_topic(1, {"retention.ms": "1"})
    reader.produce(kept, numbered(10))
    assert numbers(reader.read(kept, 0, 0, 10)) == list(range(10))
    reader.produce(cleared, numbered(10))
    first_offset_moves(reader, cleared)
    assert numbers(reader.read(kept, 0, 0, 10)) == list(range(10))
