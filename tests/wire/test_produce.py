"""Produce at every version: what kafka-python encodes we decode, what we encode it decodes."""

from __future__ import annotations

import struct
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.producer.produce import ProduceRequest as TheirRequest
from kafka.protocol.producer.produce import ProduceResponse as TheirResponse

from gapless.wire.errors import ErrorCode, MalformedMessage
from gapless.wire.produce import (
    MAX_VERSION,
    MIN_VERSION,
    ProducePartition,
    ProducePartitionResult,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    ProduceTopicResult,
    decode_request,
)
from gapless.wire.request import RequestHeader, decode_body, encode_reply
from tests.wire.made_messages import make_message

VERSIONS = range(MIN_VERSION, MAX_VERSION + 1)
TOPIC_ID = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")


def encoded(request: Any, version: int) -> bytearray:
    return bytearray(request.encode(version=version))


def decode(body: bytes | bytearray, version: int) -> ProduceRequest:
    request = decode_body(RequestHeader(0, version, 1, None), memoryview(body), 0)
    assert isinstance(request, ProduceRequest)
    return request


def as_ours(theirs: Any, version: int) -> ProduceRequest:
    """The request that kafka-python's is in our words."""
    by_id = version >= 13
    return ProduceRequest(
        theirs.transactional_id,
        theirs.acks,
        theirs.timeout_ms,
        [
            ProduceTopic(
                None if by_id else topic.name,
                topic.topic_id if by_id else None,
                [
                    ProducePartition(data.index, None if data.records is None else memoryview(data.records))
                    for data in topic.partition_data
                ],
            )
            for topic in theirs.topic_data
        ],
    )


def test_the_versions_are_kafkas() -> None:
    assert TheirRequest.json["validVersions"] == f"{MIN_VERSION}-{MAX_VERSION}"


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_of_kafka_python_decode(version: int) -> None:
    random = Random(version)
    for _ in range(30):
        theirs = make_message(TheirRequest, version, random)
        assert decode(encoded(theirs, version), version) == as_ours(theirs, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_records_are_writable_views_of_the_frame(version: int) -> None:
    data = TheirRequest.TopicProduceData.PartitionProduceData(index=3, records=b"records")
    topic = TheirRequest.TopicProduceData(name="t", topic_id=TOPIC_ID, partition_data=[data])
    frame = encoded(TheirRequest(acks=-1, timeout_ms=1000, topic_data=[topic]), version)
    payload = decode(frame, version).topics[0].partitions[0].payload
    assert payload is not None
    payload[:3] = b"REC"
    assert b"RECords" in frame


@pytest.mark.parametrize("version", VERSIONS)
def test_a_partition_may_have_no_records_at_all(version: int) -> None:
    data = TheirRequest.TopicProduceData.PartitionProduceData(index=0, records=None)
    topic = TheirRequest.TopicProduceData(name="t", topic_id=TOPIC_ID, partition_data=[data])
    request = decode(encoded(TheirRequest(acks=1, timeout_ms=5, topic_data=[topic]), version), version)
    assert request.topics[0].partitions == [ProducePartition(0, None)]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_truncation_of_a_request_is_malformed(version: int) -> None:
    body = encoded(make_message(TheirRequest, version, Random(version + 100)), version)
    for length in range(min(len(body), 400)):
        with pytest.raises(MalformedMessage):
            decode(body[:length], version)
    with pytest.raises(MalformedMessage, match="follow"):
        decode(body + b"\x00", version)


@given(version=st.sampled_from(VERSIONS), body=st.binary(max_size=120))
def test_arbitrary_bytes_decode_or_are_malformed(version: int, body: bytes) -> None:
    try:
        _, end = decode_request(memoryview(body), 0, version)
    except MalformedMessage:
        return
    assert end <= len(body)


@given(version=st.sampled_from(VERSIONS), seed=st.integers(0, 50), data=st.data())
def test_mutated_requests_decode_or_are_malformed(version: int, seed: int, data: st.DataObject) -> None:
    body = encoded(make_message(TheirRequest, version, Random(seed)), version)
    position = data.draw(st.integers(0, len(body) - 1))
    body[position : position + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=6))
    try:
        _, end = decode_request(memoryview(body), 0, version)
    except MalformedMessage:
        return
    assert end <= len(body)


