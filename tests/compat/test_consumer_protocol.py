"""Groups of the newer protocol (KIP-848), in which the broker assigns: librdkafka and Java as members.

Claims A8 (a partition has one consumer in each group) and E2 (what was committed is not read again).
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from gapless.jars import jar_paths
from gapless.java import find_java
from gapless.testing.apache_kafka import TOOLS
from gapless.testing.broker import EmbeddedBroker

from .clients import Deadline
from .conftest import NewTopic as MakeTopic
from .jvm import run_tool
from .members import Member, parse_java, until

PARTITIONS = 4
JVM_OPTIONS = ("-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
_numbers = itertools.count()


class Team:
    """Members of one group in this process; all of them are polled in turn."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.group = f"newer-{os.getpid()}-{next(_numbers)}"
        self.members: list[Any] = []
        self.read: list[str] = []

    def add(self, *topics: str, **settings: Any) -> Any:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": self.group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
            }
            | {name.replace("_", "."): value for name, value in settings.items()}
        )
        consumer.subscribe(list(topics))
        self.members.append(consumer)
        return consumer

    def close(self, member: Any) -> None:
        self.members.remove(member)
        member.close()

    def poll_until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = Deadline(what, 40)
        while not condition() and deadline.open():
            for member in self.members:
                for message in member.consume(500, 0.05):
                    if message.error() is None:
                        self.read.append((message.value() or b"").decode())
                    elif message.error().code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
                        raise KafkaException(message.error())

    def shares(self, *counts: int) -> Callable[[], bool]:
        """Whether the members have so many partitions each, and none has another's."""

        def check() -> bool:
            owned = [[(p.topic, p.partition) for p in member.assignment()] for member in self.members]
            places = [place for places in owned for place in places]
            return sorted(map(len, owned)) == sorted(counts) and len(places) == len(set(places))

        return check

    def has_read(self, count: int) -> Callable[[], bool]:
        return lambda: len(self.read) >= count


@pytest.fixture
def team(bootstrap: str) -> Iterator[Team]:
    made = Team(bootstrap)
    yield made
    for member in list(made.members):
        made.close(member)


def produce(bootstrap: str, topic: str, numbers: range, partitions: int = PARTITIONS) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in numbers:
        producer.produce(topic, str(number).encode(), partition=number % partitions)
    assert producer.flush(30) == 0


def test_members_come_and_leave_and_read_everything_once(
    team: Team, bootstrap: str, new_topic: MakeTopic
) -> None:
    topic = new_topic(PARTITIONS)
    produce(bootstrap, topic, range(100))
    first = team.add(topic)
    team.poll_until("100 records", team.has_read(100))
    first.commit(asynchronous=False)
    team.add(topic)
    team.poll_until("two shares of two", team.shares(2, 2))
    produce(bootstrap, topic, range(100, 200))
    team.poll_until("200 records", team.has_read(200))
    for member in team.members:
        member.commit(asynchronous=False)
    team.close(first)
    team.poll_until("one share of four", team.shares(4))
    produce(bootstrap, topic, range(200, 300))
    team.poll_until("300 records", team.has_read(300))
    assert sorted(map(int, team.read)) == list(range(300))


def test_new_partitions_and_topics_are_shared_out(team: Team, bootstrap: str, new_topic: MakeTopic) -> None:
    topic = new_topic(2)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    team.add(f"^{topic}.*")
    team.add(f"^{topic}.*")
    team.poll_until("two shares of one", team.shares(1, 1))
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result()
    team.poll_until("two shares of two", team.shares(2, 2))
    admin.create_topics([NewTopic(f"{topic}-more", 2, 1)])[f"{topic}-more"].result()
    team.poll_until("two shares of three", team.shares(3, 3))


def test_a_static_member_comes_back_to_its_partitions(
    team: Team, bootstrap: str, new_topic: MakeTopic
) -> None:
    topic = new_topic(PARTITIONS)
    team.add(topic, group_instance_id="one")
    second = team.add(topic, group_instance_id="two")
    team.poll_until("two shares of two", team.shares(2, 2))
    had = second.assignment()
    team.close(second)
    again = team.add(topic, group_instance_id="two")
    team.poll_until("the same share", lambda: again.assignment() == had)
    assert team.shares(2, 2)()


@pytest.mark.java_clients
def test_kafkas_tools_show_such_a_group(team: Team, bootstrap: str, new_topic: MakeTopic) -> None:
    topic = new_topic(PARTITIONS)
    produce(bootstrap, topic, range(8))
    member = team.add(topic)
    team.poll_until("8 records", team.has_read(8))
    member.commit(asynchronous=False)
    ask = ("kafka-consumer-groups", "--bootstrap-server", bootstrap)
    of_group = (*ask, "--describe", "--group", team.group)
    assert re.search(rf"{team.group} +Consumer +Stable", run_tool(*ask, "--list", "--type", "--state"))
    assert re.search(r"uniform +Stable +(\d+) +\1 +1\n", run_tool(*of_group, "--state", "--verbose"))
    assert f"{topic}:0,1,2,3" in run_tool(*of_group, "--members", "--verbose")
    offsets = run_tool(*of_group)
    assert len(re.findall(rf"{topic} +\d +2 +2 +0 ", offsets)) == PARTITIONS


@pytest.mark.java_clients
def test_java_members_die_and_others_take_over(team: Team, bootstrap: str, new_topic: MakeTopic) -> None:
    topic = new_topic(PARTITIONS)
    members = [java_member(bootstrap, team.group, topic) for _ in range(2)]
    try:
        until("shares", lambda: sorted(len(each.partitions) for each in members) == [2, 2], *members)
        produce(bootstrap, topic, range(40))
        until("records", lambda: sum(len(each.read) for each in members) >= 40, *members)
        members[0].die()
        until("take-over", lambda: len(members[1].partitions) == PARTITIONS, members[1])
        team.add(topic)  # librdkafka and Java share a group
        team.poll_until("two each", lambda: team.shares(2)() and len(members[1].partitions) == 2)
    finally:
        for each in members:
            each.die()


def java_member(bootstrap: str, group: str, topic: str) -> Member:
    folder = jar_paths("kafka")[0].parent
    java: list[str | Path] = [find_java().executable, *JVM_OPTIONS, "-cp", f"{folder}/*"]
    options = ["--bootstrap-server", bootstrap, "--group-id", group, "--topic", topic, "--verbose"]
    tool = TOOLS["kafka-verifiable-consumer"]
    return Member([*java, tool, *options, "--group-protocol", "consumer"], parse_java)


def test_a_broker_that_was_killed_goes_on_with_its_groups() -> None:
    settings = {"group.consumer.heartbeat.interval.ms": "200", "group.consumer.session.timeout.ms": "10000"}
    with EmbeddedBroker(config=settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result()
        team = Team(broker.bootstrap)
        for _ in range(2):
            team.add("t")
        team.poll_until("two shares of two", team.shares(2, 2))
        produce(broker.bootstrap, "t", range(100))
        team.poll_until("100 records", team.has_read(100))
        for member in team.members:
            member.commit(asynchronous=False)
        had = [member.assignment() for member in team.members]
        broker.kill()
        broker.start()
        produce(broker.bootstrap, "t", range(100, 200))
        team.poll_until("200 records", team.has_read(200))
        assert [member.assignment() for member in team.members] == had
        assert sorted(map(int, team.read)) == list(range(200))
        for member in list(team.members):
            team.close(member)
