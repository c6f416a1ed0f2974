"""Compacted topics: when their logs are cleaned, and what may be written to them."""

from __future__ import annotations

from typing import Any

import pytest

from gapless.core.compaction import dirt_of
from gapless.wire.batch import HEADER_SIZE, parse_header
from gapless.wire.errors import ErrorCode
from gapless.wire.records import build_batch, iterate_records
from tests.core.harness import World, batch

BACKOFF_MS = 15_000


def keyed(*pairs: tuple[str, str | None], timestamp_ms: int = 1_000_000, **options: Any) -> bytearray:
    records = [(timestamp_ms, key.encode(), value and value.encode()) for key, value in pairs]
    return build_batch(records, **options)  # type: ignore[arg-type]


def compacted_world(**configs: str) -> World:
    world = World()
    world.create_topic("table", 1, cleanup_policy="compact", segment_bytes="1024", **configs)
    return world


def fill(world: World, count: int = 100, keys: int = 5) -> None:
    for i in range(count):
        assert world.produce("table", keyed((f"k{i % keys}", f"v{i}"), timestamp_ms=world.now_ms)).error == 0


def contents(world: World) -> list[tuple[int, bytes | None, bytes | None]]:
    log = world.partition("table").log
    found = []
    offset = log.start_offset
    while offset < log.end_offset:
        data = log.bytes_from(offset, 1)
        header = parse_header(data, 0)
        found += [(record.offset, record.key, record.value) for record in iterate_records(data, header)]
        offset = header.next_offset
    return found


def test_a_dirty_log_is_compacted_after_a_while() -> None:
    world = compacted_world()
    fill(world)
    assert len(contents(world)) == 100
    world.advance(BACKOFF_MS + 100)
    log = world.partition("table").log
    closed_end = log.segments()[-1].base_offset
    assert log.cleaned_offset == closed_end
    left = contents(world)
    assert [offset for offset, _, _ in left] == list(range(closed_end - 5, 100))
    assert world.produce("table", keyed(("k0", "more"))).base_offset == 100


def test_other_topics_are_left_alone() -> None:
    world = World()
    world.create_topic("table", segment_bytes="1024")
    fill(world)
    world.advance(10 * BACKOFF_MS)
    assert len(contents(world)) == 100


def test_a_log_that_is_clean_enough_waits() -> None:
    world = compacted_world(min_cleanable_dirty_ratio="0.9")
    for i in range(100):
        world.produce("table", keyed((f"unique{i}", "x" * 50)))
    world.advance(BACKOFF_MS + 100)
    cleaned = world.partition("table").log.cleaned_offset
    assert cleaned > 0
    for i in range(100):
        world.produce("table", keyed((f"unique{i}", "x" * 50)))
    dirt = dirt_of(world.partition("table"), world.now_ms)
    assert dirt is not None
    assert 0.4 < dirt.ratio < 0.9
    world.advance(10 * BACKOFF_MS)
    assert world.partition("table").log.cleaned_offset == cleaned


def test_what_waits_for_too_long_is_compacted_however_little_it_is() -> None:
    world = compacted_world(min_cleanable_dirty_ratio="1", max_compaction_lag_ms="100000")
    fill(world)
    world.advance(90_000)
    assert world.partition("table").log.cleaned_offset == 0
    world.advance(30_000)
    assert world.partition("table").log.cleaned_offset > 0


def test_young_records_are_not_compacted() -> None:
    world = compacted_world(min_compaction_lag_ms="100000")
    fill(world)
    world.advance(90_000)
    assert len(contents(world)) == 100
    world.advance(30_000)
    assert len(contents(world)) < 30


def test_what_is_not_safe_yet_is_not_compacted() -> None:
    world = compacted_world(flush_messages="1")
    world.hold_flushes = True
    for i in range(100):
        world.send(0, 11, world.produce_request("table", keyed(("k", f"v{i}"))))  # type: ignore[arg-type]
    world.advance(BACKOFF_MS + 100)
    assert len(contents(world)) == 100
    world.hold_flushes = False
    world.finish_flushes()
    world.advance(BACKOFF_MS + 100)
    assert len(contents(world)) < 30


