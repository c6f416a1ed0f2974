"""How records get to a reader: many partitions at once, as they arrive, large ones, and after a pause."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable

import pytest
from aiokafka import TopicPartition as AiokafkaPlace
from confluent_kafka import TopicPartition
from kafka import TopicPartition as KafkaPythonPlace

from .clients import Client, Deadline, Sending
from .clients.aio import Aiokafka
from .clients.confluent import Confluent, as_record
from .clients.java import JavaClient
from .clients.java import as_record as java_record
from .clients.kafka_python import KafkaPython
from .clients.kafka_python import as_record as kafka_python_record
from .conftest import MakeClient, NewTopic
from .sample import CODECS, Record, numbered, numbers

MANY = 40
ROUNDS = 3
PER_ROUND = 2


def write_round(writer: Confluent, topic: str, number: int) -> None:
    """Two records more to every third partition, so that most partitions of a session did not change."""
    records = [
        Record(b"%08d" % (number * PER_ROUND + i), partition=partition)
        for partition in range(number % 3, MANY, 3)
        for i in range(PER_ROUND)
    ]
    writer.produce(topic, records)


def by_partition(records: Iterable[Record]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for record in records:
        found[record.partition] += numbers([record])
    return dict(found)


EXPECTED_AFTER_ROUNDS = {
    partition: [partition % 3 * PER_ROUND + i for i in range(PER_ROUND)] for partition in range(MANY)
}


class TestManyPartitionsInOneFetchSession:
    """One consumer of many partitions: the broker remembers them and answers only with what is new."""

    def test_librdkafka(self, reader: Confluent, new_topic: NewTopic) -> None:
        topic = new_topic(MANY)
        with reader.consumer() as consumer:
            consumer.assign([TopicPartition(topic, partition, 0) for partition in range(MANY)])
            self.run(lambda: [as_record(message) for message in consumer.consume(500, 0.2)], reader, topic)

    def test_kafka_python(self, reader: Confluent, bootstrap: str, new_topic: NewTopic) -> None:
        topic = new_topic(MANY)
        with KafkaPython(bootstrap).consumer() as consumer:
            places = [KafkaPythonPlace(topic, partition) for partition in range(MANY)]
            consumer.assign(places)
            consumer.seek_to_beginning(*places)
            self.run(
                lambda: [
                    kafka_python_record(message)
                    for messages in consumer.poll(timeout_ms=200).values()
                    for message in messages
                ],
                reader,
                topic,
            )

    @pytest.mark.parametrize("version", ["java-4.3", "java-3.9"])
    def test_java(
        self, version: str, make_client: MakeClient, reader: Confluent, new_topic: NewTopic
    ) -> None:
        topic, client = new_topic(MANY), make_client(version)
        assert isinstance(client, JavaClient)
        with client.consumer() as consumer:
            places = [client.place(topic, partition) for partition in range(MANY)]
            consumer.assign(places)
            consumer.seekToBeginning(places)

            def poll() -> list[Record]:
                polled = consumer.poll(client.duration(200))
                places = [polled.records(place) for place in polled.partitions()]
                return [java_record(message) for messages in places for message in messages]

            self.run(poll, reader, topic)

    @staticmethod
    def run(poll: Callable[[], list[Record]], writer: Confluent, topic: str) -> None:
        found: list[Record] = []
        for number in range(ROUNDS):
            write_round(writer, topic, number)
            expected = sum(len(range(third, MANY, 3)) for third in range(number + 1)) * PER_ROUND
            deadline = Deadline(f"{expected} records of {topic}")
            while len(found) < expected and deadline.open():
                found += poll()
        assert by_partition(found) == EXPECTED_AFTER_ROUNDS

    def test_aiokafka(self, reader: Confluent, bootstrap: str, new_topic: NewTopic) -> None:
        """It has no sessions: every fetch names every partition."""
        topic = new_topic(MANY)
        for number in range(ROUNDS):
            write_round(reader, topic, number)

        async def read() -> list[Record]:
            found: list[Record] = []
            async with Aiokafka(bootstrap).consumer() as consumer, asyncio.timeout(20):
                places = [AiokafkaPlace(topic, partition) for partition in range(MANY)]
                consumer.assign(places)
                await consumer.seek_to_beginning(*places)
                while len(found) < MANY * PER_ROUND:
                    for messages in (await consumer.getmany(timeout_ms=200)).values():
                        found += [kafka_python_record(message) for message in messages]
            return found

        assert by_partition(asyncio.run(read())) == EXPECTED_AFTER_ROUNDS


def test_a_partition_can_leave_and_join_a_running_consumer(reader: Confluent, new_topic: NewTopic) -> None:
    """A fetch session forgets partitions and takes others up."""
    topic = new_topic(3)
    for partition in range(3):
        reader.produce(topic, numbered(5, partition=partition))
    with reader.consumer() as consumer:
        for partitions in ([0, 1], [1, 2], [0]):
            consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
            found: list[Record] = []
            deadline = Deadline("records")
            while len(found) < 5 * len(partitions) and deadline.open():
                found += [as_record(message) for message in consumer.consume(100, 0.2)]
            assert by_partition(found) == {partition: list(range(5)) for partition in partitions}


def test_a_waiting_reader_gets_a_record_when_it_is_written(client: Client, new_topic: NewTopic) -> None:
    """Claim A5: reading in real time is a fetch that waits for the next write."""
    topic = new_topic()
    writer = threading.Timer(0.3, client.produce, (topic, [Record(b"awaited")]))
    writer.start()
    found = client.read(topic, 0, 0, 1)
    writer.join()
    assert [record.value for record in found] == [b"awaited"]


def test_a_write_wakes_a_fetch_long_before_its_time_limit(reader: Confluent, new_topic: NewTopic) -> None:
    topic = new_topic()
    with reader.consumer(fetch_wait_max_ms="20000") as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert consumer.poll(0.3) is None, "the fetch is waiting now"
        reader.produce(topic, [Record(b"awaited")])
        begun = time.monotonic()
        message = consumer.poll(15.0)
    assert message is not None
    assert message.value() == b"awaited"
    assert time.monotonic() - begun < 10


def test_a_peak_is_kept_and_a_stopped_reader_goes_on_where_it_was(
    client: Client, new_topic: NewTopic
) -> None:
    """Claims A7, E5: the log takes what comes while nobody reads; the reader's own offset finds the rest."""
    topic = new_topic()
    client.produce(topic, [Record(b"%08d" % i) for i in range(30)])
    before = client.read(topic, 0, 0, 20)
    client.produce(topic, [Record(b"%08d" % i) for i in range(30, 330)])
    last = before[-1].offset
    assert last is not None
    after = client.read(topic, 0, last + 1, 310)
    assert numbers(before + after) == list(range(330))


