"""Claim C8: the consumer's offsets can be part of the transaction: consume-transform-produce is exact."""

from __future__ import annotations

import pytest

from gapless.core.transactions.transaction import State
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import FindCoordinatorRequest, OffsetFetchRequest
from tests.core.harness import World
from tests.core.transactions.actors import Transactor, known, make_world, read, state_of

BOTH = pytest.mark.parametrize("newer", [False, True], ids=["older", "newer"])


@pytest.fixture
def world() -> World:
    return make_world()


def committed(world: World, group: str = "g", *, stable: bool = False) -> tuple[int, int]:
    """The group's offset in partition 0 of t, and the error."""
    group_type = OffsetFetchRequest.OffsetFetchRequestGroup
    topic_type = group_type.OffsetFetchRequestTopics
    asked = group_type(
        group_id=group, member_id=None, member_epoch=-1, topics=[topic_type(name="t", partition_indexes=[0])]
    )
    body = OffsetFetchRequest(groups=[asked], require_stable=stable)
    part = world.call(ApiKey.OFFSET_FETCH, 9, body).groups[0].topics[0].partitions[0]
    return part.committed_offset, part.error_code


def with_offset(transactor: Transactor, offset: int, group: str = "g") -> ErrorCode:
    if not transactor.newer and (error := transactor.add_offsets(group)):
        return error
    return transactor.send_offset(offset, group)


@BOTH
def test_offsets_show_with_the_transaction_that_they_are_part_of(world: World, newer: bool) -> None:
    transactor = Transactor(world, newer=newer)
    transactor.init()
    transactor.write("u", b"result")
    assert with_offset(transactor, 7) == 0
    assert committed(world) == (-1, 0)
    assert committed(world, stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert transactor.commit() == 0
    assert committed(world) == committed(world, stable=True) == (7, 0)
    assert read(world, "u") == [b"result"]


@BOTH
def test_offsets_of_an_aborted_transaction_never_show(world: World, newer: bool) -> None:
    transactor = Transactor(world, newer=newer)
    transactor.init()
    assert with_offset(transactor, 3) == 0
    assert transactor.commit() == 0
    assert with_offset(transactor, 7) == 0
    assert transactor.abort() == 0
    assert committed(world) == committed(world, stable=True) == (3, 0)


@BOTH
@pytest.mark.parametrize("commit", [True, False])
def test_pending_offsets_survive_a_restart(world: World, newer: bool, commit: bool) -> None:
    transactor = Transactor(world, newer=newer)
    transactor.init()
    assert with_offset(transactor, 7) == 0
    world.restart()
    world.advance(0)
    assert committed(world) == (-1, 0)
    assert committed(world, stable=True)[1] == ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert transactor.end(commit=commit) == 0
    assert committed(world, stable=True) == ((7 if commit else -1), 0)
    world.restart()
    world.advance(0)
    assert committed(world, stable=True) == ((7 if commit else -1), 0)


@BOTH
def test_offsets_of_a_transaction_that_takes_too_long_are_dropped(world: World, newer: bool) -> None:
    transactor = Transactor(world, newer=newer, timeout_ms=5000)
    transactor.init()
    with_offset(transactor, 7)
    world.advance(5000)
    assert committed(world, stable=True) == (-1, 0)
    assert transactor.send_offset(8) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_the_broker_adds_the_group_for_newer_clients_and_verifies_it_for_older_ones(world: World) -> None:
    newer, older = Transactor(world, "newer", newer=True), Transactor(world, "older", newer=False)
    newer.init()
    older.init()
    assert newer.send_offset(1) == 0
    transaction = known(world, "newer")
    assert transaction is not None
    assert [name.topic for name in transaction.partitions] == ["__consumer_offsets"]
    assert older.send_offset(1) == ErrorCode.INVALID_TXN_STATE
    older.versions = older.versions | {"offsets": 4}
    assert older.send_offset(1) == ErrorCode.TRANSACTION_ABORTABLE
    assert state_of(world, "older") is State.EMPTY


def test_a_late_offset_commit_does_not_join_the_next_transaction(world: World) -> None:
    transactor = Transactor(world, newer=True)
    transactor.init()
    first = transactor.producer
    transactor.send_offset(1)
    transactor.commit()
    second, transactor.producer = transactor.producer, first
    assert transactor.send_offset(99) == ErrorCode.INVALID_PRODUCER_EPOCH
    transactor.producer = second
    transactor.send_offset(2)
    transactor.commit()
    assert committed(world) == (2, 0)


@BOTH
def test_offsets_for_partitions_that_do_not_exist_are_refused_alone(world: World, newer: bool) -> None:
    transactor = Transactor(world, newer=newer)
    transactor.init()
    transactor.add_offsets()
    assert transactor.send_offset(1, topic="nope") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert transactor.send_offset(1, partition=9) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert transactor.send_offset(1) == 0


@BOTH
def test_a_zombie_consumer_cannot_commit_for_its_group(world: World, newer: bool) -> None:
    """The generation fences who lost its partitions (KIP-447)."""
    transactor = Transactor(world, newer=newer)
    transactor.init()
    transactor.add_offsets()
    refused = transactor.send_offset(7, member_id="long gone", generation_id=3)
    assert refused == ErrorCode.ILLEGAL_GENERATION
    assert transactor.commit() == 0
    assert committed(world) == (-1, 0)


def test_a_group_may_be_named_before_any_offsets_are_kept() -> None:
    world = World(transaction_state_log_num_partitions="1", offsets_topic_num_partitions="3")
    body = FindCoordinatorRequest(key_type=1, coordinator_keys=["x"])
    world.call(ApiKey.FIND_COORDINATOR, 4, body)
    world.advance(0)
    world.create_topic("t")
    transactor = Transactor(world, newer=False)
    transactor.init()
    assert transactor.add_offsets("g") == 0
    world.call(ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    world.advance(0)
    assert transactor.send_offset(7) == 0
    assert transactor.commit() == 0
    assert committed(world) == (7, 0)


def test_old_clients_are_told_to_try_again_in_a_way_they_know(world: World) -> None:
    transactor = Transactor(world, newer=False)
    transactor.init()
    transactor.add_offsets()
    world.restart()
    transactor.versions = transactor.versions | {"offsets": 3}
    assert transactor.send_offset(1) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    transactor.versions = transactor.versions | {"offsets": 1}
    assert transactor.send_offset(1) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.advance(0)
    assert transactor.send_offset(1) == 0


def test_an_answer_that_outlives_a_leadership_is_asked_for_again_and_ends_no_producer() -> None:
    """A new epoch of the leader says nothing about the transaction: the client tries again."""
    world = World()
    world.create_topic("t")
    partition = world.partition("t")
    admission = partition.admission((7, 0), begins_at_zero=False)
    assert partition.admission_error(admission) is ErrorCode.NONE
    partition.leader_epoch += 1
    assert partition.admission_error(admission) is ErrorCode.NOT_LEADER_OR_FOLLOWER
