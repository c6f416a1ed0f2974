"""What a broker checks before it appends, and what it changes; batch by batch."""

from __future__ import annotations

import time
from uuid import uuid4

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Message, TopicPartition

from gapless.wire.errors import ErrorCode

from .admins.kafka_python import KafkaPythonAdmin
from .clients import BrokerRefused, Deadline, Sending, eventually
from .clients.confluent import Confluent
from .conftest import NewTopic
from .raw import (
    RawClient,
    batch,
    codecs_in,
    fetch_partition,
    fetch_request,
    produce_request,
    records_in,
    tampered,
)
from .sample import CODECS, Record, numbered, numbers, rich

_ATTRIBUTES_AT, _LAST_OFFSET_DELTA_AT, _COUNT_AT = 21, 23, 57
_CONTROL = 0x20
GZIP, ZSTD = 1, 4


@pytest.fixture
def topic(new_topic: NewTopic) -> str:
    return new_topic()


TWO_RECORDS = batch([b"a", b"b"])
DAMAGED = {
    "crc": (TWO_RECORDS[:-1] + b"?", ErrorCode.CORRUPT_MESSAGE),
    "count": (tampered(TWO_RECORDS, ">i", _COUNT_AT, 3), ErrorCode.INVALID_RECORD),
    "last-delta": (tampered(TWO_RECORDS, ">i", _LAST_OFFSET_DELTA_AT, 7), ErrorCode.INVALID_RECORD),
    "control": (tampered(TWO_RECORDS, ">h", _ATTRIBUTES_AT, _CONTROL), ErrorCode.INVALID_RECORD),
    "two-batches": (TWO_RECORDS + TWO_RECORDS, ErrorCode.INVALID_RECORD),
    "empty": (b"", ErrorCode.INVALID_RECORD),
}


@pytest.mark.parametrize(("payload", "code"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_batch_is_refused_and_nothing_is_stored(
    raw: RawClient, topic: str, payload: bytes, code: ErrorCode
) -> None:
    assert raw.produce(topic, payload).error_code == code
    assert raw.fetch(topic).high_watermark == 0
    assert raw.produce(topic, batch([b"sound"])).base_offset == 0


def test_a_partition_or_topic_that_is_not_there_is_unknown(raw: RawClient, topic: str) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert raw.produce(topic, batch([b"a"]), partition=9).error_code == unknown
    assert raw.produce("compat-nobody-made-this", batch([b"a"])).error_code == unknown
    assert raw.produce(uuid4(), batch([b"a"]), version=13).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    answer = raw.ask(fetch_request({uuid4(): [fetch_partition(0, 0)]}, version=16))
    ((outcome,),) = [responded.partitions for responded in answer.responses]
    assert outcome.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_acknowledgements_are_none_one_or_all(raw: RawClient, topic: str) -> None:
    """acks=0 is not answered at all: the next answer is to the next request."""
    raw.send(produce_request(topic, batch([b"a"]), acks=0, version=9))
    assert raw.produce(topic, batch([b"b"]), acks=1).base_offset == 1
    assert raw.produce(topic, batch([b"c"]), acks=2).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    eventually(lambda: raw.fetch(topic).high_watermark, 2)  # acks=1 does not wait for replicas


def test_a_floor_of_replicas_above_what_a_topic_has_counts_as_what_it_has(
    raw: RawClient, new_topic: NewTopic
) -> None:
    """Claim B4, for one replica: `min.insync.replicas` is bounded by the replication factor."""
    topic = new_topic(1, {"min.insync.replicas": "2"}, replicas=1)
    assert raw.produce(topic, batch([b"a"]), acks=-1).error_code == ErrorCode.NONE
    assert raw.produce(topic, batch([b"b"]), acks=1).base_offset == 1


def test_zstd_is_refused_from_clients_too_old_to_know_it(raw: RawClient, topic: str) -> None:
    payload = batch([b"a" * 100], codec=ZSTD)
    assert raw.produce(topic, payload, version=6).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert raw.produce(topic, payload, version=7).error_code == ErrorCode.NONE


def test_a_time_far_in_the_future_is_refused(reader: Confluent, topic: str) -> None:
    in_two_hours_ms = int(time.time() * 1000) + 7_200_000
    with pytest.raises(BrokerRefused) as refusal:
        reader.produce(topic, [Record(b"early", timestamp_ms=in_two_hours_ms)])
    assert refusal.value.code == ErrorCode.INVALID_TIMESTAMP
    assert reader.bounds(topic, 0) == (0, 0)


@pytest.mark.parametrize("codec", CODECS)
def test_a_topic_can_stamp_records_with_its_own_time(
    reader: Confluent, new_topic: NewTopic, codec: str
) -> None:
    topic = new_topic(1, {"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000)
    reader.produce(topic, rich(0), Sending(codec))
    after_ms = int(time.time() * 1000)
    messages: list[Message] = []
    deadline = Deadline("records")
    with reader.consumer() as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while len(messages) < len(rich(0)) and deadline.open():
            messages += consumer.consume(len(rich(0)), 0.5)
    kinds, times = zip(*(message.timestamp() for message in messages), strict=True)
    assert set(kinds) == {TIMESTAMP_LOG_APPEND_TIME}
    assert before_ms <= min(times) <= max(times) <= after_ms
    assert [message.value() for message in messages] == [record.value for record in rich(0)]


@pytest.mark.parametrize("sent", ["none", "lz4"])
def test_a_topic_can_choose_its_compression(
    raw: RawClient, reader: Confluent, new_topic: NewTopic, sent: str
) -> None:
    topic = new_topic(1, {"compression.type": "gzip"})
    reader.produce(topic, numbered(100, size_bytes=200), Sending(sent))
    stored = raw.fetch(topic).records
    assert set(codecs_in(stored)) == {GZIP}
    assert numbers(records_in(stored)) == list(range(100))


def test_a_producer_leaves_no_trace_of_what_was_refused(
    raw: RawClient, bootstrap: str, new_topic: NewTopic
) -> None:
    """Claim C4: a refused batch does not use up its sequence number."""
    topic = new_topic(1, {"max.message.bytes": "1000"})
    producer_id = raw.new_producer_id()
    too_large = batch([b"." * 2_000], producer_id=producer_id, epoch=0, sequence=0)
    assert raw.produce(topic, too_large).error_code == ErrorCode.MESSAGE_TOO_LARGE
    fitting = batch([b"."], producer_id=producer_id, epoch=0, sequence=0)
    assert raw.produce(topic, fitting).error_code == ErrorCode.NONE
    admin = KafkaPythonAdmin(bootstrap)
    (state,) = admin.producers(topic, 0)
    admin.close()
    assert state == (producer_id, 0, 0)
