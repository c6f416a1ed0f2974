"""What administrators see: transactions, their producers, and how a hanging one is found and ended."""

from __future__ import annotations

from typing import Any

import pytest

from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import (
    ApiVersionsRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from tests.core.harness import World
from tests.core.transactions.actors import Transactor, make_world, read, stable
from tests.core.transactions.test_late import mark


@pytest.fixture
def world() -> World:
    return make_world()


def described(world: World, *transactional_ids: str) -> list[Any]:
    body = DescribeTransactionsRequest(transactional_ids=list(transactional_ids))
    states: list[Any] = world.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, body).transaction_states
    return states


def listed(world: World, version: int = 1, **filters: Any) -> dict[str, str]:
    everything: dict[str, Any] = {
        "state_filters": [],
        "producer_id_filters": [],
        "duration_filter": -1,
        "transactional_id_pattern": None,
    }
    wanted = everything | filters
    reply = world.call(ApiKey.LIST_TRANSACTIONS, version, ListTransactionsRequest(**wanted))
    return {state.transactional_id: state.transaction_state for state in reply.transaction_states}


def test_a_transaction_is_described(world: World) -> None:
    transactor = Transactor(world, newer=True, timeout_ms=5000)
    transactor.init()
    transactor.write("t", b"a", partition=1)
    transactor.write("u", b"b")
    (state,) = described(world, "x")
    assert state.error_code == 0
    assert (state.transaction_state, state.transaction_timeout_ms) == ("Ongoing", 5000)
    assert (state.producer_id, state.producer_epoch) == transactor.producer
    assert state.transaction_start_time_ms == world.now_ms
    assert {topic.topic: topic.partitions for topic in state.topics} == {"t": [1], "u": [0]}


def test_what_is_not_known_is_said_to_be_so(world: World) -> None:
    unknown, empty = described(world, "nobody", "")
    assert unknown.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert empty.error_code == ErrorCode.INVALID_REQUEST
    world.restart()
    assert described(world, "x")[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_transactions_are_listed_by_state_producer_and_age(world: World) -> None:
    idle, young, old = (Transactor(world, name, newer=True) for name in ("idle", "young", "old"))
    for transactor in (idle, young, old):
        transactor.init()
    old.write("t", b"a")
    world.advance(10_000)
    young.write("t", b"a")
    assert listed(world) == {"idle": "Empty", "young": "Ongoing", "old": "Ongoing"}
    assert listed(world, state_filters=["Ongoing"]) == {"young": "Ongoing", "old": "Ongoing"}
    assert listed(world, producer_id_filters=[young.producer[0]]) == {"young": "Ongoing"}
    assert listed(world, state_filters=["Ongoing"], duration_filter=5000) == {"old": "Ongoing"}
    reply = world.call(
        ApiKey.LIST_TRANSACTIONS, 0, ListTransactionsRequest(state_filters=["Odd"], producer_id_filters=[])
    )
    assert (reply.unknown_state_filters, reply.transaction_states) == (["Odd"], [])
    world.restart()
    body = ListTransactionsRequest(state_filters=[], producer_id_filters=[])
    reply = world.call(ApiKey.LIST_TRANSACTIONS, 0, body)
    assert reply.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_transactions_are_listed_by_a_pattern_of_their_ids(world: World) -> None:
    for name in ("my app/1", "my app/2", "other"):
        Transactor(world, name, newer=True).init()
    assert set(listed(world, 2, transactional_id_pattern="my app/.")) == {"my app/1", "my app/2"}
    assert set(listed(world, 2, transactional_id_pattern="app")) == set()
    assert len(listed(world, 2, transactional_id_pattern="")) == 3
    body = ListTransactionsRequest(state_filters=[], producer_id_filters=[], transactional_id_pattern="(")
    assert world.call(ApiKey.LIST_TRANSACTIONS, 2, body).error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_hanging_transaction_is_found_by_its_producer_and_aborted(world: World) -> None:
    """As `kafka-transactions` does it: a partition's open transaction that no coordinator knows of."""
    transactor = Transactor(world, newer=False)
    transactor.init()
    transactor.write("t", b"hangs")
    topic_type = DescribeProducersRequest.TopicRequest
    body = DescribeProducersRequest(topics=[topic_type(name="t", partition_indexes=[0])])
    (producer,) = world.call(ApiKey.DESCRIBE_PRODUCERS, 0, body).topics[0].partitions[0].active_producers
    assert (producer.producer_id, producer.producer_epoch) == transactor.producer
    assert (producer.current_txn_start_offset, producer.last_sequence) == (0, 0)
    assert mark(world, transactor.producer, commit=False, version=0) == 0
    assert stable(world, "t") == world.partition("t").high_watermark
    assert read(world, "t") == []
    (producer,) = world.call(ApiKey.DESCRIBE_PRODUCERS, 0, body).topics[0].partitions[0].active_producers
    assert producer.current_txn_start_offset == -1


@pytest.mark.parametrize("version", [3, 4])
def test_clients_learn_that_the_newer_protocol_is_in_force(world: World, version: int) -> None:
    body = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    reply = world.call(ApiKey.API_VERSIONS, version, body)
    supported = [f for f in reply.supported_features if f.name == "transaction.version"]
    (finalized,) = (f for f in reply.finalized_features if f.name == "transaction.version")
    assert [(f.min_version, f.max_version) for f in supported] == ([(0, 2)] if version == 4 else [])
    assert (finalized.min_version_level, finalized.max_version_level) == (2, 2)
    assert reply.finalized_features_epoch >= 0
