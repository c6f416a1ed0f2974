"""What is known of one transactional id, and how it becomes a record and is made of one."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from gapless.core.contract import TopicPartition
from gapless.wire.transaction_records import TransactionValue, decode_value, encode_value

NO_PRODUCER_ID = -1
NO_EPOCH = -1
EPOCH_MAX = 2**15 - 1

EACH_WITH_ITS_EPOCH = 2
"""The protocol (`transaction.version`) in which every transaction has an epoch of its own (KIP-890)."""


class State(IntEnum):
    """A transaction's states, as Kafka numbers them in its records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def kafka_name(self) -> str:
        """As Kafka's tools spell it: PrepareCommit."""
        return "".join(word.capitalize() for word in self.name.split("_"))


PREPARED = (State.PREPARE_COMMIT, State.PREPARE_ABORT)
IDLE = (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id: who its producer is, and how far its transaction has come."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: State = State.EMPTY
    partitions: dict[TopicPartition, None] = field(default_factory=dict)
    """The parts of the transaction, in the order in which they were added; never changed in place."""
    last_update_ms: int = -1
    start_ms: int = -1
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer's id before the last change."""
    next_producer_id: int = NO_PRODUCER_ID
    """The id that follows when the epochs of this one are used up; set between prepared and complete."""
    client_version: int = 0
    """The protocol that the client spoke when it began or ended the transaction."""
    last_epoch: int = NO_EPOCH
    """The epoch before the last one that this producer asked for; it is not recorded, as in Kafka."""

    @property
    def producer(self) -> tuple[int, int]:
        return self.producer_id, self.producer_epoch

    @property
    def is_exhausted(self) -> bool:
        """Whether no epoch is left to give away: the very last one is kept to fence with."""
        return is_exhausted(self.producer_epoch)

    @property
    def due_ms(self) -> int:
        """When an ongoing transaction is aborted."""
        return self.start_ms + self.timeout_ms


def is_exhausted(epoch: int) -> bool:
    """Whether no epoch after this one may be given to a producer."""
    return epoch >= EPOCH_MAX - 1


def to_record(transaction: Transaction) -> bytes:
    return encode_value(
        TransactionValue(
            transaction.producer_id,
            transaction.producer_epoch,
            transaction.timeout_ms,
            transaction.state,
            tuple(transaction.partitions),
            transaction.last_update_ms,
            transaction.start_ms,
            transaction.previous_producer_id,
            transaction.next_producer_id,
            transaction.client_version,
        )
    )


def from_record(transactional_id: str, data: bytes) -> Transaction:
    value = decode_value(data)
    return Transaction(
        transactional_id,
        value.producer_id,
        value.producer_epoch,
        value.timeout_ms,
        State(value.state),
        dict.fromkeys(TopicPartition(*place) for place in value.partitions),
        value.last_update_ms,
        value.start_ms,
        value.previous_producer_id,
        value.next_producer_id,
        value.client_version,
    )
