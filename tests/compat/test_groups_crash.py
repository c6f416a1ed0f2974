"""The broker is killed: what groups have committed survives, and their members go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from gapless.core.shard import shard_of
from gapless.testing.broker import EmbeddedBroker
from gapless.wire.group_records import GroupKey, decode_group, decode_key

from .clients import Deadline
from .members import Members, until

PARTITIONS = 4
SETTINGS = {"group.min.session.timeout.ms": "1000"}


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(config=SETTINGS) as started:
        admin = AdminClient({"bootstrap.servers": started.bootstrap})
        admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result()
        yield started


def produce(broker: EmbeddedBroker, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for number in numbers:
        producer.produce("t", str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(30) == 0


def generation(broker: EmbeddedBroker, group: str) -> int:
    """The newest generation in the log, as a client with the group's own eyes would see it."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "looker", "enable.partition.eof": True}
    )
    place = TopicPartition("__consumer_offsets", shard_of(group, 50), 0)
    consumer.assign([place])
    newest = -1
    deadline = Deadline("the end of __consumer_offsets")
    while deadline.open():
        message = consumer.poll(0.5)
        if message is None:
            continue
        if message.error() is not None:
            break
        key = decode_key(message.key() or b"")
        if key == GroupKey(group):
            newest = decode_group(message.value() or b"").generation
    consumer.close()
    return newest


def test_commits_survive_a_sigkill(broker: EmbeddedBroker) -> None:
    """Every acknowledged commit is there afterwards, and never an older one."""
    random = Random(5)
    acknowledged = dict.fromkeys(range(PARTITIONS), 0)
    for _ in range(4):
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
        for _ in range(random.randrange(20, 60)):
            partition = random.randrange(PARTITIONS)
            offset = acknowledged[partition] + 1
            consumer.commit(offsets=[TopicPartition("t", partition, offset)], asynchronous=False)
            acknowledged[partition] = offset
        broker.kill()
        broker.start()
        places = [TopicPartition("t", partition) for partition in range(PARTITIONS)]
        found = consumer.committed(places, timeout=30)
        assert {place.partition: place.offset for place in found} == acknowledged
        consumer.close()


@pytest.mark.slow_variants("confluent-range")
@pytest.mark.parametrize("kind", ["confluent-range", "confluent-cooperative", "kafka-python", "aiokafka"])
def test_members_go_on_when_the_broker_comes_back(kind: str, broker: EmbeddedBroker, tmp_path: Path) -> None:
    """The group is read back with its members: they go on in the same generation, without a rebalance."""
    members = Members(broker.bootstrap, tmp_path)
    try:
        two = [members.start(kind, "g", "t") for _ in range(2)]
        until("shares", lambda: [len(member.partitions) for member in two] == [2, 2], *two)
        produce(broker, range(100))
        until("records", lambda: sum(len(member.read) for member in two) >= 100, *two)
        before = generation(broker, "g")
        broker.kill()
        broker.start()
        produce(broker, range(100, 200))
        everything = {str(number) for number in range(200)}
        until("records", lambda: everything == {*two[0].read, *two[1].read}, *two)
        assert [len(member.partitions) for member in two] == [2, 2]
        assert generation(broker, "g") == before
        two[1].die()
        until("all partitions", lambda: len(two[0].partitions) == PARTITIONS, *two)
    finally:
        members.close()


def test_a_group_forms_although_the_broker_dies_while_it_does(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Killed at random moments of joining and syncing: in the end every partition has one reader."""
    members = Members(broker.bootstrap, tmp_path)
    random = Random(11)
    try:
        group = []
        for number in range(3):
            group.append(members.start("confluent-range", "g", "t"))
            for _ in range(2):
                pause = Deadline("a moment", random.uniform(0.05, 0.6))
                try:
                    while pause.open():
                        pass
                except TimeoutError:
                    broker.kill()
                    broker.start()
            produce(broker, range(number * 40, number * 40 + 40))
        everything = {str(number) for number in range(120)}
        until(
            "one reader of each partition",
            lambda: sorted(len(member.partitions) for member in group) == [1, 1, 2],
            *group,
        )
        until("records", lambda: everything == {value for member in group for value in member.read}, *group)
        owned = [place for member in group for place in member.partitions]
        assert len(set(owned)) == len(owned) == PARTITIONS
    finally:
        members.close()
