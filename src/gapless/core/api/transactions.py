"""DescribeTransactions and ListTransactions: what this broker coordinates, for people and their tools.

Version notes: ListTransactions 1 can ask for transactions that have been open for long, 2 for ids that match
a regular expression.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.core.api.registry import handles
from gapless.core.consumer_groups.patterns import PRINTABLE, InvalidPattern, compiled
from gapless.core.contract import Request
from gapless.core.coordinators import TRANSACTION_STATE
from gapless.core.shard import CoordinatorError
from gapless.core.transactions.state import TransactionsState, find_transactions
from gapless.core.transactions.transaction import State, Transaction
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

if TYPE_CHECKING:
    from gapless.core.node import Node

STATES_BY_NAME = {state.kafka_name: state for state in State}

Description = DescribeTransactionsResponse.TransactionState
Listing = ListTransactionsResponse.TransactionState


@handles(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0)
def describe_transactions(node: Node, request: Request) -> DescribeTransactionsResponse:
    """All that is known of each transactional id."""
    body: DescribeTransactionsRequest = request.body
    asked = dict.fromkeys(body.transactional_ids)  # asked twice, told once
    return DescribeTransactionsResponse(
        throttle_time_ms=0,
        transaction_states=[_describe(node, transactional_id) for transactional_id in asked],
    )


def _describe(node: Node, transactional_id: str) -> Description:
    try:
        if not transactional_id:
            raise CoordinatorError(ErrorCode.INVALID_REQUEST)
        transaction = find_transactions(node, transactional_id).transactions.get(transactional_id)
        if transaction is None:
            raise CoordinatorError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    except CoordinatorError as error:
        return Description(
            error_code=int(error.code),
            transactional_id=transactional_id,
            transaction_state="",
            transaction_timeout_ms=0,
            transaction_start_time_ms=-1,
            producer_id=-1,
            producer_epoch=-1,
            topics=[],
        )
    return Description(
        error_code=0,
        transactional_id=transactional_id,
        transaction_state=transaction.state.kafka_name,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.start_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=_topics(transaction),
    )


def _topics(transaction: Transaction) -> list[Description.TopicData]:
    by_topic: dict[str, list[int]] = {}
    for topic, index in transaction.partitions:
        by_topic.setdefault(topic, []).append(index)
    return [Description.TopicData(topic=topic, partitions=indexes) for topic, indexes in by_topic.items()]


@handles(ApiKey.LIST_TRANSACTIONS, 0, 2)
def list_transactions(node: Node, request: Request) -> ListTransactionsResponse:
    """The transactional ids that are coordinated here, as far as the filters let them pass."""
    body: ListTransactionsRequest = request.body
    shards = [shard for (topic, _), shard in node.shards.items() if topic == TRANSACTION_STATE]
    if not all(shard.ready for shard in shards):
        return _listed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [], [])
    states = {STATES_BY_NAME[name]: None for name in body.state_filters if name in STATES_BY_NAME}
    unknown = [name for name in body.state_filters if name not in STATES_BY_NAME]
    producer_ids = frozenset(body.producer_id_filters)
    open_for_ms = body.duration_filter if request.header.api_version >= 1 else -1
    try:
        asked_pattern = body.transactional_id_pattern if request.header.api_version >= 2 else None
        pattern = compiled(asked_pattern, PRINTABLE) if asked_pattern else None
    except InvalidPattern:
        return _listed(ErrorCode.INVALID_REGULAR_EXPRESSION, [], [])

    def is_wanted(transaction: Transaction) -> bool:
        return (
            (not producer_ids or transaction.producer_id in producer_ids)
            and (not body.state_filters or transaction.state in states)
            and (open_for_ms < 0 or node.now_ms - transaction.start_ms > open_for_ms)
            and (pattern is None or pattern.matches(transaction.transactional_id))
        )

    found = [
        Listing(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            transaction_state=transaction.state.kafka_name,
        )
        for shard in shards
        if isinstance(shard.state, TransactionsState)
        for transaction in shard.state.transactions.values()
        if is_wanted(transaction)
    ]
    return _listed(ErrorCode.NONE, unknown, found)


def _listed(error: ErrorCode, unknown: list[str], found: list[Listing]) -> ListTransactionsResponse:
    return ListTransactionsResponse(
        throttle_time_ms=0, error_code=int(error), unknown_state_filters=unknown, transaction_states=found
    )