@pytest.mark.parametrize("codec", CODECS)
def test_a_record_of_nearly_the_largest_size_arrives(
    reader: Confluent, new_topic: NewTopic, codec: str
) -> None:
    topic = new_topic()
    value = bytes(1_048_588 - 200)
    reader.produce(topic, [Record(value)], Sending(codec, request_bytes_max=2_000_000))
    assert [record.value for record in reader.read(topic, 0, 0, 1)] == [value]


def test_a_record_larger_than_the_readers_limits_arrives_all_the_same(
    client: Client, reader: Confluent, new_topic: NewTopic
) -> None:
    """Limits of a fetch are wishes: the first batch is always given, or a reader could never get past it."""
    topic = new_topic(1, {"max.message.bytes": "6000000"})
    value = b"x" * 5_000_000
    reader.produce(topic, [Record(value), Record(b"after")], Sending(request_bytes_max=6_000_000))
    assert [len(record.value or b"") for record in client.read(topic, 0, 0, 2)] == [5_000_000, 5]


def test_small_fetches_lose_nothing(reader: Confluent, new_topic: NewTopic) -> None:
    """Answers are cut at limits, also between batches of one partition."""
    topic = new_topic(2)
    for partition in range(2):
        reader.produce(topic, numbered(500, partition=partition, size_bytes=200), Sending(batch_bytes=2_000))
    found: list[Record] = []
    deadline = Deadline("1000 records")
    with reader.consumer(
        fetch_message_max_bytes="3000", fetch_max_bytes="5000", message_max_bytes="5000"
    ) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(2)])
        while len(found) < 1_000 and deadline.open():
            found += [as_record(message) for message in consumer.consume(500, 0.2)]
    assert by_partition(found) == {0: list(range(500)), 1: list(range(500))}
