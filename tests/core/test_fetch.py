"""Fetch: what a consumer sees, when it waits, and what sessions leave out."""

from __future__ import annotations

from typing import Any

import pytest

from gapless.core.sessions import IDLE_MS_BEFORE_EVICTION
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ForgottenTopic
from tests.core.harness import World, batch


@pytest.fixture
def world() -> World:
    world = World()
    world.create_topic("t", partitions=3)
    return world


def test_a_fetch_reads_what_was_appended(world: World) -> None:
    world.produce("t", batch(b"a", b"b"))
    result = world.fetch("t")
    assert (result.error, result.high_watermark, result.log_start_offset) == (0, 2, 0)
    assert result.records.size > 0


def test_an_offset_outside_the_log_is_out_of_range(world: World) -> None:
    world.produce("t", batch(b"a"))
    assert world.fetch("t", 2).error == ErrorCode.OFFSET_OUT_OF_RANGE
    assert world.fetch("t", -1).error == ErrorCode.OFFSET_OUT_OF_RANGE
    assert world.fetch("t", 1).error == 0


def test_a_fetch_at_the_end_waits_and_is_woken_by_an_append(world: World) -> None:
    request = world.send(ApiKey.FETCH, 11, world.fetch_request("t", 0, max_wait_ms=500))
    assert not world.answered(request)
    world.produce("t", batch(b"a"), partition=1)
    assert not world.answered(request), "another partition's records do not concern it"
    world.produce("t", batch(b"a"))
    assert world.reply(request).topics[0].partitions[0].records.size > 0


def test_a_fetch_is_answered_empty_when_its_time_is_up(world: World) -> None:
    request = world.send(ApiKey.FETCH, 11, world.fetch_request("t", 0, max_wait_ms=500))
    world.advance(500)
    assert world.reply(request).topics[0].partitions[0].records.size == 0


def test_a_fetch_waits_for_enough_bytes(world: World) -> None:
    request = world.send(ApiKey.FETCH, 11, world.fetch_request("t", 0, max_wait_ms=500, min_bytes=300))
    world.produce("t", batch(b"x" * 100))
    assert not world.answered(request)
    world.produce("t", batch(b"x" * 200))
    assert world.answered(request)


def test_an_error_is_told_at_once(world: World) -> None:
    reply = world.call(ApiKey.FETCH, 11, world.fetch_request("nowhere", 0, max_wait_ms=500))
    assert reply.topics[0].partitions[0].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_first_batch_is_given_even_if_it_is_larger_than_asked(world: World) -> None:
    world.produce("t", batch(b"x" * 1000))
    world.produce("t", batch(b"y"), partition=1)
    parts = [FetchPartition(index, fetch_offset=0, max_bytes=10) for index in (0, 1)]
    reply = world.call(ApiKey.FETCH, 11, FetchRequest(max_bytes=10, topics=[FetchTopic("t", None, parts)]))
    sizes = [part.records.size for part in reply.topics[0].partitions]
    assert sizes[0] > 1000
    assert sizes[1] == 0


def test_a_deleted_topic_ends_the_wait(world: World) -> None:
    from gapless.wire.messages import DeleteTopicsRequest

    request = world.send(ApiKey.FETCH, 11, world.fetch_request("t", 0, max_wait_ms=5000))
    world.call(ApiKey.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), connection=2)
    assert world.reply(request).topics[0].partitions[0].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_leader_epochs_are_compared(world: World) -> None:
    world.restart()
    epoch = world.partition("t").leader_epoch

    def error(claimed: int) -> int:
        parts = [FetchPartition(0, current_leader_epoch=claimed, max_bytes=100)]
        reply = world.call(ApiKey.FETCH, 11, FetchRequest(topics=[FetchTopic("t", None, parts)]))
        return int(reply.topics[0].partitions[0].error)

    assert error(epoch) == 0
    assert error(epoch - 1) == ErrorCode.FENCED_LEADER_EPOCH
    assert error(epoch + 1) == ErrorCode.UNKNOWN_LEADER_EPOCH


# ------------------------------------------------------------------------------------------------ sessions


def _full(*partitions: int) -> FetchRequest:
    parts = [FetchPartition(index, fetch_offset=0, max_bytes=1 << 20) for index in partitions]
    return FetchRequest(session_id=0, session_epoch=0, topics=[FetchTopic("t", None, parts)])


