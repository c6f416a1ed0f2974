"""Finding a place in the log: by offset, by time, at either end; and going back to it."""

from __future__ import annotations

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, TopicPartition

from .admins import EARLIEST, LATEST, MAX_TIMESTAMP, ModernAdmin
from .clients import Client, Deadline, Sending
from .clients.confluent import Confluent, as_record
from .clients.kcat import Kcat, parse
from .conftest import MODERN_ADMINS, MakeClient, NewTopic
from .sample import AN_HOUR_AGO_MS, CODECS, Record, numbered, numbers


@pytest.fixture(scope="module")
def hundred(reader: Confluent, new_topic: NewTopic) -> str:
    """A topic with records 0 to 99, a second apart."""
    topic = new_topic()
    reader.produce(topic, numbered(100), Sending(batch_bytes=300))
    return topic


def test_each_client_finds_both_ends(client: Client, hundred: str) -> None:
    """Claim E5: a client that keeps its own position learns where the log begins and ends."""
    assert client.bounds(hundred, 0) == (0, 100)


@pytest.mark.parametrize("start", [0, 1, 37, 99])
def test_reading_begins_at_the_very_offset_that_is_asked_for(
    client: Client, hundred: str, start: int
) -> None:
    """Claim E5: also in the middle of a batch."""
    found = client.read(hundred, 0, start, 100 - start)
    assert numbers(found) == list(range(start, 100))
    assert found[0].offset == start


def test_rewinding_delivers_the_same_records_again(client: Client, hundred: str) -> None:
    """Claim E7: the log does not change by being read; going back delivers again, byte for byte."""
    first = client.read(hundred, 0, 20, 40)
    again = client.read(hundred, 0, 20, 40)
    assert first == again


def test_a_time_finds_the_first_record_that_is_not_earlier(client: Client, hundred: str) -> None:
    """Claim E5: exact, between two records, before the first, and after the last."""
    assert client.offset_at(hundred, 0, AN_HOUR_AGO_MS + 42_000) == 42
    assert client.offset_at(hundred, 0, AN_HOUR_AGO_MS + 41_001) == 42
    assert client.offset_at(hundred, 0, AN_HOUR_AGO_MS - 1) == 0
    assert client.offset_at(hundred, 0, AN_HOUR_AGO_MS + 99_000) == 99
    assert client.offset_at(hundred, 0, AN_HOUR_AGO_MS + 99_001) is None


@pytest.mark.parametrize("codec", CODECS)
def test_times_inside_a_compressed_batch_are_found_too(
    reader: Confluent, new_topic: NewTopic, codec: str
) -> None:
    """Also where times run backwards: the first offset whose time is late enough, not the first time."""
    topic = new_topic()
    times = [5_000, 1_000, 9_000, 3_000, 9_000, 7_000]
    records = [Record(b"x" * 50, timestamp_ms=AN_HOUR_AGO_MS + time) for time in times]
    reader.produce(topic, records, Sending(codec))
    assert reader.offset_at(topic, 0, AN_HOUR_AGO_MS + 4_000) == 0
    assert reader.offset_at(topic, 0, AN_HOUR_AGO_MS + 6_000) == 2
    assert reader.offset_at(topic, 0, AN_HOUR_AGO_MS + 9_001) is None


@pytest.mark.parametrize("admin", MODERN_ADMINS, indirect=True)
def test_admins_list_earliest_latest_timed_and_newest_offsets(admin: ModernAdmin, hundred: str) -> None:
    """The answer has the record's time only where the question was about time."""
    assert admin.offset_of(hundred, 0, EARLIEST) == (0, -1)
    assert admin.offset_of(hundred, 0, LATEST) == (100, -1)
    assert admin.offset_of(hundred, 0, MAX_TIMESTAMP) == (99, AN_HOUR_AGO_MS + 99_000)
    assert admin.offset_of(hundred, 0, AN_HOUR_AGO_MS + 41_500) == (42, AN_HOUR_AGO_MS + 42_000)
    assert admin.offset_of(hundred, 0, AN_HOUR_AGO_MS + 99_001) == (-1, -1)


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("admin", MODERN_ADMINS, indirect=True)
def test_the_newest_record_is_the_first_with_the_greatest_time(
    admin: ModernAdmin, reader: Confluent, new_topic: NewTopic, codec: str
) -> None:
    topic = new_topic()
    assert admin.offset_of(topic, 0, MAX_TIMESTAMP) == (-1, -1)
    times = [5_000, 9_000, 3_000, 9_000, 7_000]
    records = [Record(b"x" * 50, timestamp_ms=AN_HOUR_AGO_MS + time) for time in times]
    reader.produce(topic, records, Sending(codec))
    assert admin.offset_of(topic, 0, MAX_TIMESTAMP) == (1, AN_HOUR_AGO_MS + 9_000)


def test_librdkafka_seeks_to_any_offset_and_to_both_ends(reader: Confluent, hundred: str) -> None:
    def next_number(consumer: Consumer) -> int | None:
        """None at the end."""
        deadline = Deadline("record")
        while deadline.open():
            message = consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return None
            return numbers([as_record(message)])[0]
        raise AssertionError

    with reader.consumer(enable_partition_eof="true") as consumer:
        consumer.assign([TopicPartition(hundred, 0, OFFSET_BEGINNING)])
        assert next_number(consumer) == 0
        consumer.seek(TopicPartition(hundred, 0, 73))
        assert next_number(consumer) == 73
        consumer.assign([TopicPartition(hundred, 0, OFFSET_END)])
        assert next_number(consumer) is None
        consumer.seek(TopicPartition(hundred, 0, OFFSET_BEGINNING))
        assert next_number(consumer) == 0


@pytest.mark.kcat
def test_kcat_starts_before_the_end_and_between_two_times(make_client: MakeClient, hundred: str) -> None:
    kcat = make_client("kcat")
    assert isinstance(kcat, Kcat)
    assert numbers(kcat.read(hundred, 0, -3, 3)) == [97, 98, 99]
    start, end = AN_HOUR_AGO_MS + 10_000, AN_HOUR_AGO_MS + 20_000
    output = kcat.run(
        *(
            "-C",
            "-t",
            hundred,
            "-p",
            "0",
            "-o",
            f"s@{start}",
            "-o",
            f"e@{end}",
            "-f",
            "%p %o %T %K %S %h\n%k%s\n",
        )
    )
    assert numbers(parse(output)) == list(range(10, 20))
