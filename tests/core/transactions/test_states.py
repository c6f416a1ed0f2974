"""Claim C8: a restart in every state of a transaction; the coordinator finishes what a crash interrupted."""

from __future__ import annotations

import pytest

from gapless.core.contract import Flushed
from gapless.core.transactions.transaction import State
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import DeleteTopicsRequest
from tests.core.harness import World
from tests.core.transactions.actors import Transactor, known, make_world, read, stable, state_of

BOTH = pytest.mark.parametrize("newer", [False, True], ids=["older", "newer"])


def strict_world() -> World:
    """Every topic counts what is flushed only, so that a test decides when something is committed."""
    return make_world(log_flush_interval_messages="1")


def flush_one(world: World) -> None:
    """What was written first reaches the disk."""
    flush = world.flushes.pop(0)
    world.step(Flushed(flush.partition, flush.offset))


def restarted(world: World) -> None:
    world.restart()
    world.advance(0)


@BOTH
def test_a_transaction_goes_through_its_states(newer: bool) -> None:
    world = make_world()
    transactor = Transactor(world, newer=newer)
    assert state_of(world) is None
    transactor.init()
    assert state_of(world) is State.EMPTY
    transactor.write("t", b"a")
    assert state_of(world) is State.ONGOING
    transactor.commit()
    assert state_of(world) is State.COMPLETE_COMMIT
    transactor.write("t", b"b")
    assert state_of(world) is State.ONGOING
    transactor.abort()
    assert state_of(world) is State.COMPLETE_ABORT


@BOTH
def test_a_restart_while_empty(newer: bool) -> None:
    world = make_world()
    transactor = Transactor(world, newer=newer)
    transactor.init()
    restarted(world)
    assert state_of(world) is State.EMPTY
    assert transactor.write("t", b"a") == 0
    assert transactor.commit() == 0
    assert read(world, "t") == [b"a"]


@BOTH
@pytest.mark.parametrize("commit", [True, False])
def test_a_restart_while_ongoing(newer: bool, commit: bool) -> None:
    world = make_world()
    transactor = Transactor(world, newer=newer)
    transactor.init()
    transactor.write("t", b"a")
    restarted(world)
    assert state_of(world) is State.ONGOING
    assert transactor.write("t", b"b") == 0
    assert transactor.write("u", b"c") == 0
    assert transactor.end(commit=commit) == 0
    assert (read(world, "t"), read(world, "u")) == (([b"a", b"b"], [b"c"]) if commit else ([], []))


@BOTH
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("flushes", [0, 1, 2])
def test_a_restart_while_prepared(newer: bool, commit: bool, flushes: int) -> None:
    """Whatever had reached the disk: the decision alone, or some of the markers."""
    world = strict_world()
    transactor = Transactor(world, newer=newer)
    transactor.init()
    transactor.write("t", b"a", partition=0)
    transactor.write("t", b"b", partition=1)
    world.hold_flushes = True
    version = transactor.versions["end"]
    world.send(ApiKey.END_TXN, version, transactor.end_request(commit=commit))
    for _ in range(flushes):
        flush_one(world)
    prepared = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
    assert state_of(world) is prepared
    assert read(world, "t", 1) == []
    world.hold_flushes = False
    restarted(world)
    assert state_of(world) is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)
    assert read(world, "t", 0) == ([b"a"] if commit else [])
    assert read(world, "t", 1) == ([b"b"] if commit else [])
    assert stable(world, "t", 0) == world.partition("t").high_watermark


@BOTH
@pytest.mark.parametrize("commit", [True, False])
def test_a_restart_when_complete(newer: bool, commit: bool) -> None:
    world = make_world()
    transactor = Transactor(world, newer=newer)
    transactor.init()
    transactor.write("t", b"a")
    before = transactor.producer
    transactor.end(commit=commit)
    restarted(world)
    assert state_of(world) is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)
    # The answer may have been lost: to ask again is fine, to ask for the opposite is not.
    assert transactor.end(commit=commit, producer=before) == 0
    assert transactor.end(commit=not commit, producer=before) == ErrorCode.INVALID_TXN_STATE
    assert transactor.write("t", b"b") == 0
    assert transactor.commit() == 0
    assert read(world, "t") == ([b"a", b"b"] if commit else [b"b"])


