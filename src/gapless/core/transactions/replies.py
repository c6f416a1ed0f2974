"""What clients of transactions are told, where their version or the way it goes asks for another code."""

from __future__ import annotations

from gapless.wire.errors import ErrorCode


def fenced_error(error: ErrorCode, *, knows_fencing: bool) -> ErrorCode:
    """Older clients know a fenced producer by another code."""
    if error is ErrorCode.PRODUCER_FENCED and not knows_fencing:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def commit_error(error: ErrorCode) -> ErrorCode:
    """A record of the coordinator was not committed: the client is to look for the coordinator again."""
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if error is ErrorCode.REQUEST_TIMED_OUT else error


_LATER = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
)
"""The coordinator of transactions, a broker that the client has not asked, could not be reached or is behind.

One that is behind does not know a new topic yet, and then adds none of the partitions. A client ends its
transaction at OPERATION_NOT_ATTEMPTED.
"""


def produce_error(error: ErrorCode, version: int) -> ErrorCode:
    """Why a partition is not part of a transaction, in codes that a version of Produce knows.

    Clients do not expect to be told of coordinators here: not enough replicas is what makes them try again.
    """
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < 11:
        return ErrorCode.INVALID_TXN_STATE
    if error in _LATER or (error is ErrorCode.CONCURRENT_TRANSACTIONS and version < 12):
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return error


def offsets_error(error: ErrorCode, version: int) -> ErrorCode:
    """The same in codes that a version of TxnOffsetCommit knows."""
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < 4:
        return ErrorCode.INVALID_TXN_STATE
    if error in _LATER or (error is ErrorCode.CONCURRENT_TRANSACTIONS and version < 5):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return error
