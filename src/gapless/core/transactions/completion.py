"""Finishing what is decided: from a prepared transaction, over markers in its partitions, to a complete one.

It begins when the decision is committed, so that no marker can contradict a later coordinator; it goes on
until every partition has its marker, and a coordinator that takes over begins again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.core.contract import TopicPartition
from gapless.core.shard import CoordinatorError
from gapless.core.transactions.markers import Ending, send_markers
from gapless.core.transactions.rules import complete
from gapless.core.transactions.transaction import State, Transaction
from gapless.wire.errors import ErrorCode

if TYPE_CHECKING:
    from gapless.core.transactions.state import TransactionsState

RETRY_MS = 100


class Completion:
    """One prepared transaction on its way."""

    def __init__(self, transactions: TransactionsState, prepared: Transaction) -> None:
        self._transactions = transactions
        self._node = transactions.shard.node
        self._prepared = prepared
        self._missing = dict(prepared.partitions)
        """The partitions that have no marker yet."""
        self._ending = Ending(
            prepared.producer,
            prepared.state is State.PREPARE_COMMIT,
            transactions.shard.partition.leader_epoch,
            prepared.client_version,
        )

    def begin(self) -> None:
        """Send the markers once the decision is committed."""
        self._transactions.shard.when_committed(self._decided)

    def _decided(self, error: ErrorCode) -> None:
        if error is ErrorCode.NONE:
            self._send()
        elif error is ErrorCode.REQUEST_TIMED_OUT:
            self.begin()

    def _send(self) -> None:
        """Ask for all markers that are missing, and again later for those that could not be written."""
        if not self._is_current():
            return
        if not self._missing:
            self._finish()
            return
        partitions = list(self._missing)
        answers_left = len(partitions)

        def answered(partition: TopicPartition, error: ErrorCode) -> None:
            nonlocal answers_left
            answers_left -= 1
            self._take(partition, error)
            if answers_left == 0 and self._is_current():
                if self._missing:
                    self._node.timers.at(self._node.now_ms + RETRY_MS, self._send)
                else:
                    self._finish()

        send_markers(self._node, self._ending, partitions, answered)

    def _take(self, partition: TopicPartition, error: ErrorCode) -> None:
        if error is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
            self._transactions.abandon(self._prepared.transactional_id)  # another coordinator finishes this
        elif error in (ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH):
            # A later epoch of the producer is there, which only begins when this transaction has its marker.
            self._missing.pop(partition, None)

    def _is_current(self) -> bool:
        return self._transactions.completions.get(self._prepared.transactional_id) is self

    def _finish(self) -> None:
        """Put on record that all is done; try again while that cannot be written, as with too few in sync."""
        current = self._transactions.transactions[self._prepared.transactional_id]
        try:
            self._transactions.write(complete(current, self._node.now_ms))
        except CoordinatorError:
            self._node.timers.at(self._node.now_ms + RETRY_MS, self._send)
        else:
            del self._transactions.completions[self._prepared.transactional_id]