@BOTH
def test_a_restart_between_the_last_marker_and_the_record_of_it(newer: bool) -> None:
    """The markers are sent once more; that neither adds nor takes away anything."""
    world = strict_world()
    transactor = Transactor(world, newer=newer)
    transactor.init()
    transactor.write("t", b"a")
    world.hold_flushes = True
    world.send(ApiKey.END_TXN, transactor.versions["end"], transactor.end_request(commit=True))
    while state_of(world) is State.PREPARE_COMMIT:
        flush_one(world)
    (name,) = (flush.partition for flush in world.flushes)
    log = world.store.logs[name]
    log.truncate_to(log.end_offset - 1)
    world.hold_flushes = False
    world.flushes.clear()
    restarted(world)
    assert state_of(world) is State.COMPLETE_COMMIT
    assert read(world, "t") == [b"a"]
    if newer:
        assert world.partition("t").log.end_offset == 2  # the epoch tells that the marker is there


@BOTH
def test_no_marker_is_written_before_the_decision_is_committed(newer: bool) -> None:
    world = strict_world()
    transactor = Transactor(world, newer=newer)
    transactor.init()
    transactor.write("t", b"a")
    world.hold_flushes = True
    request = world.send(ApiKey.END_TXN, transactor.versions["end"], transactor.end_request(commit=True))
    assert not world.answered(request)
    assert world.partition("t").log.end_offset == 1
    flush_one(world)
    assert world.answered(request)
    assert world.partition("t").log.end_offset == 2


@BOTH
def test_until_the_markers_are_written_the_next_transaction_waits(newer: bool) -> None:
    world = strict_world()
    transactor = Transactor(world, newer=newer)
    transactor.init()
    transactor.write("t", b"a")
    world.hold_flushes = True
    version = transactor.versions["end"]
    request = world.send(ApiKey.END_TXN, version, transactor.end_request(commit=True))
    flush_one(world)
    assert transactor.ended(request) == 0
    if newer:
        sending = transactor.begin_send("t", b"b")
        assert not world.answered(sending)
        world.advance(200)
        assert transactor.sent(sending) == ErrorCode.CONCURRENT_TRANSACTIONS
        assert transactor.abort() == ErrorCode.CONCURRENT_TRANSACTIONS
    else:
        assert transactor.add(("t", 0)) == ErrorCode.CONCURRENT_TRANSACTIONS
        assert transactor.send("t", b"b") == ErrorCode.NOT_ENOUGH_REPLICAS
    assert transactor.init() == ErrorCode.CONCURRENT_TRANSACTIONS
    world.hold_flushes = False
    world.finish_flushes()
    assert state_of(world) is State.COMPLETE_COMMIT


def test_a_producer_that_is_a_moment_early_is_not_sent_away() -> None:
    world = strict_world()
    transactor = Transactor(world, newer=True)
    transactor.init()
    transactor.write("t", b"a")
    world.hold_flushes = True
    request = world.send(ApiKey.END_TXN, 5, transactor.end_request(commit=True))
    flush_one(world)
    transactor.ended(request)
    sending = transactor.begin_send("t", b"b")
    world.hold_flushes = False
    world.finish_flushes()
    world.advance(20)
    assert transactor.sent(sending) == 0
    assert transactor.commit() == 0
    assert read(world, "t") == [b"a", b"b"]


def test_markers_that_cannot_be_written_are_tried_again() -> None:
    world = make_world()
    transactor = Transactor(world, newer=True)
    transactor.init()
    transactor.write("t", b"a")
    world.partition("t").offline = "no space left"
    assert transactor.commit() == 0
    world.advance(1000)
    assert state_of(world) is State.PREPARE_COMMIT
    world.partition("t").offline = None
    world.advance(100)
    assert state_of(world) is State.COMPLETE_COMMIT
    assert read(world, "t") == [b"a"]