@pytest.mark.parametrize(
    ("version", "body"),
    [
        pytest.param(7, b"\xff\xff" + bytes(6) + b"\x7f\xff\xff\xff", id="2^31-1 topics"),
        pytest.param(7, b"\xff\xff" + bytes(6) + b"\xff\xff\xff\xff", id="null topics"),
        pytest.param(10, b"\x00" + bytes(6) + b"\xff\xff\xff\xff\x0f", id="2^32-2 topics"),
        pytest.param(10, b"\x00" + bytes(6) + b"\x00\x00", id="null topics, compact"),
        pytest.param(7, b"\xff\xff" + bytes(6) + struct.pack(">ihi", 1, -1, 0), id="a topic without name"),
        pytest.param(10, b"\x00" + bytes(6) + b"\x02\x00\x01\x00\x00", id="a topic without name, compact"),
        pytest.param(
            7, b"\xff\xff" + bytes(6) + struct.pack(">ihiii", 1, 0, 1, 0, 2**31 - 1), id="2 GB of records"
        ),
        pytest.param(7, b"\xff\xff" + bytes(6) + struct.pack(">ihiii", 1, 0, 1, 0, -2), id="minus two bytes"),
    ],
)
def test_absurd_requests_are_malformed(version: int, body: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode(body, version)


def result(random: Random) -> ProducePartitionResult:
    return ProducePartitionResult(
        partition=random.randrange(1000),
        error=random.choice([0, ErrorCode.NOT_LEADER_OR_FOLLOWER, 87]),
        base_offset=random.randrange(-1, 2**63),
        log_append_time_ms=random.randrange(-1, 2**50),
        log_start_offset=random.randrange(-1, 2**63),
        error_message=random.choice([None, "", "who € knows"]),
        current_leader=random.choice([None, (5, 17)]),
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_replies_are_decoded_by_kafka_python(version: int) -> None:
    random = Random(version)
    for _ in range(30):
        ours = ProduceResponse(
            [
                ProduceTopicResult(
                    None if version >= 13 else f"topic-{number}",
                    TOPIC_ID if version >= 13 else None,
                    [result(random) for _ in range(random.choice([0, 1, 3, 200]))],
                )
                for number in range(random.choice([0, 1, 2]))
            ],
            throttle_time_ms=random.randrange(100),
        )
        (frame,) = encode_reply(RequestHeader(0, version, 5, None), ours)
        assert isinstance(frame, bytes)
        assert struct.unpack_from(">ii", frame) == (len(frame) - 4, 5)
        theirs = TheirResponse.decode(frame[4:], version=version, header=True)
        assert theirs.throttle_time_ms == ours.throttle_time_ms
        assert len(theirs.responses) == len(ours.topics)
        for their_topic, our_topic in zip(theirs.responses, ours.topics, strict=True):
            assert (their_topic.topic_id if version >= 13 else their_topic.name) == (
                TOPIC_ID if version >= 13 else our_topic.name
            )
            for their_result, our_result in zip(
                their_topic.partition_responses, our_topic.partitions, strict=True
            ):
                check_result(their_result, our_result, version)


def check_result(theirs: Any, ours: ProducePartitionResult, version: int) -> None:
    assert (theirs.index, theirs.error_code, theirs.base_offset, theirs.log_append_time_ms) == (
        ours.partition,
        ours.error,
        ours.base_offset,
        ours.log_append_time_ms,
    )
    if version >= 5:
        assert theirs.log_start_offset == ours.log_start_offset
    if version >= 8:
        assert theirs.record_errors == []
        assert theirs.error_message == ours.error_message
    if version >= 10:
        leader = theirs.current_leader and (
            theirs.current_leader.leader_id,
            theirs.current_leader.leader_epoch,
        )
        assert leader == ours.current_leader
