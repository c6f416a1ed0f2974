"""AddPartitionsToTxn and AddOffsetsToTxn: what belongs to a transaction, before anything is written there.

Version notes: AddPartitionsToTxn 2 tells a fenced producer from other errors, 4 comes from brokers: for many
transactions, and perhaps only to verify; 5 speaks of transactions that can be aborted. AddOffsetsToTxn adds
the partition that holds a group's offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from gapless.core.api.registry import handles
from gapless.core.contract import Request, TopicPartition
from gapless.core.coordinators import CONSUMER_OFFSETS, INTERNAL_TOPIC_SHAPES, INTERNAL_TOPICS
from gapless.core.shard import CoordinatorError, shard_of
from gapless.core.transactions import rules
from gapless.core.transactions.joining import Errors, add_partitions
from gapless.core.transactions.replies import commit_error, fenced_error
from gapless.core.transactions.state import TransactionsState, find_transactions
from gapless.core.transactions.transaction import EACH_WITH_ITS_EPOCH
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)

if TYPE_CHECKING:
    from gapless.core.node import Node

FROM_BROKERS = 4
WITH_ITS_EPOCH_FROM = 5

TransactionResult = AddPartitionsToTxnResponse.AddPartitionsToTxnResult
TopicResult = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult


class _Asked(NamedTuple):
    """One transaction of a request."""

    transactional_id: str
    producer: tuple[int, int]
    partitions: list[TopicPartition]
    verify_only: bool


@handles(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5)
def add_partitions_to_txn(node: Node, request: Request) -> Any | None:
    """Add partitions to transactions: all of a transaction's or none."""
    version = request.header.api_version
    asked = _asked(request)
    results: list[Errors | None] = [None] * len(asked)
    if not asked:
        return _response(version, asked, [])

    def answered(index: int, errors: Errors) -> None:
        results[index] = errors
        done = [errors for errors in results if errors is not None]
        if len(done) == len(asked):
            node.reply(request, _response(version, asked, done))

    for index, one in enumerate(asked):
        _add(node, version, one, partial(answered, index))
    return None


def _asked(request: Request) -> list[_Asked]:
    body: AddPartitionsToTxnRequest = request.body
    if request.header.api_version < FROM_BROKERS:
        producer = body.v3_and_below_producer_id, body.v3_and_below_producer_epoch
        partitions = _partitions(body.v3_and_below_topics)
        return [_Asked(body.v3_and_below_transactional_id, producer, partitions, False)]
    return [
        _Asked(
            one.transactional_id,
            (one.producer_id, one.producer_epoch),
            _partitions(one.topics),
            one.verify_only,
        )
        for one in body.transactions
    ]


def _partitions(topics: Iterable[Any]) -> list[TopicPartition]:
    wanted = {TopicPartition(topic.name, index): None for topic in topics for index in topic.partitions}
    return list(wanted)


def _add(node: Node, version: int, asked: _Asked, then: Callable[[Errors], None]) -> None:
    """Decide on one transaction, and go on when that is committed."""
    missing = _missing(node, asked.partitions, from_client=version < FROM_BROKERS)
    if missing:
        not_attempted = dict.fromkeys(asked.partitions, ErrorCode.OPERATION_NOT_ATTEMPTED)
        then(not_attempted | missing)
        return

    def committed(error: ErrorCode) -> None:
        then(dict.fromkeys(asked.partitions, commit_error(error)) if error else errors)

    try:
        if not asked.transactional_id:
            raise CoordinatorError(ErrorCode.INVALID_REQUEST)
        transactions = find_transactions(node, asked.transactional_id)
        errors = _decide(transactions, version, asked)
    except CoordinatorError as error:
        told = fenced_error(error.code, knows_fencing=version >= 2)
        then(dict.fromkeys(asked.partitions, told))
        return
    transactions.shard.when_committed(committed)


def _missing(node: Node, partitions: Iterable[TopicPartition], *, from_client: bool) -> Errors:
    """What is wrong with partitions that cannot be added: one of them keeps all from being added."""
    errors: Errors = {}
    for name in partitions:
        topic = node.image.topics.get(name.topic)
        if from_client and name.topic in INTERNAL_TOPICS:
            errors[name] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif topic is None or not 0 <= name.partition < len(topic.partitions):
            errors[name] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return errors


def _decide(transactions: TransactionsState, version: int, asked: _Asked) -> Errors:
    if asked.verify_only:
        known = transactions.transactions.get(asked.transactional_id)
        return rules.verify(known, asked.producer, asked.partitions)
    client_version = EACH_WITH_ITS_EPOCH if version >= WITH_ITS_EPOCH_FROM else 0
    add_partitions(transactions, asked.transactional_id, asked.producer, asked.partitions, client_version)
    return dict.fromkeys(asked.partitions, ErrorCode.NONE)


def _response(version: int, asked: Sequence[_Asked], results: Sequence[Errors]) -> AddPartitionsToTxnResponse:
    if version < FROM_BROKERS:
        return AddPartitionsToTxnResponse(
            throttle_time_ms=0, results_by_topic_v3_and_below=_by_topic(TopicResult, results[0])
        )
    return AddPartitionsToTxnResponse(
        throttle_time_ms=0,
        error_code=0,
        results_by_transaction=[
            TransactionResult(
                transactional_id=one.transactional_id,
                topic_results=_by_topic(TransactionResult.AddPartitionsToTxnTopicResult, errors),
            )
            for one, errors in zip(asked, results, strict=True)
        ],
    )


def _by_topic(kind: Any, errors: Errors) -> list[Any]:
    topics: dict[str, Any] = {}
    for (topic, index), error in errors.items():
        result = topics.get(topic)
        if result is None:
            result = topics[topic] = kind(name=topic, results_by_partition=[])
        result.results_by_partition.append(
            kind.AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=int(error))
        )
    return list(topics.values())


# ----------------------------------------------------------------------------------------------- offsets


@handles(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4)
def add_offsets_to_txn(node: Node, request: Request) -> Any | None:
    """Make the partition that holds a group's offsets part of a transaction."""
    body: AddOffsetsToTxnRequest = request.body
    partition = TopicPartition(CONSUMER_OFFSETS, shard_of(body.group_id, _offsets_partitions(node)))
    try:
        if not body.transactional_id:
            raise CoordinatorError(ErrorCode.INVALID_REQUEST)
        transactions = find_transactions(node, body.transactional_id)
        producer = body.producer_id, body.producer_epoch
        add_partitions(transactions, body.transactional_id, producer, [partition], client_version=0)
    except CoordinatorError as error:
        return _offsets_added(fenced_error(error.code, knows_fencing=request.header.api_version >= 2))
    transactions.shard.answer(
        request,
        _offsets_added(ErrorCode.NONE),
        failed=lambda error: _offsets_added(commit_error(error)),
    )
    return None


def _offsets_partitions(node: Node) -> int:
    """How many partitions hold offsets; clients may name a group before there is any."""
    topic = node.image.topics.get(CONSUMER_OFFSETS)
    if topic is not None:
        return len(topic.partitions)
    count: int = node.settings.get(INTERNAL_TOPIC_SHAPES[CONSUMER_OFFSETS].partitions_setting)
    return count


def _offsets_added(error: ErrorCode) -> AddOffsetsToTxnResponse:
    return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=int(error))
