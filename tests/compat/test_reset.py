"""An offset that is not there, past the end or deleted at the start: the client's reset policy decides."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka import TopicPartition as AiokafkaPlace
from aiokafka.errors import OffsetOutOfRangeError as AiokafkaOutOfRange
from confluent_kafka import TopicPartition
from kafka import TopicPartition as KafkaPythonPlace
from kafka.errors import OffsetOutOfRangeError

from .admins.confluent import ConfluentAdmin
from .clients import Deadline
from .clients.aio import Aiokafka
from .clients.confluent import Confluent, as_record
from .clients.java import JavaClient
from .clients.kafka_python import KafkaPython
from .conftest import MakeClient, NewTopic
from .sample import Record, numbered, numbers


@pytest.fixture(scope="module")
def shortened(reader: Confluent, bootstrap: str, new_topic: NewTopic) -> str:
    topic = new_topic()
    reader.produce(topic, numbered(20))
    assert ConfluentAdmin(bootstrap).delete_records(topic, 0, 5) == 5
    return topic


@pytest.mark.parametrize("wrong", [2, 1_000])
def test_librdkafka_resets_to_the_earliest(reader: Confluent, shortened: str, wrong: int) -> None:
    with reader.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(shortened, 0, wrong)])
        deadline = Deadline("record")
        found: list[Record] = []
        while not found and deadline.open():
            found += [as_record(message) for message in consumer.consume(1, 0.5)]
    assert numbers(found) == [5]


@pytest.mark.parametrize("wrong", [2, 1_000])
def test_librdkafka_reports_it_if_told_so(reader: Confluent, shortened: str, wrong: int) -> None:
    with reader.consumer() as consumer:
        consumer.assign([TopicPartition(shortened, 0, wrong)])
        deadline = Deadline("error")
        errors: list[str] = []
        while not errors and deadline.open():
            errors += [error.str() for m in consumer.consume(1, 0.5) if (error := m.error())]
    assert "Offset out of range" in errors[0]


@pytest.mark.parametrize("wrong", [2, 1_000])
def test_kafka_python_resets_or_raises(bootstrap: str, shortened: str, wrong: int) -> None:
    place = KafkaPythonPlace(shortened, 0)
    with KafkaPython(bootstrap).consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([place])
        consumer.seek(place, wrong)
        assert next(consumer).offset == 5
    with KafkaPython(bootstrap).consumer() as consumer:
        consumer.assign([place])
        consumer.seek(place, wrong)
        with pytest.raises(OffsetOutOfRangeError):
            next(consumer)


@pytest.mark.parametrize("wrong", [2, 1_000])
def test_aiokafka_resets_or_raises(bootstrap: str, shortened: str, wrong: int) -> None:
    place = AiokafkaPlace(shortened, 0)

    async def first(policy: str) -> int:
        async with Aiokafka(bootstrap).consumer(auto_offset_reset=policy) as consumer:
            consumer.assign([place])
            consumer.seek(place, wrong)
            return int((await asyncio.wait_for(consumer.getone(place), 10)).offset)

    assert asyncio.run(first("earliest")) == 5
    with pytest.raises(AiokafkaOutOfRange):
        asyncio.run(first("none"))


@pytest.mark.parametrize("version", ["java-4.3", "java-3.9"])
@pytest.mark.parametrize("wrong", [2, 1_000])
def test_java_resets(make_client: MakeClient, shortened: str, wrong: int, version: str) -> None:
    client = make_client(version)
    assert isinstance(client, JavaClient)
    place = client.place(shortened, 0)
    with client.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([place])
        consumer.seek(place, wrong)
        deadline = Deadline("record")
        found: list[Any] = []
        while not found and deadline.open():
            found = list(consumer.poll(client.duration(500)).records(place))
    assert found[0].offset() == 5
