"""Headers and bodies of requests, and the frames of replies, with kafka-python's own codec as the oracle."""

from __future__ import annotations

import struct
import subprocess
import sys
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.api_key import ApiKey as TheirApiKey
from kafka.protocol.consumer.fetch import FetchRequest as TheirFetchRequest
from kafka.protocol.producer.produce import ProduceRequest as TheirProduceRequest

from gapless.wire import messages
from gapless.wire.apis import FIRST_FLEXIBLE_VERSION, NEVER_FLEXIBLE, ApiKey
from gapless.wire.errors import ErrorCode, MalformedMessage
from gapless.wire.messages import (
    REQUESTS,
    ApiVersionsRequest,
    ApiVersionsResponse,
    CreateTopicsRequest,
    DescribeTopicPartitionsRequest,
    HeartbeatRequest,
    MetadataRequest,
    MetadataResponse,
    SyncGroupRequest,
)
from gapless.wire.request import RequestHeader, decode_body, decode_header, encode_reply, peek
from tests.wire.made_messages import make_message, versions_of

ALL_REQUESTS: dict[int, Any] = {**REQUESTS, 0: TheirProduceRequest, 1: TheirFetchRequest}
EVERY_VERSION = [
    pytest.param(message, version, id=f"{message.__name__}-v{version}")
    for message in REQUESTS.values()
    for version in versions_of(message)
]


def request_frame(
    message: Any, version: int, client_id: str | None = "tests", correlation_id: int = 7
) -> memoryview:
    """A request as kafka-python frames it, without the length."""
    message.API_VERSION = version
    message.with_header(correlation_id=correlation_id, client_id=client_id)
    return memoryview(bytes(message.encode(version=version, header=True)))


def decode(frame: memoryview) -> Any:
    header, offset = decode_header(frame)
    return decode_body(header, frame, offset)


def decode_bare(key: int, version: int, body: bytes) -> Any:
    return decode_body(RequestHeader(key, version, 1, None), memoryview(body), 0)


def test_api_keys_are_kafkas() -> None:
    ours = {key.name.replace("_", "").lower(): int(key) for key in ApiKey}
    theirs = {key.name.lower(): int(key) for key in TheirApiKey}
    assert ours == theirs


def test_flexible_versions_are_kafkas() -> None:
    theirs = {}
    for key, message in ALL_REQUESTS.items():
        flexible = message.json["flexibleVersions"]
        theirs[key] = NEVER_FLEXIBLE if flexible == "none" else int(flexible.rstrip("+"))
    assert theirs == FIRST_FLEXIBLE_VERSION


def test_replies_are_flexible_from_the_same_versions_as_requests() -> None:
    for key, message in REQUESTS.items():
        reply = getattr(messages, message.__name__.replace("Request", "Response"))
        assert key == reply.API_KEY
        assert reply.json["flexibleVersions"] == message.json["flexibleVersions"]


@pytest.mark.parametrize(("message", "version"), EVERY_VERSION)
def test_every_request_decodes_to_what_kafka_python_encoded(message: type[Any], version: int) -> None:
    random = Random(f"{message.__name__}{version}")
    for _ in range(6):
        sent = make_message(message, version, random)
        frame = request_frame(sent, version)
        header, offset = decode_header(frame)
        assert header == RequestHeader(message.API_KEY, version, 7, "tests")
        received: Any = decode_body(header, frame, offset)
        assert type(received) is message
        assert received.version == version
        assert received.to_dict(json=False) == sent.to_dict(json=False)
        assert bytes(received.encode(version=version)) == bytes(frame[offset:])


