"""Calls between brokers: what one encodes the other decodes, and the answer finds its way back."""

from __future__ import annotations

from uuid import UUID

import pytest

from gapless.core.api.api_versions import describe_versions
from gapless.wire.apis import ApiKey
from gapless.wire.call import answered_call, decode_answer, encode_call
from gapless.wire.errors import ErrorCode, MalformedMessage
from gapless.wire.fetch import (
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResult,
)
from gapless.wire.fetch_peer import FetchedRecords
from gapless.wire.messages import (
    ApiMessage,
    ApiVersionsRequest,
    OffsetForLeaderEpochRequest,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from gapless.wire.request import RequestHeader, decode_body, decode_header, encode_reply

ID = UUID(int=7, version=4)


@pytest.mark.parametrize(
    ("api_key", "version", "body"),
    [
        (ApiKey.API_VERSIONS, 0, ApiVersionsRequest()),
        (ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, OffsetForLeaderEpochRequest(replica_id=2, topics=[])),
        (ApiKey.WRITE_TXN_MARKERS, 1, WriteTxnMarkersRequest(markers=[])),
        (ApiKey.FETCH, 17, FetchRequest(2, 9, topics=[FetchTopic(None, ID, [FetchPartition(3, 4, 5)])])),
    ],
)
def test_the_other_side_understands_a_call(api_key: ApiKey, version: int, body: object) -> None:
    frame = encode_call(api_key, version, 77, b"gapless-broker-2", body)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header, position = decode_header(memoryview(frame)[4:])
    assert header == RequestHeader(api_key, version, 77, "gapless-broker-2")
    message = decode_body(header, memoryview(frame)[4:], position)
    if isinstance(body, FetchRequest):
        assert message == body
    else:
        assert type(message) is type(body)


def answer_frame(header: RequestHeader, message: ApiMessage) -> memoryview:
    (frame,) = encode_reply(header, message)
    assert isinstance(frame, bytes)
    return memoryview(frame)[4:]


def test_an_answer_is_understood_with_its_flexible_header() -> None:
    header = RequestHeader(ApiKey.WRITE_TXN_MARKERS, 1, 5, None)
    marker = WriteTxnMarkersResponse.WritableTxnMarkerResult(producer_id=12, topics=[])
    frame = answer_frame(header, WriteTxnMarkersResponse(markers=[marker]))
    assert answered_call(frame) == 5
    assert decode_answer(ApiKey.WRITE_TXN_MARKERS, 1, frame).markers[0].producer_id == 12


def test_api_versions_are_answered_without_a_flexible_header() -> None:
    for version in (0, 3):
        header = RequestHeader(ApiKey.API_VERSIONS, version, 6, None)
        frame = answer_frame(header, describe_versions(ErrorCode.NONE))
        assert decode_answer(ApiKey.API_VERSIONS, version, frame).error_code == 0


def test_fetched_records_are_views_of_the_frame() -> None:
    records = FetchedRecords(memoryview(b"batches"))
    topic = FetchTopicResult(None, ID, [FetchPartitionResult(1, 0, 5, 5, 0, records=records)])
    header = RequestHeader(ApiKey.FETCH, 17, 8, None)
    parts = encode_reply(header, FetchResponse(0, 1, [topic]))
    frame = bytearray().join(part if isinstance(part, bytes) else bytes(records.payload) for part in parts)
    answer = decode_answer(ApiKey.FETCH, 17, memoryview(frame)[4:])
    view = answer.topics[0].partitions[0].records.payload
    assert bytes(view) == b"batches"
    frame[frame.index(b"batches")] = ord("B")
    assert bytes(view) == b"Batches"


def test_an_answer_cut_short_is_refused() -> None:
    with pytest.raises(MalformedMessage):
        answered_call(memoryview(b"\0\0"))
    with pytest.raises(MalformedMessage):
        decode_answer(ApiKey.WRITE_TXN_MARKERS, 1, memoryview(b"\0\0\0\5\0\2"))