def test_the_active_segment_does_not_outlive_the_longest_lag() -> None:
    world = compacted_world(max_compaction_lag_ms="1000")
    world.produce("table", keyed(("k", "1"), timestamp_ms=world.now_ms))
    world.advance(2000)
    world.produce("table", keyed(("k", "2"), timestamp_ms=world.now_ms))
    assert len(world.partition("table").log.segments()) == 2


def test_sequences_go_on_after_compaction_and_a_restart() -> None:
    world = compacted_world()
    producer = {"producer_id": 4000, "producer_epoch": 0}
    for sequence in range(3):
        assert (
            world.produce("table", keyed(("k", f"{sequence}"), **producer, base_sequence=sequence)).error == 0
        )
    fill(world)
    world.produce("table", keyed(("k", "last")))
    fill(world)
    world.advance(BACKOFF_MS + 100)
    assert not [value for _, key, value in contents(world) if key == b"k" and value != b"last"]
    world.store._contents["table", 0].snapshots.clear()  # the log is all that is left
    world.restart()
    duplicate = world.produce("table", keyed(("k", "2"), **producer, base_sequence=2))
    assert (duplicate.error, duplicate.base_offset) == (0, 2)
    assert world.produce("table", keyed(("k", "gap"), **producer, base_sequence=7)).error == (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    )
    assert world.produce("table", keyed(("k", "3"), **producer, base_sequence=3)).error == 0


def test_a_fetch_in_a_gap_begins_with_the_next_batch() -> None:
    world = compacted_world()
    fill(world)
    world.advance(BACKOFF_MS + 100)
    first = next(iter(world.partition("table").log.batches_from(0))).base_offset
    assert first > 0
    for offset in (0, first - 1, first):
        result = world.fetch("table", offset)
        assert result.error == 0
        assert result.high_watermark == 100
        assert parse_header(result.records.read(0, HEADER_SIZE), 0).base_offset == first


@pytest.mark.parametrize("compression", range(5))
def test_a_record_without_a_key_is_refused(compression: int) -> None:
    world = compacted_world()
    mixed = [(1_000_000, b"key", b"v"), (1_000_000, None, b"v")]
    refused = world.produce("table", build_batch(mixed, compression=compression))
    assert refused.error == ErrorCode.INVALID_RECORD
    assert "record 1 has no key" in refused.error_message
    assert world.partition("table").log.end_offset == 0
    empty_key = build_batch([(1_000_000, b"", b"v"), (1_000_000, b"k" * 200, None)], compression=compression)
    assert world.produce("table", empty_key).error == 0


def test_a_topic_that_becomes_compacted_is_compacted_with_what_has_no_key() -> None:
    world = World()
    world.create_topic("table", segment_bytes="1024")
    for _ in range(30):
        world.produce("table", batch(b"no key"))
    partition = world.partition("table")
    world.create_topic("other", cleanup_policy="compact", segment_bytes="1024")
    partition.configure(world.node.topic_config("other"))
    assert world.produce("table", batch(b"no key")).error == ErrorCode.INVALID_RECORD
    world.advance(BACKOFF_MS + 100)
    assert len(contents(world)) < 15


def test_old_segments_of_a_compacted_topic_are_only_dropped_if_it_also_says_delete() -> None:
    for policy, dropped in (("compact", False), ("compact,delete", True)):
        world = World()
        world.create_topic(
            "table",
            cleanup_policy=policy,
            segment_bytes="1024",
            retention_ms="1000",
            min_cleanable_dirty_ratio="1",
        )
        fill(world)
        world.advance(400_000)
        assert (world.partition("table").log.start_offset > 0) is dropped


def test_deleting_a_topic_ends_its_compaction() -> None:
    world = compacted_world()
    fill(world)
    partition = world.partition("table")
    world.advance(BACKOFF_MS)
    del world.node.partitions[partition.name]
    world.advance(10 * BACKOFF_MS)
    assert partition.log.cleaned_offset == 0
