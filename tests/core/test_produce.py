"""Produce: what is appended, what is refused, and when the answer comes."""

from __future__ import annotations

from uuid import uuid4

import pytest

from gapless.core.contract import Request
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from tests.core.harness import World, batch


@pytest.fixture
def world() -> World:
    world = World()
    world.create_topic("t")
    return world


def test_offsets_are_dense_and_in_order(world: World) -> None:
    """Claims A1, A4."""
    offsets = [world.produce("t", batch(b"a", b"b")).base_offset for _ in range(5)]
    assert offsets == [0, 2, 4, 6, 8]
    assert world.partition("t").high_watermark == 10


def test_each_partition_has_offsets_of_its_own() -> None:
    world = World()
    world.create_topic("t", partitions=2)
    assert world.produce("t", batch(b"a"), partition=0).base_offset == 0
    assert world.produce("t", batch(b"a"), partition=1).base_offset == 0


def test_acks_zero_gets_no_answer(world: World) -> None:
    request = world.send(ApiKey.PRODUCE, 11, world.produce_request("t", batch(b"a"), acks=0))
    assert world.answered(request)
    assert world.reply(request) is None
    assert world.partition("t").log.end_offset == 1


def test_a_failure_with_acks_zero_closes_the_connection(world: World) -> None:
    world.send(ApiKey.PRODUCE, 11, world.produce_request("nowhere", batch(b"a"), acks=0), connection=9)
    assert "UNKNOWN_TOPIC_OR_PARTITION" in world.closed[9]


def test_other_acks_are_refused(world: World) -> None:
    assert world.produce("t", batch(b"a"), acks=2).error == ErrorCode.INVALID_REQUIRED_ACKS
    assert world.partition("t").log.end_offset == 0


def test_an_unknown_topic_partition_or_id_has_its_own_error(world: World) -> None:
    assert world.produce("u", batch(b"a")).error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert world.produce("t", batch(b"a"), partition=1).error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert world.produce("t", batch(b"a"), partition=-1).error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    part = ProducePartition(0, memoryview(batch(b"a")))
    by_id = ProduceRequest(None, -1, 1000, [ProduceTopic(None, uuid4(), [part])])
    reply = world.call(ApiKey.PRODUCE, 13, by_id)
    assert reply.topics[0].partitions[0].error == ErrorCode.UNKNOWN_TOPIC_ID


def test_topics_can_be_named_by_id() -> None:
    world = World()
    topic_id = world.create_topic("t")
    part = ProducePartition(0, memoryview(batch(b"a")))
    reply = world.call(
        ApiKey.PRODUCE, 13, ProduceRequest(None, -1, 1000, [ProduceTopic(None, topic_id, [part])])
    )
    assert reply.topics[0].topic_id == topic_id
    assert reply.topics[0].partitions[0].base_offset == 0


def test_a_batch_over_the_limit_is_refused() -> None:
    world = World()
    world.create_topic("t", max_message_bytes="200")
    assert world.produce("t", batch(b"x" * 300)).error == ErrorCode.MESSAGE_TOO_LARGE
    assert world.produce("t", batch(b"x" * 50)).error == 0


def test_more_than_a_segment_holds_is_refused() -> None:
    world = World()
    world.create_topic("t", segment_bytes="1024")
    assert world.produce("t", batch(b"x" * 2000)).error == ErrorCode.RECORD_LIST_TOO_LARGE


def test_a_damaged_batch_is_refused_and_nothing_of_it_stored(world: World) -> None:
    payload = batch(b"a")
    payload[-1] ^= 1
    result = world.produce("t", payload)
    assert result.error == ErrorCode.CORRUPT_MESSAGE
    assert world.partition("t").log.end_offset == 0


def test_no_records_are_refused(world: World) -> None:
    request = ProduceRequest(None, -1, 1000, [ProduceTopic("t", None, [ProducePartition(0, None)])])
    reply = world.call(ApiKey.PRODUCE, 11, request)
    assert reply.topics[0].partitions[0].error == ErrorCode.INVALID_RECORD


def test_a_timestamp_too_far_ahead_is_refused(world: World) -> None:
    far = world.now_ms + 3_600_001
    assert world.produce("t", batch(b"x", timestamp_ms=far)).error == ErrorCode.INVALID_TIMESTAMP


def test_log_append_time_is_the_brokers() -> None:
    world = World(now_ms=5_000_000)
    world.create_topic("t", message_timestamp_type="LogAppendTime")
    assert world.produce("t", batch(b"x", timestamp_ms=1)).log_append_time_ms == 5_000_000
    (header,) = world.partition("t").log.batches_from(0)
    assert header.max_timestamp == 5_000_000
    assert header.uses_log_append_time


