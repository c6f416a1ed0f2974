"""InitProducerId and DescribeProducers: who may write, and what partitions remember of them.

Version notes: InitProducerId 3 lets a producer go on after an error, 4 tells a fenced one from other errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gapless.core.api.registry import handles
from gapless.core.contract import Request
from gapless.core.partition import Partition
from gapless.core.producer_id_block import take_producer_id
from gapless.core.shard import CoordinatorError
from gapless.core.transactions import rules
from gapless.core.transactions.replies import commit_error, fenced_error
from gapless.core.transactions.state import find_transactions
from gapless.core.transactions.transaction import State, Transaction
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from gapless.wire.transaction_records import MAX_ID_BYTES

if TYPE_CHECKING:
    from gapless.core.node import Node

TopicAnswer = DescribeProducersResponse.TopicResponse
PartitionAnswer = TopicAnswer.PartitionResponse


@handles(ApiKey.INIT_PRODUCER_ID, 0, 5)
def init_producer_id(node: Node, request: Request) -> Any | None:
    """A fresh id for an idempotent producer; a transactional one keeps its id, under a new epoch."""
    if request.body.transactional_id is not None:
        return _Initialization(node, request).begin()
    take_producer_id(
        node,
        lambda producer_id: node.reply(request, _given(ErrorCode.NONE, (producer_id, 0))),
        lambda: node.reply(request, _given(ErrorCode.COORDINATOR_NOT_AVAILABLE)),
    )
    return None


def _given(error: ErrorCode, producer: tuple[int, int] = (-1, -1)) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        throttle_time_ms=0, error_code=int(error), producer_id=producer[0], producer_epoch=producer[1]
    )


class _Initialization:
    """A transactional producer starts: it gets a new epoch, and what its predecessor left open is aborted."""

    def __init__(self, node: Node, request: Request) -> None:
        self._node = node
        self._request = request
        self._body: InitProducerIdRequest = request.body
        self._id: str = request.body.transactional_id
        self._claimed: tuple[int, int] | None = (self._body.producer_id, self._body.producer_epoch)
        if request.header.api_version < 3 or self._claimed == (-1, -1):
            self._claimed = None

    def begin(self) -> InitProducerIdResponse | None:
        """The refusal, if it is plain from the request; else the answer follows."""
        if not self._id or len(self._id.encode()) > MAX_ID_BYTES:
            return _given(ErrorCode.INVALID_REQUEST)
        if self._claimed is not None and -1 in self._claimed:
            return _given(ErrorCode.INVALID_REQUEST)
        if not 0 < self._body.transaction_timeout_ms <= self._node.settings.get("transaction.max.timeout.ms"):
            return _given(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        self._start(None)
        return None

    def _start(self, new_id: int | None) -> None:
        """Decide on what is known now; comes again with a fresh producer id if one is needed."""
        try:
            transactions = find_transactions(self._node, self._id)
            current = transactions.transactions.get(self._id)
            if current is not None:
                rules.check_start(current, self._claimed)
                if current.state is State.ONGOING:
                    transactions.fence(self._id)
                    raise CoordinatorError(ErrorCode.CONCURRENT_TRANSACTIONS)
            if new_id is None and rules.start_needs_id(current, self._claimed):
                transactions.make_room()
                take_producer_id(
                    self._node, self._start, lambda: self._refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
                )
                return
            started = self._started(current, new_id)
            transactions.write(started)
        except CoordinatorError as error:
            self._refuse(error.code)
            return
        given = _given(ErrorCode.NONE, started.producer)
        transactions.shard.answer(self._request, given, failed=lambda error: _given(commit_error(error)))

    def _started(self, current: Transaction | None, new_id: int | None) -> Transaction:
        timeout_ms: int = self._body.transaction_timeout_ms
        if current is not None:
            return rules.restart(current, self._claimed, timeout_ms, new_id, self._node.now_ms)
        if new_id is None:
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return rules.start(self._id, new_id, timeout_ms, self._node.now_ms)

    def _refuse(self, error: ErrorCode) -> None:
        told = fenced_error(error, knows_fencing=self._request.header.api_version >= 4)
        self._node.reply(self._request, _given(told))


@handles(ApiKey.DESCRIBE_PRODUCERS, 0, 0)
def describe_producers(node: Node, request: Request) -> DescribeProducersResponse:
    """The producers that each partition remembers."""
    body: DescribeProducersRequest = request.body
    wanted: dict[str, dict[int, None]] = {}  # asked twice, told once
    for topic in body.topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return DescribeProducersResponse(
        throttle_time_ms=0,
        topics=[
            TopicAnswer(name=name, partitions=[_describe(node, name, index) for index in indexes])
            for name, indexes in wanted.items()
        ],
    )


def _describe(node: Node, topic: str, index: int) -> PartitionAnswer:
    partition = node.partitions.get((topic, index))
    if partition is None:
        error = node.absence(topic, index)
    else:
        error = partition.leadership_error(-1)
    return PartitionAnswer(
        partition_index=index,
        error_code=int(error),
        error_message=None,
        active_producers=[] if error or partition is None else _active(partition),
    )


def _active(partition: Partition) -> list[PartitionAnswer.ProducerState]:
    return [
        PartitionAnswer.ProducerState(
            producer_id=producer_id,
            producer_epoch=producer.epoch,
            last_sequence=producer.last_sequence,
            last_timestamp=producer.last_timestamp_ms,
            coordinator_epoch=producer.coordinator_epoch,
            current_txn_start_offset=partition.producers.open_transactions.get(producer_id, -1),
        )
        for producer_id, producer in partition.producers
    ]