def test_a_topic_that_is_deleted_meanwhile_needs_no_marker() -> None:
    world = make_world()
    transactor = Transactor(world, newer=True)
    transactor.init()
    transactor.write("t", b"a")
    transactor.write("u", b"b")
    deletion = DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000)
    assert world.call(ApiKey.DELETE_TOPICS, 5, deletion).responses[0].error_code == 0
    assert transactor.commit() == 0
    assert state_of(world) is State.COMPLETE_COMMIT
    assert read(world, "u") == [b"b"]


def test_a_failing_disk_of_the_coordinator_refuses_and_a_restart_goes_on() -> None:
    world = make_world()
    transactor = Transactor(world, newer=True)
    transactor.init()
    transactor.write("t", b"a")
    for (topic, _), log in world.store.logs.items():
        if topic == "__transaction_state":
            log.failure = "no space left"
    assert transactor.commit() == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert state_of(world) is State.ONGOING
    restarted(world)
    assert transactor.commit() == 0
    assert read(world, "t") == [b"a"]


def test_while_transactions_are_read_back_clients_are_told_to_try_again() -> None:
    world = make_world()
    transactor = Transactor(world, newer=False)
    transactor.init()
    transactor.write("t", b"a")
    world.restart()
    assert transactor.init() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert transactor.add(("t", 0)) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert transactor.commit() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.advance(0)
    assert transactor.commit() == 0


def test_records_that_cannot_be_read_are_passed_over() -> None:
    world = make_world()
    transactor = Transactor(world, newer=True)
    transactor.init()
    (shard,) = (
        shard for shard in world.node.shards.values() if "x" in getattr(shard.state, "transactions", {})
    )
    shard.write([(b"\x00\x09from the future", b""), (b"\x00\x00\x00\x01y", b"\x00\x07"), (b"", None)])
    restarted(world)
    assert known(world) is not None
    assert transactor.write("t", b"a") == 0
    assert transactor.commit() == 0


def keep_from_writing(world: World, *, too_few_in_sync: bool) -> None:
    """Whether transactions' own records are refused, as while others have left the in-sync set."""
    for name, partition in world.node.partitions.items():
        if name[0] == "__transaction_state":
            partition.isr = () if too_few_in_sync else (world.node.node_id,)


def test_an_end_that_cannot_be_put_on_record_is_tried_again() -> None:
    """Too few were in sync just then: the transaction stayed half ended until another coordinator came."""
    world = strict_world()
    transactor = Transactor(world, newer=True)
    transactor.init()
    transactor.write("t", b"a")
    world.hold_flushes = True
    request = world.send(ApiKey.END_TXN, 5, transactor.end_request(commit=True))
    flush_one(world)
    assert transactor.ended(request) == 0
    keep_from_writing(world, too_few_in_sync=True)
    world.hold_flushes = False
    world.finish_flushes()
    world.advance(1000)
    assert state_of(world) is State.PREPARE_COMMIT
    keep_from_writing(world, too_few_in_sync=False)
    world.advance(200)
    assert state_of(world) is State.COMPLETE_COMMIT
    transactor.write("t", b"b")
    assert transactor.commit() == 0
    assert read(world, "t") == [b"a", b"b"]


def test_a_slow_transaction_is_aborted_though_that_cannot_be_put_on_record_at_first() -> None:
    """Its first record would keep readers of committed records waiting for ever."""
    world = make_world()
    transactor = Transactor(world, newer=True, timeout_ms=5000)
    transactor.init()
    transactor.write("t", b"a")
    keep_from_writing(world, too_few_in_sync=True)
    world.advance(6000)
    assert state_of(world) is State.ONGOING
    keep_from_writing(world, too_few_in_sync=False)
    world.advance(200)
    assert state_of(world) is State.COMPLETE_ABORT
    assert read(world, "t") == []
