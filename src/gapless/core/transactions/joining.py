"""How a broker that holds a partition makes sure that it is part of a transaction before the first append.

Clients of the newer protocol rely on it that the broker adds the partition; older ones have added it, and the
broker verifies that. Either way no transaction is open in a partition that its coordinator does not know of,
so none is left hanging there.

A coordinator on another broker is asked by AddPartitionsToTxn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gapless.core.contract import TopicPartition
from gapless.core.coordinators import TRANSACTION_STATE, coordinator_of
from gapless.core.partition import Admission
from gapless.core.shard import CoordinatorError
from gapless.core.transactions import rules
from gapless.core.transactions.state import TransactionsState, find_transactions
from gapless.core.transactions.transaction import EACH_WITH_ITS_EPOCH
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

if TYPE_CHECKING:
    from gapless.core.node import Node

RETRY_MS = 20
GIVE_UP_MS = 100
ADDS_VERSION = 5
VERIFIES_VERSION = 4
ANSWER_WITHIN_MS = 2000

Errors = dict[TopicPartition, ErrorCode]
Joined = dict[TopicPartition, Admission | ErrorCode]
"""For each partition what its next append rests on, or why there must be none."""


class Joining(NamedTuple):
    """Who wants to write where, as part of its transaction."""

    transactional_id: str
    producer: tuple[int, int]
    partitions: Sequence[TopicPartition]
    adds: bool
    """Whether the broker adds the partitions, or the client has."""


def join(node: Node, joining: Joining, then: Callable[[Joined], None]) -> None:
    """Call `then` with the coordinator's decision on each partition.

    A producer of the newer protocol begins its next transaction while the markers of the last one are being
    written. For some time the question is repeated for it, as Kafka does: a retry by the client takes longer,
    and sends the records again.
    """
    give_up_ms = node.now_ms + GIVE_UP_MS

    def ask() -> None:
        # Before each question: what happened before it cannot be the end of a transaction which the
        # coordinator, when it answers, says is open.
        admissions = _admissions(node, joining)

        def answered(errors: Errors) -> None:
            is_early = ErrorCode.CONCURRENT_TRANSACTIONS in errors.values()
            if is_early and joining.adds and node.now_ms < give_up_ms:
                node.timers.at(node.now_ms + RETRY_MS, ask)
            else:
                then({name: errors[name] or admission for name, admission in admissions.items()})

        _ask(node, joining, answered)

    ask()


def _admissions(node: Node, joining: Joining) -> Joined:
    admissions: Joined = {}
    for name in joining.partitions:
        partition = node.partitions.get(name)
        if partition is None:
            admissions[name] = node.absence(*name)
        else:
            admissions[name] = partition.admission(joining.producer, begins_at_zero=joining.adds)
    return admissions


def _ask(node: Node, joining: Joining, then: Callable[[Errors], None]) -> None:
    coordinator = coordinator_of(node, TRANSACTION_STATE, joining.transactional_id)
    if coordinator >= 0 and coordinator != node.node_id:
        _ask_elsewhere(node, coordinator, joining, then)
    else:
        _ask_here(node, joining, then)


def _ask_here(node: Node, joining: Joining, then: Callable[[Errors], None]) -> None:
    partitions = joining.partitions
    try:
        transactions = find_transactions(node, joining.transactional_id)
        if joining.adds:
            add_partitions(
                transactions, joining.transactional_id, joining.producer, partitions, EACH_WITH_ITS_EPOCH
            )
            errors = dict.fromkeys(partitions, ErrorCode.NONE)
        else:
            known = transactions.transactions.get(joining.transactional_id)
            errors = rules.verify(known, joining.producer, partitions)
    except CoordinatorError as error:
        then(dict.fromkeys(partitions, error.code))
        return
    transactions.shard.when_committed(
        lambda error: then(dict.fromkeys(partitions, error) if error else errors)
    )


def _ask_elsewhere(node: Node, coordinator: int, joining: Joining, then: Callable[[Errors], None]) -> None:
    def answered(response: AddPartitionsToTxnResponse | None) -> None:
        errors = dict.fromkeys(joining.partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        for result in [] if response is None else response.results_by_transaction:
            for topic in result.topic_results:
                for part in topic.results_by_partition:
                    name = TopicPartition(topic.name, part.partition_index)
                    errors[name] = ErrorCode(part.partition_error_code)
        then(errors)

    version = ADDS_VERSION if joining.adds else VERIFIES_VERSION
    to = coordinator, int(ApiKey.ADD_PARTITIONS_TO_TXN), version
    node.call(to, _joining_request(joining), ANSWER_WITHIN_MS, answered)


def _joining_request(joining: Joining) -> AddPartitionsToTxnRequest:
    kind = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
    producer_id, producer_epoch = joining.producer
    topics: dict[str, list[int]] = {}
    for topic, partition in joining.partitions:
        topics.setdefault(topic, []).append(partition)
    return AddPartitionsToTxnRequest(
        transactions=[
            kind(
                transactional_id=joining.transactional_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                verify_only=not joining.adds,
                topics=[
                    kind.AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                    for topic, indexes in topics.items()
                ],
            )
        ]
    )


def add_partitions(
    transactions: TransactionsState,
    transactional_id: str,
    producer: tuple[int, int],
    partitions: Sequence[TopicPartition],
    client_version: int,
) -> None:
    """Make partitions part of a transaction, and begin it if it was not. Raises `CoordinatorError`."""
    known = transactions.transactions.get(transactional_id)
    changed = rules.add(known, producer, partitions, client_version, transactions.node.now_ms)
    if changed is not None:
        transactions.write(changed)