@pytest.mark.parametrize(("message", "version"), EVERY_VERSION)
def test_every_mutated_request_decodes_or_is_malformed(message: type[Any], version: int) -> None:
    random = Random(f"mutated {message.__name__}{version}")
    for _ in range(15):
        frame = bytearray(request_frame(make_message(message, version, random), version))
        for _ in range(random.randrange(1, 4)):
            position = random.randrange(8, len(frame))
            change = random.randrange(4)
            if change == 0:
                frame[position] = random.choice([0, 1, 0x7F, 0x80, 0xFF])
            elif change == 1:
                frame[position : position + 4] = random.choice(
                    [b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff" * 9]
                )
            elif change == 2:
                del frame[position : position + random.randrange(1, 10)]
            else:
                del frame[max(position, 9) :]
            if len(frame) < 10:
                break
        with suppress(MalformedMessage):
            decode(memoryview(frame))


@settings(max_examples=1000)
@given(
    key=st.one_of(st.sampled_from(sorted(FIRST_FLEXIBLE_VERSION)), st.integers(-(2**15), 2**15 - 1)),
    version=st.integers(-1, 19),
    client_id_bytes=st.sampled_from([-2, -1, 0, 2, 500]),
    rest=st.binary(max_size=80),
    cut=st.integers(0, 100),
)
def test_arbitrary_bytes_decode_or_are_malformed(
    key: int, version: int, client_id_bytes: int, rest: bytes, cut: int
) -> None:
    frame = struct.pack(">hhih", key, version, 1, client_id_bytes) + rest
    with suppress(MalformedMessage):
        decode(memoryview(frame[:cut]))


@pytest.mark.parametrize("length", [0, 1, 7])
def test_a_frame_too_short_for_a_header_is_malformed(length: int) -> None:
    with pytest.raises(MalformedMessage):
        peek(memoryview(bytes(length)))
    with pytest.raises(MalformedMessage):
        decode_header(memoryview(bytes(length)))


def test_a_request_of_an_unknown_api_can_still_be_peeked_at() -> None:
    frame = memoryview(struct.pack(">hhi", 1234, 5, 42) + b"whatever follows")
    assert peek(frame) == (1234, 5, 42)
    with pytest.raises(MalformedMessage, match="1234"):
        decode_header(frame)


def test_api_versions_of_an_unknown_version_can_still_be_peeked_at() -> None:
    frame = memoryview(struct.pack(">hhih", 18, 99, 42, 2) + b"id\x00" + b"\xde\xad\xbe\xef")
    assert peek(frame) == (18, 99, 42)
    header, _ = decode_header(frame)
    assert header == RequestHeader(18, 99, 42, "id")
    with pytest.raises(MalformedMessage, match="99"):
        decode_body(header, frame, 13)


@pytest.mark.parametrize(("message", "version"), [(MetadataRequest, 8), (MetadataRequest, 12)])
def test_a_client_id_may_be_null(message: type[Any], version: int) -> None:
    header, _ = decode_header(request_frame(message(topics=None), version, client_id=None))
    assert header.client_id is None


def test_tagged_fields_in_a_header_are_skipped() -> None:
    head = struct.pack(">hhih", 12, 4, 1, -1) + b"\x02" + b"\x00\x03abc" + b"\x05\x00"
    body = bytes(HeartbeatRequest(group_id="g", generation_id=1, member_id="m").encode(version=4))
    assert decode(memoryview(head + body)).group_id == "g"


def test_bytes_after_a_request_are_ignored_as_kafka_does() -> None:
    # As librdkafka 2.16 asks for all topics: the array's length in four bytes where one is meant.
    header = bytes.fromhex("0003000d00000003000772646b61666b6100")
    request = decode(memoryview(header + bytes.fromhex("00000000010000")))
    assert isinstance(request, MetadataRequest)
    assert request.topics is None


def test_a_version_that_does_not_exist_is_malformed_and_not_remembered() -> None:
    for version in (-1, 14, 3000):
        with pytest.raises(MalformedMessage, match="version"):
            decode_bare(3, version, bytes(20))
    for key in (0, 1):
        with pytest.raises(MalformedMessage, match="version"):
            decode_bare(key, 2, bytes(20))


def test_unknown_tagged_fields_are_skipped() -> None:
    body = bytes(ApiVersionsRequest(client_software_name="a", client_software_version="1").encode(version=3))
    assert body[-1] == 0
    tagged = body[:-1] + b"\x01\x63\x03xyz"
    received = decode_bare(18, 3, tagged)
    assert received.client_software_name == "a"


def test_null_where_no_null_may_be_is_malformed() -> None:
    cases: list[tuple[int, int, bytes]] = [
        (12, 3, b"\xff\xff" + bytes(4) + b"\x00\x01m" + b"\xff\xff"),  # Heartbeat without a group id
        (12, 4, b"\x00" + bytes(4) + b"\x02m" + b"\x00\x00"),
        (19, 7, b"\x00" + bytes(4) + b"\x00\x00"),  # CreateTopics without topics
        (19, 4, b"\xff\xff\xff\xff" + bytes(5)),
    ]
    for key, version, body in cases:
        with pytest.raises(MalformedMessage, match="null"):
            decode_bare(key, version, body)


def test_a_null_struct_is_none() -> None:
    request = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=5, cursor=None)
    assert decode(request_frame(request, 0)).cursor is None


