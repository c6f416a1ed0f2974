"""Claim C8: writes to several partitions are visible together or not at all."""

from __future__ import annotations

import pytest

from gapless.wire.apis import ApiKey
from gapless.wire.messages import DeleteRecordsRequest, ListOffsetsRequest
from tests.core.harness import World, batch
from tests.core.transactions.actors import Transactor, fetched, make_world, read, stable

BOTH = pytest.mark.parametrize("newer", [False, True], ids=["older", "newer"])


@pytest.fixture
def world() -> World:
    return make_world()


def started(world: World, transactional_id: str = "x", *, newer: bool) -> Transactor:
    transactor = Transactor(world, transactional_id, newer=newer)
    assert transactor.init() == 0
    return transactor


@BOTH
def test_nothing_is_visible_before_the_commit_and_everything_after_it(world: World, newer: bool) -> None:
    transactor = started(world, newer=newer)
    transactor.write("t", b"a", partition=0)
    transactor.write("t", b"b", partition=1)
    transactor.write("u", b"c", partition=0)
    places = [("t", 0), ("t", 1), ("u", 0)]
    assert [read(world, *place) for place in places] == [[], [], []]
    assert [read(world, *place, committed=False) for place in places] == [[b"a"], [b"b"], [b"c"]]
    assert transactor.commit() == 0
    assert [read(world, *place) for place in places] == [[b"a"], [b"b"], [b"c"]]


@BOTH
def test_what_is_aborted_is_never_visible(world: World, newer: bool) -> None:
    transactor = started(world, newer=newer)
    transactor.write("t", b"gone")
    assert transactor.abort() == 0
    transactor.write("t", b"kept")
    assert transactor.commit() == 0
    assert read(world, "t") == [b"kept"]
    assert read(world, "t", committed=False) == [b"gone", b"kept"]


@BOTH
def test_readers_stop_where_the_first_open_transaction_began(world: World, newer: bool) -> None:
    first, second = started(world, "first", newer=newer), started(world, "second", newer=newer)
    world.produce("t", batch(b"plain"))
    first.write("t", b"1")
    second.write("t", b"2")
    assert second.commit() == 0
    assert stable(world, "t") == 1
    assert read(world, "t") == [b"plain"]
    assert first.commit() == 0
    assert stable(world, "t") == world.partition("t").high_watermark
    assert read(world, "t") == [b"plain", b"1", b"2"]


def test_a_reader_is_told_only_of_aborted_transactions_that_it_reads_of(world: World) -> None:
    transactors = [started(world, f"x{number}", newer=True) for number in range(3)]
    for transactor in transactors:
        transactor.write("t", b"gone")
        transactor.abort()
    world.produce("t", batch(b"kept"))
    producers = [transactor.producer[0] for transactor in transactors]
    assert fetched(world, "t", offset=0).aborted == [(producers[0], 0), (producers[1], 2), (producers[2], 4)]
    assert fetched(world, "t", offset=4).aborted == [(producers[2], 4)]
    assert fetched(world, "t", offset=6).aborted == []
    assert fetched(world, "t", offset=0, committed=False).aborted is None


def test_the_latest_offset_for_readers_of_what_is_committed_is_the_stable_one(world: World) -> None:
    transactor = started(world, newer=True)
    world.produce("t", batch(b"plain"))
    transactor.write("t", b"open")

    def latest(isolation_level: int) -> int:
        topic_type = ListOffsetsRequest.ListOffsetsTopic
        part = topic_type.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
        body = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            topics=[topic_type(name="t", partitions=[part])],
        )
        offset: int = world.call(ApiKey.LIST_OFFSETS, 7, body).topics[0].partitions[0].offset
        return offset

    assert (latest(0), latest(1)) == (2, 1)
    transactor.commit()
    assert (latest(0), latest(1)) == (3, 3)


def test_a_reader_that_waits_is_woken_by_the_commit(world: World) -> None:
    transactor = started(world, newer=True)
    transactor.write("t", b"a")
    body = world.fetch_request("t", 0, max_wait_ms=5000, isolation_level=1)
    waiting = world.send(ApiKey.FETCH, 11, body, connection=2)
    assert not world.answered(waiting)
    transactor.commit()
    assert world.reply(waiting).topics[0].partitions[0].records.size > 0


def test_a_marker_counts_once_it_is_below_the_high_watermark() -> None:
    world = make_world()
    world.create_topic("strict", flush_messages="1")
    transactor = started(world, newer=True)
    transactor.write("strict", b"a")
    world.hold_flushes = True
    transactor.commit()
    assert world.partition("strict").log.end_offset == 2
    assert stable(world, "strict") == 0
    world.finish_flushes()
    assert stable(world, "strict") == 2
    assert read(world, "strict") == [b"a"]


@BOTH
def test_all_of_it_survives_a_restart(world: World, newer: bool) -> None:
    done, open_ = started(world, "done", newer=newer), started(world, "open", newer=newer)
    done.write("t", b"kept")
    done.commit()
    done.write("t", b"gone")
    open_.write("t", b"open")
    done.abort()
    for clean in (True, False):
        if clean:
            world.node.save_producers()
        world.restart()
        world.advance(0)
        assert fetched(world, "t").aborted == [(done.producer[0], 2)]
        assert stable(world, "t") == 3
        assert read(world, "t") == [b"kept"]
    assert open_.commit() == 0
    assert read(world, "t") == [b"kept", b"open"]


def test_open_transactions_survive_in_snapshots_when_their_segment_is_closed() -> None:
    world = make_world()
    world.create_topic("small", segment_bytes="1024")
    transactor = started(world, newer=True)
    transactor.write("small", b"gone")
    for _ in range(30):
        world.produce("small", batch(b"x" * 100))
    assert len(world.partition("small").log.segments()) > 2
    world.restart()
    world.advance(0)
    assert stable(world, "small") == 0
    assert transactor.abort() == 0
    assert stable(world, "small") == world.partition("small").high_watermark
    assert b"gone" not in read(world, "small")


def test_deleting_the_beginning_of_an_open_transaction_moves_its_start(world: World) -> None:
    transactor = started(world, newer=True)
    transactor.write("t", b"a", b"b")
    topic_type = DeleteRecordsRequest.DeleteRecordsTopic
    part = topic_type.DeleteRecordsPartition(partition_index=0, offset=1)
    body = DeleteRecordsRequest(topics=[topic_type(name="t", partitions=[part])], timeout_ms=1000)
    world.call(ApiKey.DELETE_RECORDS, 2, body)
    assert stable(world, "t") == 1
    transactor.commit()
    assert read(world, "t") == [b"b"]


def test_a_producer_with_an_open_transaction_is_not_forgotten() -> None:
    world = make_world(
        producer_id_expiration_ms="1000",
        log_retention_check_interval_ms="500",
        transaction_max_timeout_ms="900000",
    )
    transactor = Transactor(world, newer=True, timeout_ms=900_000)
    transactor.init()
    transactor.write("t", b"a")
    world.advance(10_000)
    assert stable(world, "t") == 0
    transactor.commit()
    world.advance(10_000)
    assert len(world.partition("t").producers) == 0
    assert read(world, "t") == [b"a"]
