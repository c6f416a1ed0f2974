"""What one partition of `__transaction_state` holds: its transactional ids, and what is under way with them.

Records change the state, in `replay`, whether they were just written or are read back. `rules` decides what
is written; `completion` finishes what is prepared; timers abort what is too long and forget what is unused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gapless.core.coordinators import TRANSACTION_STATE, find_shard
from gapless.core.producer_id_block import take_producer_id
from gapless.core.shard import CoordinatorError, Shard
from gapless.core.timers import Timer
from gapless.core.transactions import rules
from gapless.core.transactions.completion import RETRY_MS, Completion
from gapless.core.transactions.transaction import (
    EACH_WITH_ITS_EPOCH,
    IDLE,
    PREPARED,
    State,
    Transaction,
    from_record,
    to_record,
)
from gapless.wire.batch import BatchHeader
from gapless.wire.errors import ErrorCode, MalformedMessage
from gapless.wire.records import Record
from gapless.wire.transaction_records import decode_key, encode_key

if TYPE_CHECKING:
    from gapless.core.node import Node

EXPIRED_PER_WRITE = 200
IDLE_MS_BEFORE_EVICTION = 15 * 60 * 1000
TRANSACTION_BYTES = 1000
PARTITION_BYTES = 150
"""What a transactional id, and each part of its transaction, costs in memory; about."""


class TransactionsState:
    """The transactional ids of one shard, the one that was used last at the end."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.node = shard.node
        self.transactions: dict[str, Transaction] = {}
        self.completions: dict[str, Completion] = {}
        self.held_bytes = 0
        self.unreadable_records = 0
        self._timeouts: dict[str, Timer] = {}
        self._expiry: Timer | None = None

    # ------------------------------------------------------------------------------------------ replaying

    def replay(self, record: Record, batch: BatchHeader) -> None:
        """Apply a record. One that cannot be read is counted and passed over, as Kafka does."""
        if batch.is_control:
            return
        try:
            transactional_id = decode_key(record.key or b"")
            if transactional_id is None:
                return
            transaction = None if record.value is None else from_record(transactional_id, record.value)
        except (MalformedMessage, ValueError):
            self.unreadable_records += 1
            return
        earlier = self.transactions.pop(transactional_id, None)
        self.held_bytes -= _held_bytes(earlier)
        if transaction is not None:
            self.transactions[transactional_id] = transaction
            self.held_bytes += _held_bytes(transaction)

    def loaded(self) -> None:
        """Go on where the last coordinator stopped: finish what is decided, time what is open."""
        for transaction in list(self.transactions.values()):
            if transaction.state in PREPARED:
                self._complete(transaction)
            elif transaction.state is State.ONGOING:
                self._time(transaction)
        self._expire_later()

    def unloaded(self) -> None:
        """Another broker coordinates these transactions now."""
        self.completions.clear()
        for timer in self._timeouts.values():
            timer.cancel()
        self._timeouts.clear()
        if self._expiry is not None:
            self._expiry.cancel()

    def topic_deleted(self, topic: str) -> None:
        """Its partitions need no markers; whoever sends them sees for itself that they are gone."""

    # -------------------------------------------------------------------------------------------- writing

    def write(self, transaction: Transaction) -> None:
        """Put a transaction's next state on record, and set going what follows. Raises `CoordinatorError`."""
        transactional_id = transaction.transactional_id
        self.shard.write([(encode_key(transactional_id), to_record(transaction))])
        current = self.transactions[transactional_id]
        if current.last_epoch != transaction.last_epoch:  # it is not on record
            current = replace(current, last_epoch=transaction.last_epoch)
            self.transactions[transactional_id] = current
        if current.state in PREPARED:
            self._complete(current)
        elif current.state is State.ONGOING:
            self._time(current)

    def _complete(self, prepared: Transaction) -> None:
        completion = self.completions[prepared.transactional_id] = Completion(self, prepared)
        completion.begin()

    def abandon(self, transactional_id: str) -> None:
        """Stop finishing a transaction: another coordinator has it."""
        self.completions.pop(transactional_id, None)

    # ------------------------------------------------------------------------------------------- timeouts

    def _time(self, ongoing: Transaction) -> None:
        """See that a transaction does not stay open for longer than its timeout."""
        timer = self._timeouts.get(ongoing.transactional_id)
        if timer is not None and timer.live and timer.due_ms <= ongoing.due_ms:
            # It may still be set for an earlier transaction: then it is set anew when it goes off.
            return
        if timer is not None:
            timer.cancel()
        self._time_out_at(ongoing.due_ms, ongoing.transactional_id)

    def _time_out_at(self, due_ms: int, transactional_id: str) -> None:
        self._timeouts[transactional_id] = self.node.timers.at(
            due_ms, lambda: self._time_out(transactional_id)
        )

    def _time_out(self, transactional_id: str) -> None:
        self._timeouts.pop(transactional_id, None)
        transaction = self.transactions.get(transactional_id)
        if transaction is None or transaction.state is not State.ONGOING:
            return
        if transaction.due_ms > self.node.now_ms:
            self._time(transaction)
            return
        self.fence(transactional_id)

    def fence(self, transactional_id: str, new_id: int | None = None) -> None:
        """Abort an ongoing transaction over its producer's head.

        If that uses up the last epoch of the producer's id, it waits for a new one.
        """
        transaction = self.transactions.get(transactional_id)
        if self.shard.resigned or transaction is None or transaction.state is not State.ONGOING:
            return
        if new_id is None and rules.end_needs_id(transaction, EACH_WITH_ITS_EPOCH):
            take_producer_id(
                self.node,
                lambda taken: self.fence(transactional_id, taken),
                lambda: self._time_out_at(self.node.now_ms + RETRY_MS, transactional_id),
            )
            return
        try:
            self.write(rules.fence(transaction, new_id, self.node.now_ms))
        except CoordinatorError:  # too few are in sync, or the disk fails until another leads
            self._time_out_at(self.node.now_ms + RETRY_MS, transactional_id)

    # ------------------------------------------------------------------------------------------ forgetting

    def _expire_later(self, delay_ms: int | None = None) -> None:
        if delay_ms is None:
            delay_ms = self.node.settings.get("transaction.remove.expired.transaction.cleanup.interval.ms")
        self._expiry = self.node.timers.at(self.node.now_ms + delay_ms, self._expire)

    def _expire(self) -> None:
        """Forget transactional ids that nobody has used for long, a bounded number at a time."""
        before_ms = self.node.now_ms - self.node.settings.get("transactional.id.expiration.ms")
        expired = self._idle_since(before_ms, EXPIRED_PER_WRITE)
        if expired and self._forget(expired):
            self._expire_later(0)
        else:
            self._expire_later()

    def _idle_since(self, before_ms: int, at_most: int) -> list[str]:
        """Transactional ids that were last used before a time and have nothing open, the oldest first."""
        found: list[str] = []
        for transactional_id, transaction in self.transactions.items():
            if transaction.last_update_ms > before_ms or len(found) == at_most:
                break
            if transaction.state in IDLE:
                found.append(transactional_id)
        return found

    def _forget(self, transactional_ids: Sequence[str]) -> bool:
        try:
            self.shard.check_ready()
            self.shard.write([(encode_key(transactional_id), None) for transactional_id in transactional_ids])
        except CoordinatorError:
            return False
        return True

    def make_room(self) -> None:
        """Before a new transactional id: at the limit the one that was idle for longest must go, or all wait.

        Strangers can make up ids at will. An id that is forgotten is as one that has expired.
        """
        held_bytes = sum(
            shard.state.held_bytes
            for shard in self.node.shards.values()
            if isinstance(shard.state, TransactionsState)
        )
        if held_bytes <= self.node.settings.get("transaction.coordinator.state.max.bytes"):
            return
        idle = self._idle_since(self.node.now_ms - IDLE_MS_BEFORE_EVICTION, 1)
        if not idle or not self._forget(idle):
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "too many transactional ids")


def transactions_of(shard: Shard) -> TransactionsState:
    """The transactional ids in a shard of `__transaction_state`."""
    if not isinstance(shard.state, TransactionsState):
        raise TypeError(f"{shard.partition.name} holds no transactions")
    return shard.state


def find_transactions(node: Node, transactional_id: str) -> TransactionsState:
    """What coordinates a transactional id; raises `CoordinatorError` if it is elsewhere or not ready."""
    return transactions_of(find_shard(node, TRANSACTION_STATE, transactional_id))


def _held_bytes(transaction: Transaction | None) -> int:
    if transaction is None:
        return 0
    names = len(transaction.transactional_id)
    return TRANSACTION_BYTES + 2 * names + PARTITION_BYTES * len(transaction.partitions)
