"""InitProducerId and DescribeProducers: who may write idempotently, and what partitions remember of them.

Ids come from blocks that are reserved in the journal, so no id is ever given twice, whatever crashes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gapless.core.api.registry import handles
from gapless.core.changes import Decision
from gapless.core.contract import Request
from gapless.core.partition import Partition
from gapless.core.records import ProducerIdsReserved
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

if TYPE_CHECKING:
    from gapless.core.node import Node

BLOCK_SIZE = 1000
TopicAnswer = DescribeProducersResponse.TopicResponse
PartitionAnswer = TopicAnswer.PartitionResponse


@handles(ApiKey.INIT_PRODUCER_ID, 0, 5)
def init_producer_id(node: Node, request: Request) -> Any | None:
    """A fresh id at epoch 0, for an idempotent producer."""
    body: InitProducerIdRequest = request.body
    if body.transactional_id is not None:
        return _given(ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, -1)
    if node.producer_ids:
        return _take(node)
    block = range(0)

    def decide() -> Decision:
        nonlocal block
        if node.producer_ids:  # an earlier request in the queue fetched a block for all
            return Decision([], lambda: _take(node))
        block = range(node.image.next_producer_id, node.image.next_producer_id + BLOCK_SIZE)
        return Decision([ProducerIdsReserved(block.stop)], answer)

    def answer() -> InitProducerIdResponse:
        node.producer_ids = block
        return _take(node)

    node.change(request, decide, failed=lambda _reason: _given(ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, -1))
    return None


def _take(node: Node) -> InitProducerIdResponse:
    producer_id, node.producer_ids = node.producer_ids[0], node.producer_ids[1:]
    return _given(ErrorCode.NONE, producer_id, 0)


def _given(error: ErrorCode, producer_id: int, epoch: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        throttle_time_ms=0, error_code=int(error), producer_id=producer_id, producer_epoch=epoch
    )


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