def test_below_the_floor_of_in_sync_replicas_acks_all_is_refused_and_acks_one_is_not() -> None:
    """Claim B4: min.insync.replicas is a floor for acks=all alone."""
    world = World()
    world.create_topic("t", min_insync_replicas="2")
    assert world.produce("t", batch(b"x"), acks=-1).error == 0, "one replica is all there is"
    world.partition("t").replicas = (0, 1)
    assert world.produce("t", batch(b"x"), acks=-1).error == ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.produce("t", batch(b"x"), acks=1).error == 0


def test_a_topic_may_prescribe_its_codec() -> None:
    world = World()
    world.create_topic("t", compression_type="zstd")
    assert world.produce("t", batch(b"x" * 500, b"y" * 500)).error == 0
    (header,) = world.partition("t").log.batches_from(0)
    assert header.compression == 4
    assert header.record_count == 2


# ------------------------------------------------------------------------------------- flush policies (D1)


def _sent(world: World, *, acks: int = -1, timeout_ms: int = 1000) -> Request:
    return world.send(
        ApiKey.PRODUCE, 11, world.produce_request("t", batch(b"x"), acks=acks, timeout_ms=timeout_ms)
    )


@pytest.mark.parametrize("acks", [1, -1])
def test_flush_before_ack_answers_only_after_the_flush(acks: int) -> None:
    world = World()
    world.create_topic("t", flush_messages="1")
    world.hold_flushes = True
    request = _sent(world, acks=acks)
    assert not world.answered(request)
    assert world.fetch("t").records.size == 0, "nobody reads what a power cut could take"
    world.finish_flushes()
    assert world.reply(request).topics[0].partitions[0].error == 0
    assert world.fetch("t").records.size > 0


def test_after_a_crash_what_was_not_flushed_is_flushed_before_it_is_readable() -> None:
    world = World()
    world.create_topic("t", flush_messages="1")
    world.hold_flushes = True
    _sent(world)
    world.restart()
    assert world.partition("t").log.end_offset == 1
    assert world.fetch("t").records.size == 0
    world.finish_flushes()
    assert world.fetch("t").records.size > 0


def test_one_flush_serves_all_who_wait() -> None:
    world = World()
    world.create_topic("t", flush_messages="1")
    world.hold_flushes = True
    requests = [_sent(world) for _ in range(5)]
    assert not any(world.answered(request) for request in requests)
    last = world.flushes[-1]
    world.flushes = [last]
    world.finish_flushes()
    assert all(world.answered(request) for request in requests)


def test_a_flush_that_takes_too_long_times_the_request_out() -> None:
    world = World()
    world.create_topic("t", flush_messages="1")
    world.hold_flushes = True
    request = _sent(world, timeout_ms=300)
    world.advance(299)
    assert not world.answered(request)
    world.advance(1)
    assert world.reply(request).topics[0].partitions[0].error == ErrorCode.REQUEST_TIMED_OUT


def test_a_failed_flush_takes_the_partition_offline_and_what_was_acknowledged_stays_readable() -> None:
    world = World()
    world.create_topic("t", flush_messages="1")
    world.produce("t", batch(b"kept"))
    world.hold_flushes = True
    request = _sent(world)
    world.fail_flushes("fdatasync failed: Input/output error")
    result = world.reply(request).topics[0].partitions[0]
    assert result.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert "Input/output error" in result.error_message
    assert world.produce("t", batch(b"more")).error == ErrorCode.KAFKA_STORAGE_ERROR
    fetched = world.fetch("t")
    assert fetched.error == 0
    assert fetched.high_watermark == 1
    assert fetched.records.size > 0


def test_every_n_records_asks_for_a_flush_without_holding_the_answer_back() -> None:
    world = World()
    world.create_topic("t", flush_messages="3")
    world.hold_flushes = True
    assert [world.produce("t", batch(b"x")).error for _ in range(2)] == [0, 0]
    assert world.flushes == []
    world.produce("t", batch(b"x"))
    assert [flush.offset for flush in world.flushes] == [3]


def test_every_t_ms_asks_for_a_flush() -> None:
    world = World()
    world.create_topic("t", flush_ms="500")
    world.hold_flushes = True
    world.produce("t", batch(b"x"))
    world.advance(499)
    assert world.flushes == []
    world.advance(1)
    assert [flush.offset for flush in world.flushes] == [1]
    world.advance(5000)
    assert len(world.flushes) == 1, "nothing new, nothing to flush"


def test_by_default_the_page_cache_is_trusted(world: World) -> None:
    world.hold_flushes = True
    world.produce("t", batch(b"x"))
    world.advance(60_000)
    assert world.flushes == []


def test_a_closed_connection_stops_waiting() -> None:
    world = World()
    world.create_topic("t", flush_messages="1")
    world.hold_flushes = True
    request = _sent(world)
    world.disconnect(1)
    world.finish_flushes()
    assert not world.answered(request)
    assert len(world.node.waiting) == 0
