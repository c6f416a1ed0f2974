"""The rules of transactions (claim C8): what may become of a transaction.

They are pure: a transaction goes in, and what it becomes comes out, or `CoordinatorError` with what the
client is told.

A producer is known by its id and epoch. Whoever asks with an older epoch is a zombie. In the newer protocol
(KIP-890) ending a transaction raises the epoch, so that nothing that was sent for one transaction can reach
the next; in the older one the epoch rises when a producer starts, or is fenced.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from gapless.core.contract import TopicPartition
from gapless.core.shard import CoordinatorError
from gapless.core.transactions.transaction import (
    EACH_WITH_ITS_EPOCH,
    EPOCH_MAX,
    IDLE,
    NO_EPOCH,
    NO_PRODUCER_ID,
    PREPARED,
    State,
    Transaction,
    is_exhausted,
)
from gapless.wire.errors import ErrorCode

Producer = tuple[int, int]
"""Id and epoch."""


def _becomes(transaction: Transaction, now_ms: int, **changes: Any) -> Transaction:
    return replace(
        transaction, previous_producer_id=transaction.producer_id, last_update_ms=now_ms, **changes
    )


# -------------------------------------------------------------------------------------- a producer starts


def check_start(transaction: Transaction, claimed: Producer | None) -> None:
    """Whether a producer may start now; `claimed` is who it says it was until now."""
    if claimed is not None and not _is_successor(transaction, claimed):
        raise CoordinatorError(ErrorCode.PRODUCER_FENCED)
    if claimed not in (None, transaction.producer) and transaction.state is State.ONGOING:
        # Kafka would abort the transaction first and tell the zombie then.
        raise CoordinatorError(ErrorCode.PRODUCER_FENCED)
    if transaction.state in PREPARED:
        raise CoordinatorError(ErrorCode.CONCURRENT_TRANSACTIONS)


def _is_successor(transaction: Transaction, claimed: Producer) -> bool:
    claimed_id, claimed_epoch = claimed
    # The answer that told the new id, after the epochs of the old one were used up, may have been lost.
    was_told_a_new_id = claimed_id == transaction.previous_producer_id and is_exhausted(claimed_epoch)
    return claimed_id == transaction.producer_id or was_told_a_new_id


def start_needs_id(transaction: Transaction | None, claimed: Producer | None) -> bool:
    """Whether a producer that starts needs an id that nobody had before."""
    if transaction is None:
        return True
    is_current = claimed is None or claimed == transaction.producer
    return transaction.state in IDLE and transaction.is_exhausted and is_current


def start(transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
    """The first producer with a transactional id."""
    return Transaction(transactional_id, producer_id, 0, timeout_ms, last_update_ms=now_ms)


def restart(
    transaction: Transaction, claimed: Producer | None, timeout_ms: int, new_id: int | None, now_ms: int
) -> Transaction:
    """The next epoch for a producer that starts again; no transaction is open.

    One that claims its former epoch goes on after an error: nobody else has started meanwhile.
    """
    if start_needs_id(transaction, claimed):
        if new_id is None:
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no producer id was reserved")
        producer_id, epoch = new_id, 0
        last_epoch = NO_EPOCH if claimed is None else transaction.producer_epoch
    else:
        producer_id = transaction.producer_id
        epoch, last_epoch = _next_epoch(transaction, claimed)
    return _becomes(
        transaction,
        now_ms,
        state=State.EMPTY,
        producer_id=producer_id,
        producer_epoch=epoch,
        last_epoch=last_epoch,
        timeout_ms=timeout_ms,
        partitions={},
        start_ms=-1,
        next_producer_id=NO_PRODUCER_ID,
    )


def _next_epoch(transaction: Transaction, claimed: Producer | None) -> tuple[int, int]:
    epoch = transaction.producer_epoch
    if claimed is None:
        return epoch + 1, NO_EPOCH
    if claimed[1] == epoch:
        return epoch + 1, epoch
    if claimed[1] == transaction.last_epoch:
        return epoch, transaction.last_epoch  # it asks again: the answer was lost
    raise CoordinatorError(ErrorCode.PRODUCER_FENCED)


# ------------------------------------------------------------------------------------------------- parts


def check_producer(transaction: Transaction | None, producer: Producer) -> Transaction:
    """Whether this is the producer; a zombie is told so."""
    if transaction is None:
        raise CoordinatorError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    producer_id, epoch = producer
    if transaction.state in PREPARED and producer_id == transaction.next_producer_id:
        # It was told its next id before the old one's last transaction was complete.
        raise CoordinatorError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if producer_id != transaction.producer_id:
        raise CoordinatorError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if epoch != transaction.producer_epoch:
        raise CoordinatorError(ErrorCode.PRODUCER_FENCED)
    if transaction.state in PREPARED:
        raise CoordinatorError(ErrorCode.CONCURRENT_TRANSACTIONS)
    return transaction


def add(
    transaction: Transaction | None,
    producer: Producer,
    partitions: Iterable[TopicPartition],
    client_version: int,
    now_ms: int,
) -> Transaction | None:
    """The transaction with more parts, begun if it was not; None if it has all of them."""
    transaction = check_producer(transaction, producer)
    is_ongoing = transaction.state is State.ONGOING
    parts = transaction.partitions if is_ongoing else {}
    together = parts | dict.fromkeys(partitions)
    if is_ongoing and len(together) == len(parts):
        return None
    return _becomes(
        transaction,
        now_ms,
        state=State.ONGOING,
        partitions=together,
        start_ms=transaction.start_ms if is_ongoing else now_ms,
        client_version=client_version,
    )


def verify(
    transaction: Transaction | None, producer: Producer, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """For each partition whether it is part of the ongoing transaction."""
    transaction = check_producer(transaction, producer)
    return {
        partition: ErrorCode.NONE if partition in transaction.partitions else ErrorCode.TRANSACTION_ABORTABLE
        for partition in partitions
    }


# --------------------------------------------------------------------------------------------------- end


def end_needs_id(transaction: Transaction, client_version: int) -> bool:
    """Whether ending the transaction uses up the last epoch of its producer's id."""
    return client_version >= EACH_WITH_ITS_EPOCH and transaction.is_exhausted