def _next(session_id: int, epoch: int, **more: Any) -> FetchRequest:
    return FetchRequest(session_id=session_id, session_epoch=epoch, **more)


def _told(reply: FetchResponse) -> list[int]:
    return sorted(part.partition for topic in reply.topics for part in topic.partitions)


def test_a_session_tells_only_what_changed(world: World) -> None:
    full = world.call(ApiKey.FETCH, 12, _full(0, 1, 2))
    assert full.session_id != 0
    assert _told(full) == [0, 1, 2]
    assert _told(world.call(ApiKey.FETCH, 12, _next(full.session_id, 1))) == []
    world.produce("t", batch(b"x"), partition=1)
    assert _told(world.call(ApiKey.FETCH, 12, _next(full.session_id, 2))) == [1]


def test_a_session_takes_new_offsets_and_forgets_partitions(world: World) -> None:
    world.produce("t", batch(b"x"), partition=1)
    full = world.call(ApiKey.FETCH, 12, _full(0, 1, 2))
    moved = FetchTopic("t", None, [FetchPartition(1, fetch_offset=1, max_bytes=100)])
    forgotten = ForgottenTopic("t", None, [2])
    reply = world.call(ApiKey.FETCH, 12, _next(full.session_id, 1, topics=[moved], forgotten=[forgotten]))
    assert _told(reply) == []
    world.produce("t", batch(b"x"), partition=2)
    assert _told(world.call(ApiKey.FETCH, 12, _next(full.session_id, 2))) == []


def test_a_wrong_epoch_or_an_unknown_session_is_an_error(world: World) -> None:
    full = world.call(ApiKey.FETCH, 12, _full(0))
    wrong = world.call(ApiKey.FETCH, 12, _next(full.session_id, 7))
    assert wrong.error == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    unknown = world.call(ApiKey.FETCH, 12, _next(full.session_id ^ 1, 1))
    assert unknown.error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    by_id = world.call(ApiKey.FETCH, 13, _next(full.session_id, 1))
    assert by_id.error == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_an_error_is_told_again_until_it_is_gone(world: World) -> None:
    parts = [FetchPartition(0, fetch_offset=99, max_bytes=100)]
    request = FetchRequest(session_id=0, session_epoch=0, topics=[FetchTopic("t", None, parts)])
    full = world.call(ApiKey.FETCH, 12, request)
    for epoch in (1, 2):
        reply = world.call(ApiKey.FETCH, 12, _next(full.session_id, epoch))
        assert reply.topics[0].partitions[0].error == ErrorCode.OFFSET_OUT_OF_RANGE


def test_sessions_are_bounded_and_a_fetch_without_one_is_whole() -> None:
    world = World(max_incremental_fetch_session_cache_slots="2")
    world.create_topic("t", partitions=1)
    ids = [world.call(ApiKey.FETCH, 12, _full(0), connection=n).session_id for n in range(3)]
    assert [session_id != 0 for session_id in ids] == [True, True, False]
    world.advance(IDLE_MS_BEFORE_EVICTION + 1)
    assert world.call(ApiKey.FETCH, 12, _full(0), connection=9).session_id != 0
    assert len(world.node.sessions) == 2


def test_a_session_ends_with_its_connection(world: World) -> None:
    full = world.call(ApiKey.FETCH, 12, _full(0), connection=5)
    world.disconnect(5)
    assert len(world.node.sessions) == 0
    assert (
        world.call(ApiKey.FETCH, 12, _next(full.session_id, 1)).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    )


def test_partitions_with_records_take_turns_under_a_byte_limit(world: World) -> None:
    for index in (0, 1, 2):
        world.produce("t", batch(b"x" * 100), partition=index)
    request = _full(0, 1, 2)
    request.max_bytes = 10
    full = world.call(ApiKey.FETCH, 12, request)
    served = [part.partition for part in full.topics[0].partitions if part.records.size]
    for epoch in (1, 2):
        reply = world.call(ApiKey.FETCH, 12, _next(full.session_id, epoch, max_bytes=10))
        served += [part.partition for topic in reply.topics for part in topic.partitions if part.records.size]
    assert sorted(served) == [0, 1, 2]
