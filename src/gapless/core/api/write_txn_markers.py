"""WriteTxnMarkers: a coordinator tells partitions how a transaction ended; or an administrator does.

Version notes: 2 tells the transaction's protocol, so that a marker of the newer one that comes late can be
told from one for the transaction at hand.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from gapless.core.api.registry import handles
from gapless.core.contract import Request, TopicPartition
from gapless.core.transactions.markers import Ending, write_marker
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse

if TYPE_CHECKING:
    from gapless.core.node import Node

TIMEOUT_MS = 30_000

MarkerResult = WriteTxnMarkersResponse.WritableTxnMarkerResult
TopicResult = MarkerResult.WritableTxnMarkerTopicResult
PartitionResult = TopicResult.WritableTxnMarkerPartitionResult


@handles(ApiKey.WRITE_TXN_MARKERS, 1, 2)
def write_txn_markers(node: Node, request: Request) -> Any | None:
    """Answered once all markers are committed, or it is known why not."""
    return _Markers(node, request).write()


class _Markers:
    """One request, and its reply in the making."""

    def __init__(self, node: Node, request: Request) -> None:
        self._node = node
        self._request = request
        self._asked = 0
        self._open: dict[int, PartitionResult] = {}
        """The results that are not known yet, by the order in which they were asked for."""

    def write(self) -> WriteTxnMarkersResponse | None:
        body: WriteTxnMarkersRequest = self._request.body
        response = WriteTxnMarkersResponse(markers=[self._write(marker) for marker in body.markers])

        def poll(timed_out: bool) -> WriteTxnMarkersResponse | None:
            if self._open and not timed_out:
                return None
            for result in self._open.values():
                result.error_code = int(ErrorCode.REQUEST_TIMED_OUT)
            return response

        message = poll(False)
        if message is None:
            watched = {
                TopicPartition(topic.name, index): None
                for marker in body.markers
                for topic in marker.topics
                for index in topic.partition_indexes
            }
            self._node.waiting.add(self._request, self._node.now_ms + TIMEOUT_MS, list(watched), poll)
        return message

    def _write(self, marker: WriteTxnMarkersRequest.WritableTxnMarker) -> MarkerResult:
        version = marker.transaction_version if self._request.header.api_version >= 2 else 0
        ending = Ending(
            (marker.producer_id, marker.producer_epoch),
            marker.transaction_result,
            marker.coordinator_epoch,
            version,
        )
        return MarkerResult(
            producer_id=marker.producer_id,
            topics=[
                TopicResult(
                    name=topic.name,
                    partitions=[
                        self._write_one(TopicPartition(topic.name, index), ending)
                        for index in topic.partition_indexes
                    ],
                )
                for topic in marker.topics
            ],
        )

    def _write_one(self, name: TopicPartition, ending: Ending) -> PartitionResult:
        result = PartitionResult(partition_index=name.partition, error_code=0)
        self._asked += 1
        number = self._asked
        self._open[number] = result
        write_marker(self._node, name, ending, partial(self._answered, number))
        return result

    def _answered(self, number: int, error: ErrorCode) -> None:
        result = self._open.pop(number, None)
        if result is not None:
            result.error_code = int(error)
