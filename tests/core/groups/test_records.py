"""The records of `__consumer_offsets`: Kafka's bytes, both ways, and nothing that garbage could upset."""

from __future__ import annotations

from random import Random
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.wire.errors import MalformedMessage
from gapless.wire.group_records import (
    GroupKey,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
    committed_by_marker,
    decode_group,
    decode_key,
    decode_offset,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
    subscribed_topics,
)
from tests.core.groups.crowd import Crowd, subscription

TEXT = st.text(st.characters(codec="utf-8"), max_size=50)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
MEMBERS = st.builds(
    MemberValue,
    TEXT,
    st.none() | TEXT,
    TEXT,
    TEXT,
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.binary(max_size=100),
    st.binary(max_size=100),
)


def test_the_bytes_are_kafkas() -> None:
    """As Apache Kafka 4.3 wrote them for the same group and offset."""
    assert encode_offset_key(OffsetKey("g", "topic", 3)) == b"\0\1\0\1g\0\5topic\0\0\0\3"
    assert encode_offset(OffsetValue(7, 2, "m", 1000)) == (
        b"\0\3" + pack(">q", 7) + pack(">i", 2) + b"\0\1m" + pack(">q", 1000)
    )
    assert encode_group_key("g") == b"\0\2\0\1g"
    assert encode_group(GroupValue("", 0, None, None, 5, ())) == (
        b"\0\3" + b"\0\0" + pack(">i", 0) + b"\xff\xff" + b"\xff\xff" + pack(">q", 5) + pack(">i", 0)
    )


@given(TEXT, TEXT, INT32)
def test_keys_survive(group: str, topic: str, partition: int) -> None:
    key = OffsetKey(group, topic, partition)
    assert decode_key(encode_offset_key(key)) == key
    assert decode_key(encode_group_key(group)) == GroupKey(group)


@given(INT64, INT32, TEXT, INT64)
def test_offsets_survive(offset: int, epoch: int, metadata: str, committed_ms: int) -> None:
    value = OffsetValue(offset, epoch, metadata, committed_ms)
    assert decode_offset(encode_offset(value)) == value
    expiring = OffsetValue(offset, -1, metadata, committed_ms, 12345)
    assert decode_offset(encode_offset(expiring)) == expiring


@given(TEXT, INT32, st.none() | TEXT, st.none() | TEXT, INT64, st.lists(MEMBERS, max_size=5))
def test_groups_survive(
    protocol_type: str,
    generation: int,
    protocol: str | None,
    leader: str | None,
    since_ms: int,
    members: list[MemberValue],
) -> None:
    value = GroupValue(protocol_type, generation, protocol, leader, since_ms, tuple(members))
    assert decode_group(encode_group(value)) == value


def test_older_versions_are_read() -> None:
    assert decode_key(b"\0\0\0\1g\0\1t\0\0\0\0") == OffsetKey("g", "t", 0)
    old = b"\0\0" + pack(">q", 7) + b"\0\1m" + pack(">q", 1000)
    assert decode_offset(old) == OffsetValue(7, -1, "m", 1000)
    member = b"\0\1m\0\1c\0\1h" + pack(">i", 6000) + pack(">i", 1) + b"s" + pack(">i", 1) + b"a"
    group = b"\0\0\0\10consumer" + pack(">i", 4) + b"\0\5range\0\1m" + pack(">i", 1) + member
    assert decode_group(group) == GroupValue(
        "consumer", 4, "range", "m", -1, (MemberValue("m", None, "c", "h", 6000, 6000, b"s", b"a"),)
    )


def test_records_of_other_kinds_of_groups_are_passed_over() -> None:
    assert decode_key(pack(">h", 3) + b"\0\1g") is None
    assert decode_key(pack(">h", 15)) is None


@given(st.binary(max_size=200))
def test_garbage_is_called_garbage(data: bytes) -> None:
    for decode in (decode_key, decode_offset, decode_group, committed_by_marker):
        try:
            decode(data)
        except MalformedMessage:
            continue
    subscribed_topics(data)


def test_a_cut_record_is_never_taken_for_a_whole_one() -> None:
    member = MemberValue("m", "i", "c", "h", 1, 2, b"subscription", b"assignment")
    whole = encode_group(GroupValue("consumer", 1, "range", "m", 1, (member,)))
    for end in range(len(whole)):
        with pytest.raises(MalformedMessage):
            decode_group(whole[:end])


def test_unreadable_records_are_counted_and_hurt_nobody() -> None:
    crowd = Crowd()
    crowd.world.create_topic("t")
    crowd.commit({("t", 0): 3})
    random = Random(1)
    for _ in range(200):
        key = random.randbytes(random.randrange(12))
        value = random.randbytes(random.randrange(30))
        crowd.state().shard.write([(key, value)])
    crowd.state().shard.write([(encode_group_key("g"), b"\0\3"), (encode_group_key("g"), b"\0\7")])
    assert crowd.state().unreadable_records > 10
    crowd.restart()
    assert crowd.fetch(("t", 0)) == {("t", 0): 3}
    assert crowd.state().unreadable_records > 10


def test_what_consumers_subscribe_to_is_read_in_every_version() -> None:
    assert subscribed_topics(subscription("a", "b")) == ["a", "b"]
    newer = pack(">h", 3) + subscription("a")[2:] + b"\0\0\0\0" + b"more fields"
    assert subscribed_topics(newer) == ["a"]
    assert subscribed_topics(b"") is None
    assert subscribed_topics(pack(">hi", 0, 2**31 - 1)) is None
