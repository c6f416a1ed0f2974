"""Strangers, nonsense and floods: Kafka's error for each, bounded memory, and nobody else is hurt."""

from __future__ import annotations

import pytest

from gapless.core.transactions.transaction import State
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import AddPartitionsToTxnRequest
from tests.core.harness import World, batch
from tests.core.transactions.actors import Transactor, known, make_world, read, state_of

BOTH = pytest.mark.parametrize("newer", [False, True], ids=["older", "newer"])


@pytest.fixture
def world() -> World:
    return make_world()


@BOTH
def test_a_stranger_with_a_made_up_id_gets_nowhere(world: World, newer: bool) -> None:
    stranger = Transactor(world, "never seen", newer=newer)
    stranger.producer = (4711, 0)
    assert stranger.add(("t", 0)) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert stranger.send("t", b"a") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert stranger.add_offsets() == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert stranger.send_offset(1) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert stranger.commit() == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert known(world, "never seen") is None
    assert world.partition("t").log.end_offset == 0


@BOTH
def test_a_stranger_cannot_use_somebody_elses_transactional_id(world: World, newer: bool) -> None:
    owner, stranger = Transactor(world, newer=newer), Transactor(world, newer=newer)
    owner.init()
    owner.write("t", b"a")
    for producer in ((owner.producer[0] + 1, 0), (owner.producer[0], owner.producer[1] + 7), (-1, -1)):
        stranger.producer = producer
        assert stranger.add(("u", 0)) in (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.PRODUCER_FENCED)
        assert stranger.commit() in (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.PRODUCER_FENCED)
    assert state_of(world) is State.ONGOING
    assert owner.commit() == 0


@BOTH
def test_what_was_never_begun_cannot_be_ended(world: World, newer: bool) -> None:
    transactor = Transactor(world, newer=newer)
    transactor.init()
    assert transactor.commit() == ErrorCode.INVALID_TXN_STATE
    if not newer:
        assert transactor.abort() == ErrorCode.INVALID_TXN_STATE
    assert state_of(world) is State.EMPTY


@BOTH
def test_partitions_that_do_not_exist_keep_all_from_being_added(world: World, newer: bool) -> None:
    transactor = Transactor(world, newer=newer)
    transactor.init()
    reply = world.call(
        ApiKey.ADD_PARTITIONS_TO_TXN, 3, transactor.add_request(("t", 0), ("t", 99), ("nope", 0))
    )
    errors = {
        (topic.name, result.partition_index): result.partition_error_code
        for topic in reply.results_by_topic_v3_and_below
        for result in topic.results_by_partition
    }
    assert errors == {
        ("t", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        ("t", 99): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("nope", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert state_of(world) is State.EMPTY


@pytest.mark.parametrize("topic", ["__transaction_state", "__consumer_offsets"])
def test_internal_topics_are_not_for_clients(world: World, topic: str) -> None:
    transactor = Transactor(world, newer=True)
    transactor.init()
    assert transactor.add((topic, 0)) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    before = world.partition(topic).log.end_offset
    assert transactor.send(topic, b"a") == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert world.produce(topic, batch(b"a")).error == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert world.partition(topic).log.end_offset == before
    assert state_of(world) is State.EMPTY


def test_an_id_that_no_record_could_hold_is_refused(world: World) -> None:
    assert Transactor(world, "x" * 32_767, newer=True).init() == 0
    assert Transactor(world, "x" * 32_768, newer=True).init() == ErrorCode.INVALID_REQUEST
    assert Transactor(world, "ü" * 20_000, newer=True).init() == ErrorCode.INVALID_REQUEST


def test_made_up_ids_do_not_fill_the_memory() -> None:
    limit_bytes = 2 * 2**20
    world = make_world(transaction_coordinator_state_max_bytes=str(limit_bytes))
    busy = Transactor(world, "busy", newer=True)
    busy.init()
    busy.write("t", b"a")
    errors = [Transactor(world, f"{number}-" + "x" * 5000, newer=True).init() for number in range(400)]
    assert errors[0] == 0
    assert errors[-1] == ErrorCode.COORDINATOR_NOT_AVAILABLE
    held = sum(getattr(shard.state, "held_bytes", 0) for shard in world.node.shards.values())
    assert held < limit_bytes + 100_000
    assert busy.commit() == 0
    # Later, ids that have been idle make room for new ones.
    world.advance(16 * 60_000)
    assert Transactor(world, "newcomer", newer=True).init() == 0
    assert read(world, "t") == [b"a"]


def verify(
    world: World, transactor: Transactor, *, only: bool, producer: tuple[int, int] | None = None
) -> int:
    """AddPartitionsToTxn as brokers send it."""
    transaction_type = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
    producer_id, epoch = producer or transactor.producer
    body = AddPartitionsToTxnRequest(
        transactions=[
            transaction_type(
                transactional_id=transactor.transactional_id,
                producer_id=producer_id,
                producer_epoch=epoch,
                verify_only=only,
                topics=[transaction_type.AddPartitionsToTxnTopic(name="t", partitions=[0])],
            )
        ]
    )
    (result,) = world.call(ApiKey.ADD_PARTITIONS_TO_TXN, 5, body).results_by_transaction
    error: int = result.topic_results[0].results_by_partition[0].partition_error_code
    return error


def test_brokers_can_verify_and_add_for_many_transactions_at_once(world: World) -> None:
    transactor = Transactor(world, newer=True)
    transactor.init()
    assert verify(world, transactor, only=True) == ErrorCode.TRANSACTION_ABORTABLE
    assert state_of(world) is State.EMPTY
    assert verify(world, transactor, only=False) == 0
    assert state_of(world) is State.ONGOING
    assert verify(world, transactor, only=True) == 0
    zombie = (transactor.producer[0], transactor.producer[1] - 1)
    assert verify(world, transactor, only=True, producer=zombie) == ErrorCode.PRODUCER_FENCED


def test_a_request_of_no_transactions_is_answered(world: World) -> None:
    reply = world.call(ApiKey.ADD_PARTITIONS_TO_TXN, 4, AddPartitionsToTxnRequest(transactions=[]))
    assert reply.results_by_transaction == []
