"""Reading with and without regard to transactions, by every client; and what a group has committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from aiokafka import TopicPartition as AioPlace
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from kafka import TopicPartition as KafkaPythonPlace

from .clients import ANSWER_TIMEOUT_S, Client, Deadline
from .clients.aio import Aiokafka
from .clients.confluent import Confluent
from .clients.java import JavaClient
from .clients.kafka_python import KafkaPython
from .clients.kcat import Kcat

NewName = Callable[[], str]


def read_isolated(client: Client, bootstrap: str, topic: str, count: int, *, committed: bool) -> list[bytes]:
    """The first `count` values of partition 0."""
    level = "read_committed" if committed else "read_uncommitted"
    deadline = Deadline(f"{count} records of {topic}")
    found: list[bytes] = []
    if isinstance(client, Confluent):
        with client.consumer(isolation_level=level) as consumer:
            consumer.assign([TopicPartition(topic, 0, 0)])
            while len(found) < count and deadline.open():
                found += [message.value() or b"" for message in consumer.consume(count - len(found), 0.5)]
    elif isinstance(client, KafkaPython):
        place = KafkaPythonPlace(topic, 0)
        with client.consumer(isolation_level=level) as consumer:
            consumer.assign([place])
            consumer.seek(place, 0)
            while len(found) < count and deadline.open():
                found += [message.value for message in consumer.poll(timeout_ms=500).get(place, ())]
    elif isinstance(client, Aiokafka):
        found = asyncio.run(_read_aio(client, topic, count, level))
    elif isinstance(client, JavaClient):
        with client.consumer(isolation_level=level) as consumer:
            place = client.place(topic, 0)
            consumer.assign([place])
            consumer.seek(place, 0)
            while len(found) < count and deadline.open():
                found += [message.value() for message in consumer.poll(client.duration(500)).records(place)]
    elif isinstance(client, Kcat):
        arguments = ["-C", "-t", topic, "-p", "0", "-o", "0", "-c", str(count)]
        output = client.run(*arguments, "-X", f"isolation.level={level}", "-f", "%s\n")
        found = output.split(b"\n")
    return found[:count]


async def _read_aio(client: Aiokafka, topic: str, count: int, level: str) -> list[bytes]:
    place = AioPlace(topic, 0)
    async with client.consumer(isolation_level=level) as consumer, asyncio.timeout(ANSWER_TIMEOUT_S):
        consumer.assign([place])
        consumer.seek(place, 0)
        return [(await consumer.getone(place)).value for _ in range(count)]


def values(bootstrap: str, topic: str, partition: int = 0, *, committed: bool = True) -> list[bytes]:
    """Return the values of one partition that a librdkafka consumer delivers up to its end."""
    return values_by_partition(bootstrap, topic, [partition], committed=committed)[partition]


def values_by_partition(
    bootstrap: str, topic: str, partitions: Iterable[int], *, committed: bool = True
) -> dict[int, list[bytes]]:
    """Return the values of some partitions that a librdkafka consumer delivers up to their ends."""
    found: dict[int, list[bytes]] = {partition: [] for partition in partitions}
    unfinished = set(found)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "never-joined",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in found])
        deadline = Deadline(f"end of {topic}")
        while unfinished and deadline.open():
            message = consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            place: Any = message.partition()
            if error is None:
                found[place].append(message.value() or b"")
            elif error.code() == KafkaError._PARTITION_EOF:
                unfinished.discard(place)
            else:
                raise KafkaException(error)
    finally:
        consumer.close()
    return found


def committed_offset(bootstrap: str, group: str, topic: str) -> int:
    """A group's offset in partition 0; negative if it has committed none."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])]
    (answer,) = admin.list_consumer_group_offsets(asked).values()
    (found,) = answer.result(ANSWER_TIMEOUT_S).topic_partitions
    return int(found.offset)