def end(
    transaction: Transaction | None,
    producer: Producer,
    commit: bool,
    client_version: int,
) -> State | None:
    """How the transaction is to be prepared; None if it was ended so before, and this is a repetition."""
    if transaction is None:
        raise CoordinatorError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if client_version >= EACH_WITH_ITS_EPOCH:
        return _end_with_own_epoch(transaction, producer, commit)
    if producer[0] != transaction.producer_id:
        raise CoordinatorError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if producer[1] != transaction.producer_epoch:
        raise CoordinatorError(ErrorCode.PRODUCER_FENCED)
    if transaction.state is State.ONGOING:
        return State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
    _check_ended(transaction, commit)
    return None


def _check_ended(transaction: Transaction, commit: bool) -> None:
    """A repetition is fine if it asks for the same; otherwise there is nothing that it could end."""
    prepared = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
    complete = State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT
    if transaction.state is prepared:
        raise CoordinatorError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if transaction.state is not complete:
        raise CoordinatorError(ErrorCode.INVALID_TXN_STATE)


def _end_with_own_epoch(transaction: Transaction, producer: Producer, commit: bool) -> State | None:
    producer_id, epoch = producer
    if transaction.state in PREPARED and producer == identity_after(transaction):
        # It was told of its new epoch already, and is faster than the markers.
        raise CoordinatorError(ErrorCode.CONCURRENT_TRANSACTIONS)
    has_new_id = (
        producer_id == transaction.previous_producer_id
        and epoch == EPOCH_MAX - 1
        and transaction.producer_epoch == 0
    )
    if producer_id != transaction.producer_id and not has_new_id:
        raise CoordinatorError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    is_repetition = has_new_id or epoch + 1 == transaction.producer_epoch
    if is_repetition and transaction.state not in (State.ONGOING, State.EMPTY):
        _check_ended(transaction, commit)
        return None
    if epoch != transaction.producer_epoch:
        raise CoordinatorError(ErrorCode.PRODUCER_FENCED)
    if transaction.state is State.ONGOING and commit:
        return State.PREPARE_COMMIT
    if commit:
        raise CoordinatorError(ErrorCode.INVALID_TXN_STATE)
    # Even without parts an abort raises the epoch: what the producer sent may still be on its way.
    return State.PREPARE_ABORT


def prepare(
    transaction: Transaction, state: State, client_version: int, new_id: int | None, now_ms: int
) -> Transaction:
    """Decided, and on record: from here on the transaction can only go this way."""
    epoch, last_epoch = transaction.producer_epoch, transaction.last_epoch
    if client_version >= EACH_WITH_ITS_EPOCH:
        epoch, last_epoch = min(epoch + 1, EPOCH_MAX), epoch
    is_ongoing = transaction.state is State.ONGOING
    return _becomes(
        transaction,
        now_ms,
        state=state,
        producer_epoch=epoch,
        last_epoch=last_epoch,
        start_ms=transaction.start_ms if is_ongoing else now_ms,
        partitions=transaction.partitions if is_ongoing else {},
        next_producer_id=NO_PRODUCER_ID if new_id is None else new_id,
        client_version=client_version,
    )


def fence(transaction: Transaction, new_id: int | None, now_ms: int) -> Transaction:
    """Abort an ongoing transaction over its producer's head: a new one has started, or time is up.

    The epoch rises, whatever protocol the producer speaks, so that nothing of it can follow.
    """
    prepared = prepare(transaction, State.PREPARE_ABORT, EACH_WITH_ITS_EPOCH, new_id, now_ms)
    return replace(prepared, last_epoch=NO_EPOCH)


def complete(transaction: Transaction, now_ms: int) -> Transaction:
    """All markers are written."""
    committed = transaction.state is State.PREPARE_COMMIT
    producer_id, epoch = identity_after(transaction)
    return _becomes(
        transaction,
        now_ms,
        state=State.COMPLETE_COMMIT if committed else State.COMPLETE_ABORT,
        producer_id=producer_id,
        producer_epoch=epoch,
        partitions={},
        next_producer_id=NO_PRODUCER_ID,
    )


def identity_after(prepared: Transaction) -> Producer:
    """Who the producer is once a prepared transaction is complete."""
    if prepared.next_producer_id != NO_PRODUCER_ID:
        return prepared.next_producer_id, 0
    return prepared.producer
