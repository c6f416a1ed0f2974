"""Fetch at every version and in both directions: ours to kafka-python's codec, its to ours."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.fetch import FetchRequest as TheirRequest
from kafka.protocol.consumer.fetch import FetchResponse as TheirResponse

from gapless.wire.errors import MalformedMessage
from gapless.wire.fetch import (
    MAX_VERSION,
    MIN_VERSION,
    NO_HIGH_WATERMARK,
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResult,
    ForgottenTopic,
    decode_request,
)
from gapless.wire.fetch_peer import FetchedRecords, decode_response, encode_request
from gapless.wire.request import RequestHeader, decode_body, encode_reply
from tests.wire.made_messages import make_message

VERSIONS = range(MIN_VERSION, MAX_VERSION + 1)
TOPIC_ID = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")


@dataclass
class Stored:
    """Records that lie elsewhere."""

    content: bytes

    @property
    def size(self) -> int:
        return len(self.content)


def decode(body: bytes | bytearray, version: int) -> FetchRequest:
    request = decode_body(RequestHeader(1, version, 1, None), memoryview(body), 0)
    assert isinstance(request, FetchRequest)
    return request


def whole(parts: list[Any]) -> bytes:
    """A reply as the shell would write it."""
    return b"".join(part.content if isinstance(part, Stored) else part for part in parts)


def as_ours(theirs: Any, version: int) -> FetchRequest:
    """The request that kafka-python's is in our words; fields of other versions have their defaults."""
    by_id = version >= 13

    def name(topic: Any) -> tuple[str | None, UUID | None]:
        return (None, topic.topic_id) if by_id else (topic.topic, None)

    state = theirs.replica_state if version >= 15 else None
    return FetchRequest(
        replica_id=theirs.replica_id if version < 15 else state.replica_id if state else -1,
        replica_epoch=state.replica_epoch if state else -1,
        max_wait_ms=theirs.max_wait_ms,
        min_bytes=theirs.min_bytes,
        max_bytes=theirs.max_bytes,
        isolation_level=theirs.isolation_level,
        session_id=theirs.session_id,
        session_epoch=theirs.session_epoch,
        topics=[
            FetchTopic(
                *name(topic),
                [
                    FetchPartition(
                        asked.partition,
                        asked.current_leader_epoch,
                        asked.fetch_offset,
                        asked.last_fetched_epoch,
                        asked.log_start_offset,
                        asked.partition_max_bytes,
                        asked.high_watermark if version >= 18 else NO_HIGH_WATERMARK,
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in theirs.topics
        ],
        forgotten=[ForgottenTopic(*name(topic), topic.partitions) for topic in theirs.forgotten_topics_data],
        rack_id=theirs.rack_id,
        cluster_id=theirs.cluster_id if version >= 12 else None,
    )


def test_the_versions_are_kafkas() -> None:
    assert TheirRequest.json["validVersions"] == f"{MIN_VERSION}-{MAX_VERSION}"


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_of_kafka_python_decode(version: int) -> None:
    random = Random(version)
    for _ in range(40):
        theirs = make_message(TheirRequest, version, random)
        assert decode(theirs.encode(version=version), version) == as_ours(theirs, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_our_requests_are_decoded_by_kafka_python_and_by_ourselves(version: int) -> None:
    random = Random(version)
    for _ in range(40):
        ours = as_ours(make_message(TheirRequest, version, random), version)
        body = encode_request(ours, version)
        assert decode(body, version) == ours
        theirs = TheirRequest.decode(body, version=version)
        assert as_ours(theirs, version) == ours


@pytest.mark.parametrize("version", VERSIONS)
def test_every_truncation_of_a_request_is_malformed(version: int) -> None:
    body = bytes(make_message(TheirRequest, version, Random(version + 7)).encode(version=version))
    for length in range(min(len(body), 300)):
        with pytest.raises(MalformedMessage):
            decode(body[:length], version)
    with pytest.raises(MalformedMessage, match="follow"):
        decode(body + b"\x00", version)


@given(version=st.sampled_from(VERSIONS), body=st.binary(max_size=150))
def test_arbitrary_bytes_decode_or_are_malformed(version: int, body: bytes) -> None:
    for decoder in (decode_request, decode_response):
        try:
            _, end = decoder(memoryview(body), 0, version)
        except MalformedMessage:
            continue
        assert end <= len(body)


@given(version=st.sampled_from(VERSIONS), seed=st.integers(0, 50), data=st.data())
def test_mutated_messages_decode_or_are_malformed(version: int, seed: int, data: st.DataObject) -> None:
    for message, decoder in ((TheirRequest, decode_request), (TheirResponse, decode_response)):
        body = bytearray(make_message(message, version, Random(seed)).encode(version=version))
        position = data.draw(st.integers(0, len(body) - 1))
        body[position : position + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=6))
        try:
            _, end = decoder(memoryview(body), 0, version)
        except MalformedMessage:
            continue
        assert end <= len(body)


HEAD = bytes(17) + bytes(8)


@pytest.mark.parametrize(
    ("version", "body"),
    [
        pytest.param(11, HEAD + b"\x7f\xff\xff\xff", id="2^31-1 topics"),
        pytest.param(12, HEAD + b"\xff\xff\xff\xff\x0f", id="2^32-2 topics"),
        pytest.param(
            11, HEAD + bytes(4) + struct.pack(">ihi", 1, 0, 2**31 - 1), id="2^31-1 forgotten partitions"
        ),
        pytest.param(11, HEAD + bytes(4) + struct.pack(">ihi", 1, 0, -1), id="null forgotten partitions"),
        pytest.param(12, HEAD + b"\x01\x01\x01" + b"\xff\xff\xff\xff\x0f", id="2^32-1 tagged fields"),
        pytest.param(12, HEAD + b"\x01\x01\x01" + b"\x01\x00\x05\x02ab\x00", id="a tag with a wrong size"),
    ],
)
def test_absurd_requests_are_malformed(version: int, body: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode(body, version)


def test_a_follower_is_known_by_its_tag_from_version_15_on() -> None:
    request = FetchRequest(replica_id=3, replica_epoch=9, cluster_id="c")
    decoded = decode(encode_request(request, 17), 17)
    assert (decoded.replica_id, decoded.replica_epoch, decoded.cluster_id) == (3, 9, "c")


def test_the_high_watermark_of_a_follower_is_kept() -> None:
    asked = FetchPartition(0, high_watermark=55)
    request = FetchRequest(topics=[FetchTopic(None, TOPIC_ID, [asked])])
    assert decode(encode_request(request, 18), 18).topics[0].partitions == [asked]


def make_response(version: int, random: Random) -> FetchResponse:
    def result() -> FetchPartitionResult:
        made = FetchPartitionResult(
            partition=random.randrange(1000),
            error=random.choice([0, 1, 6]),
            high_watermark=random.randrange(-1, 2**63),
            last_stable_offset=random.randrange(-1, 2**63),
            aborted=random.choice([None, [], [(7, 100), (8, 2**40)]]),
            records=random.choice([None, Stored(b""), Stored(b"x" * 10), Stored(random.randbytes(100_000))]),
        )
        if version >= 5:
            made.log_start_offset = random.randrange(-1, 2**63)
        if version >= 11:
            made.preferred_read_replica = random.choice([-1, 2])
        if version >= 12:
            made.diverging_epoch = random.choice([None, (3, 2**35)])
            made.current_leader = random.choice([None, (1, 12)])
        return made

    return FetchResponse(
        error=random.choice([0, 70]) if version >= 7 else 0,
        session_id=random.choice([0, 123456]) if version >= 7 else 0,
        topics=[
            FetchTopicResult(
                None if version >= 13 else f"topic-{number}",
                TOPIC_ID if version >= 13 else None,
                [result() for _ in range(random.choice([0, 1, 3]))],
            )
            for number in range(random.choice([0, 1, 2]))
        ],
        throttle_time_ms=random.randrange(100),
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_replies_are_decoded_by_kafka_python(version: int) -> None:
    random = Random(version)
    for _ in range(30):
        ours = make_response(version, random)
        parts = encode_reply(RequestHeader(1, version, 5, None), ours)
        assert all(part.size > 0 for part in parts if isinstance(part, Stored))
        frame = whole(parts)
        assert struct.unpack_from(">ii", frame) == (len(frame) - 4, 5)
        theirs = TheirResponse.decode(frame[4:], version=version, header=True)
        assert theirs.throttle_time_ms == ours.throttle_time_ms
        if version >= 7:
            assert (theirs.error_code, theirs.session_id) == (ours.error, ours.session_id)
        for their_topic, our_topic in zip(theirs.responses, ours.topics, strict=True):
            if version >= 13:
                assert their_topic.topic_id == our_topic.topic_id
            else:
                assert their_topic.topic == our_topic.name
            for their_result, our_result in zip(their_topic.partitions, our_topic.partitions, strict=True):
                check_result(their_result, our_result, version)


def check_result(theirs: Any, ours: FetchPartitionResult, version: int) -> None:
    assert (theirs.partition_index, theirs.error_code) == (ours.partition, ours.error)
    assert (theirs.high_watermark, theirs.last_stable_offset) == (
        ours.high_watermark,
        ours.last_stable_offset,
    )
    aborted = theirs.aborted_transactions
    assert (None if aborted is None else [(a.producer_id, a.first_offset) for a in aborted]) == ours.aborted
    content = ours.records.content if isinstance(ours.records, Stored) else b""
    assert bytes(theirs.records) == content
    if version >= 5:
        assert theirs.log_start_offset == ours.log_start_offset
    if version >= 11:
        assert theirs.preferred_read_replica == ours.preferred_read_replica
    if version >= 12:
        diverging = theirs.diverging_epoch
        assert (diverging and (diverging.epoch, diverging.end_offset)) == ours.diverging_epoch
        leader = theirs.current_leader
        assert (leader and (leader.leader_id, leader.leader_epoch)) == ours.current_leader


@pytest.mark.parametrize("version", VERSIONS)
def test_our_replies_are_decoded_by_ourselves(version: int) -> None:
    random = Random(version)
    for _ in range(30):
        ours = make_response(version, random)
        frame = whole(encode_reply(RequestHeader(1, version, 5, None), ours))
        start = 9 if version >= 12 else 8
        decoded, end = decode_response(memoryview(frame), start, version)
        assert end == len(frame)
        for topic in ours.topics:
            for made in topic.partitions:
                stored = made.records
                empty = not isinstance(stored, Stored) or not stored.size
                made.records = None if empty else FetchedRecords(memoryview(stored.content))  # type: ignore[union-attr]
        assert decoded == ours


@pytest.mark.parametrize("version", VERSIONS)
def test_replies_of_kafka_python_decode(version: int) -> None:
    random = Random(version)
    for _ in range(20):
        theirs = make_message(TheirResponse, version, random)
        body = bytes(theirs.encode(version=version))
        decoded, end = decode_response(memoryview(body), 0, version)
        assert end == len(body)
        assert [len(topic.partitions) for topic in decoded.topics] == [
            len(topic.partitions) for topic in theirs.responses
        ]
        for their_topic, our_topic in zip(theirs.responses, decoded.topics, strict=True):
            for their_result, our_result in zip(their_topic.partitions, our_topic.partitions, strict=True):
                records = our_result.records
                content = bytes(records.payload) if isinstance(records, FetchedRecords) else b""
                our_result.records = Stored(content)
                their_result.records = their_result.records or b""
                check_result(their_result, our_result, version)


def test_records_are_passed_on_untouched() -> None:
    stored = Stored(b"batches")
    response = FetchResponse(topics=[FetchTopicResult("t", None, [FetchPartitionResult(0, records=stored)])])
    parts = encode_reply(RequestHeader(1, 12, 1, None), response)
    assert any(part is stored for part in parts)
