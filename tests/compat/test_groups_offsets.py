"""Where a consumer goes on after a crash: when it commits decides what is lost, and what comes twice."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from .clients import Deadline
from .clients.confluent import Confluent
from .clients.java import JavaClient
from .conftest import MakeClient, NewTopic
from .sample import numbered

RECORDS = 20
_numbers = itertools.count()


@pytest.fixture
def group() -> str:
    return f"offsets-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def topic(new_topic: NewTopic, reader: Confluent) -> str:
    name = new_topic()
    reader.produce(name, numbered(RECORDS))
    return name


@contextmanager
def consumer(bootstrap: str, group: str, topic: str | None = None, **options: Any) -> Iterator[Consumer]:
    """A member that says good-bye in the end, so that the next need not wait for its session."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    } | {name.replace("_", "."): value for name, value in options.items()}
    made = Consumer(settings)
    if topic is not None:
        made.subscribe([topic])
    yield made
    made.close()


def read(made: Consumer, count: int) -> list[int]:
    """The numbers of the next records."""
    found: list[int] = []
    deadline = Deadline(f"{count} records")
    while len(found) < count and deadline.open():
        message = made.poll(0.2)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(int((message.value() or b"").decode()))
    return found


def rest(bootstrap: str, group: str, topic: str) -> list[int]:
    """What a successor in the group still gets to see."""
    with consumer(bootstrap, group, topic) as successor:
        found: list[int] = []
        while not found or found[-1] != RECORDS - 1:
            found += read(successor, 1)
    return found


def test_commit_before_processing_loses_what_a_crash_leaves_unprocessed(
    bootstrap: str, group: str, topic: str
) -> None:
    """Claim E1: at most once."""
    processed: list[int] = []
    with consumer(bootstrap, group, topic) as member:
        for _ in range(10):
            (number,) = read(member, 1)
            member.commit(asynchronous=False)
            if number == 9:
                break  # the process dies here, with its tenth record in hand
            processed.append(number)
    processed += rest(bootstrap, group, topic)
    assert processed == [number for number in range(RECORDS) if number != 9]


def test_commit_after_processing_repeats_what_a_crash_leaves_uncommitted(
    bootstrap: str, group: str, topic: str
) -> None:
    """Claim E2: at least once."""
    processed: list[int] = []
    with consumer(bootstrap, group, topic) as member:
        for _ in range(10):
            processed += read(member, 1)
            if processed[-1] == 9:
                break  # the process dies here, with its tenth record processed
            member.commit(asynchronous=False)
    processed += rest(bootstrap, group, topic)
    assert processed == [*range(10), *range(9, RECORDS)]


def test_automatic_commits_lose_what_is_not_processed_yet(bootstrap: str, group: str, topic: str) -> None:
    """Claim E3: what was handed out is committed, whether or not anything has become of it."""
    options = {"enable_auto_commit": True, "auto_commit_interval_ms": 100}
    with consumer(bootstrap, group, topic, **options) as member:
        read(member, 10)  # into a queue that nobody works on
        deadline = Deadline("an automatic commit")
        while deadline.open():
            (place,) = member.committed([TopicPartition(topic, 0)], timeout=10)
            if place.offset == 10:
                break
    assert rest(bootstrap, group, topic) == list(range(10, RECORDS))


def test_an_application_may_keep_its_offsets_itself(bootstrap: str, group: str, topic: str) -> None:
    """Claim E5: the low level interface needs no group; the high level one keeps the place for us."""
    own_table: dict[int, int] = {}
    with consumer(bootstrap, group) as first:
        first.assign([TopicPartition(topic, 0, 0)])
        own_table[0] = read(first, 7)[-1] + 1
    with consumer(bootstrap, group) as second:
        second.assign([TopicPartition(topic, 0, own_table[0])])
        assert read(second, 3) == [7, 8, 9]
        (place,) = second.committed([TopicPartition(topic, 0)], timeout=10)
        assert place.offset < 0, "the group knows nothing of it"
    with consumer(bootstrap, group, topic) as member:
        assert read(member, 3) == [0, 1, 2]
        member.commit(asynchronous=False)
    with consumer(bootstrap, group, topic) as member:
        assert read(member, 3) == [3, 4, 5]