HUGE_ARRAY = struct.pack(">i", 2**31 - 1)
HUGE_COMPACT_ARRAY = b"\xff\xff\xff\xff\x07"


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [
        pytest.param(3, 8, HUGE_ARRAY, id="an array of 2^31-1 items in four bytes"),
        pytest.param(3, 12, HUGE_COMPACT_ARRAY, id="a compact array of 2^31-2 items in five bytes"),
        pytest.param(19, 4, HUGE_ARRAY + bytes(50), id="an array of 2^31-1 structs"),
        pytest.param(3, 8, struct.pack(">i", -2), id="an array of minus two items"),
        pytest.param(12, 3, struct.pack(">h", 30_000) + b"abc", id="a string that ends beyond the request"),
        pytest.param(12, 3, struct.pack(">h", -2) + bytes(20), id="a string of minus two bytes"),
        pytest.param(12, 4, b"\xff\xff\xff\xff\xff\x01", id="a length of more than 32 bits"),
        pytest.param(12, 4, b"\xff\xff\xff\xff\x1f", id="a length of 33 bits in five bytes"),
        pytest.param(14, 3, b"\x00\x01g" + bytes(4) + b"\x00\x01m" + HUGE_ARRAY, id="huge bytes"),
        pytest.param(12, 3, b"\x00\x02\xff\xfe" + bytes(20), id="a string that is not UTF-8"),
    ],
)
def test_absurd_lengths_are_malformed(key: int, version: int, body: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_bare(key, version, body)


def test_an_integer_that_never_ends_is_refused_at_once() -> None:
    """kafka-python shifts such an integer on and on: a megabyte of it takes minutes."""
    with pytest.raises(MalformedMessage, match="32 bits"):
        decode_bare(3, 12, b"\xff" * 1_000_000)


def test_tagged_fields_by_the_ten_thousand_take_linear_time() -> None:
    """kafka-python copies the rest of the message for each: this request would make it move 15 GB."""
    topic = b"\x00" * 16 + b"\x02t" + b"\x01\x09\x01x"
    count = 30_000
    body = struct.pack(">BBB", 0x80 | (count + 1) & 0x7F, 0x80 | (count + 1) >> 7 & 0x7F, count + 1 >> 14)
    frame = body + topic * count + b"\x00\x00\x00"
    received = decode_bare(3, 12, frame)
    assert len(received.topics) == count


def test_a_tagged_field_of_another_size_than_it_says_is_malformed() -> None:
    request = make_message(TheirFetchRequest, 16, Random(1))
    request.cluster_id = "cluster"
    frame = bytearray(request_frame(request, 16))
    at = bytes(frame).index(b"\x00\x08\x08cluster")
    frame[at + 1] = 9
    with pytest.raises(MalformedMessage):
        decode(memoryview(frame))


def test_bytes_in_messages_are_copies_not_views_of_the_frame() -> None:
    request = SyncGroupRequest(
        group_id="g",
        generation_id=1,
        member_id="m",
        assignments=[SyncGroupRequest.SyncGroupRequestAssignment(member_id="m", assignment=b"plan")],
    )
    assert type(decode(request_frame(request, 3)).assignments[0].assignment) is bytes


@pytest.mark.parametrize("version", versions_of(MetadataResponse))
def test_a_reply_is_framed_as_kafka_python_expects_it(version: int) -> None:
    reply = make_message(MetadataResponse, version, Random(version))
    (frame,) = encode_reply(RequestHeader(3, version, 99, None), reply)
    assert isinstance(frame, bytes)
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    received = MetadataResponse.decode(frame[4:], version=version, header=True)
    assert received.header.correlation_id == 99
    assert received.to_dict(json=False) == reply.to_dict(json=False)


@pytest.mark.parametrize("version", range(5))
def test_a_reply_about_api_versions_never_has_a_flexible_header(version: int) -> None:
    reply = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[])
    (frame,) = encode_reply(RequestHeader(18, version, 99, None), reply)
    assert isinstance(frame, bytes)
    assert frame[4:10] == struct.pack(">ih", 99, 35)


def test_a_message_that_is_not_in_a_version_leaves_its_default() -> None:
    request = CreateTopicsRequest(topics=[], timeout_ms=5)
    assert decode(request_frame(request, 4)).validate_only is False


def test_kafka_python_is_entered_without_its_clients_and_completed_on_demand() -> None:
    program = (
        "import sys, gapless.wire.request\n"
        "assert 'kafka.consumer' not in sys.modules and 'kafka.net' not in sys.modules\n"
        "import kafka.protocol.metadata, kafka\n"
        "assert 'kafka.net' not in sys.modules\n"
        "assert not hasattr(kafka, 'no_such_name')\n"
        "from kafka import KafkaConsumer, TopicPartition\n"
        "assert kafka.KafkaConsumer is KafkaConsumer and kafka.__version__\n"
        "from kafka.protocol.metadata import MetadataRequest\n"
        "assert MetadataRequest is gapless.wire.request.REQUESTS[3]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
