"""How a broker that holds a partition makes sure that it is part of a transaction before the first append.

Clients of the newer protocol rely on it that the broker adds the partition; older ones have added it, and the
broker verifies that. Either way no transaction is open in a partition that its coordinator does not know of,
so none is left hanging there.

Here is the seam to other brokers: a coordinator elsewhere is to be sent an AddPartitionsToTxn request; until
brokers can talk to each other it is answered as one that is not here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gapless.core.contract import TopicPartition
from gapless.core.shard import CoordinatorError
from gapless.core.transactions import rules
from gapless.core.transactions.state import TransactionsState, find_transactions
from gapless.core.transactions.transaction import EACH_WITH_ITS_EPOCH
from gapless.wire.errors import ErrorCode

if TYPE_CHECKING:
    from gapless.core.node import Node

RETRY_MS = 20
GIVE_UP_MS = 100

Errors = dict[TopicPartition, ErrorCode]


class Joining(NamedTuple):
    """Who wants to write where, as part of its transaction."""

    transactional_id: str
    producer: tuple[int, int]
    partitions: Sequence[TopicPartition]
    adds: bool
    """Whether the broker adds the partitions, or the client has."""


def join(node: Node, joining: Joining, then: Callable[[Errors], None]) -> None:
    """Go on with the coordinator's word for each partition.

    While its last transaction is being finished, a producer of the newer protocol is not sent away at once.
    """
    give_up_ms = node.now_ms + GIVE_UP_MS

    def answered(errors: Errors) -> None:
        is_early = ErrorCode.CONCURRENT_TRANSACTIONS in errors.values()
        if is_early and joining.adds and node.now_ms < give_up_ms:
            node.timers.at(node.now_ms + RETRY_MS, lambda: _ask(node, joining, answered))
        else:
            then(errors)

    _ask(node, joining, answered)


def _ask(node: Node, joining: Joining, then: Callable[[Errors], None]) -> None:
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