def test_a_rewound_group_gets_everything_again(bootstrap: str, group: str, topic: str) -> None:
    """Claim E7: only its own cooperation keeps a client from doing it all twice."""
    effects: list[int] = []
    seen: set[int] = set()
    with consumer(bootstrap, group, topic) as member:
        effects += read(member, RECORDS)
        seen |= set(effects)
        member.commit(asynchronous=False)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    back = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 5)])]
    admin.alter_consumer_group_offsets(back)[group].result()
    again = rest(bootstrap, group, topic)
    assert again == list(range(5, RECORDS))
    assert [number for number in again if number not in seen] == [], "an idempotent client does nothing"


def commit_with(name: str, make_client: MakeClient, bootstrap: str, group: str, topic: str) -> None:
    """Commit offset 7 with the text `from NAME`, each client in its own way."""
    made: Any
    if name == "confluent":
        with consumer(bootstrap, group) as made:
            made.commit(offsets=[TopicPartition(topic, 0, 7, f"from {name}")], asynchronous=False)
    elif name == "kafka-python":
        import kafka
        from kafka.structs import OffsetAndMetadata

        made = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
        place = kafka.TopicPartition(topic, 0)
        made.assign([place])
        made.commit({place: OffsetAndMetadata(7, f"from {name}", -1)})
        made.close()
    else:
        client = make_client(name)
        assert isinstance(client, JavaClient)
        clients = client.jvm.org.apache.kafka.clients.consumer
        with client.consumer(group_id=group) as made:
            offset = clients.OffsetAndMetadata(7, f"from {name}")
            made.commitSync({client.place(topic, 0): offset})


def text_committed(bootstrap: str, group: str, topic: str) -> str:
    """The text beside a committed offset. librdkafka forgets where it ends, so another client reads it."""
    import kafka

    made = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
    try:
        found = made.committed(kafka.TopicPartition(topic, 0), metadata=True)
    finally:
        made.close()
    return str(found.metadata).rstrip("\0")  # confluent-kafka sends the end of a C string along


@pytest.mark.parametrize(
    "name",
    [
        "confluent",
        "kafka-python",
        "java-4.3",
        "java-3.9",
    ],
)
def test_what_one_client_commits_every_other_reads(
    name: str, make_client: MakeClient, bootstrap: str, group: str, topic: str
) -> None:
    commit_with(name, make_client, bootstrap, group, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result()
    (place,) = found.topic_partitions
    assert (place.topic, place.partition, place.offset) == (topic, 0, 7)
    assert text_committed(bootstrap, group, topic) == f"from {name}"
    with consumer(bootstrap, group, topic) as member:
        assert read(member, 2) == [7, 8]
    if name.startswith("java"):
        client = make_client(name)
        assert isinstance(client, JavaClient)
        with client.consumer(group_id=group) as made:
            place = client.place(topic, 0)
            assert made.committed({place})[place].metadata() == f"from {name}"


def test_a_groups_offsets_go_with_its_topic(
    bootstrap: str, group: str, new_topic: NewTopic, topic_name: Callable[[], str]
) -> None:
    del topic_name
    kept, gone = new_topic(), new_topic()
    with consumer(bootstrap, group) as made:
        made.commit(offsets=[TopicPartition(kept, 0, 1), TopicPartition(gone, 0, 2)], asynchronous=False)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([gone])[gone].result()
    deadline = Deadline(f"end of {gone}'s offsets")
    while deadline.open():
        found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result()
        if [place.topic for place in found.topic_partitions] == [kept]:
            break
