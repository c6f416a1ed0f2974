"""Groups of every client: members come, leave, die and come back, and each partition has one reader.

Claims A8 (a partition has one consumer in each group) and E2 (who dies before its commit is read again).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from .clients import Sending
from .clients.confluent import Confluent
from .conftest import NewTopic
from .members import KINDS, Member, Members, until
from .sample import Record

PARTITIONS = 6
_numbers = itertools.count()

NewGroup = Callable[[], str]


@pytest.fixture
def new_group() -> NewGroup:
    return lambda: f"group-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def members(bootstrap: str, tmp_path: Path) -> Iterator[Members]:
    started = Members(bootstrap, tmp_path)
    yield started
    started.close()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


class Work:
    """Numbered records in all partitions, more with every call."""

    def __init__(self, reader: Confluent, topic: str) -> None:
        self._reader = reader
        self._topic = topic
        self.sent: set[str] = set()

    def send(self, count: int = 60) -> None:
        numbers = [str(len(self.sent) + number) for number in range(count)]
        records = [
            Record(partition=index % PARTITIONS, value=number.encode(), timestamp_ms=None)
            for index, number in enumerate(numbers)
        ]
        self._reader.produce(self._topic, records, Sending(idempotent=True))
        self.sent |= set(numbers)


def share_fairly(*members: Member) -> Callable[[], bool]:
    """Whether these members have all partitions between them, each one once, and about equally many."""

    def check() -> bool:
        shares = [len(member.partitions) for member in members]
        owned = set().union(*(member.partitions for member in members))
        return sum(shares) == len(owned) == PARTITIONS and max(shares) - min(shares) <= 1

    return check


def all_read(work: Work, *members: Member) -> Callable[[], bool]:
    return lambda: work.sent <= set().union(*(member.read for member in members))


@pytest.mark.slow_variants("confluent-range")
def test_members_come_leave_die_and_come_back(
    kind: str, members: Members, reader: Confluent, new_topic: NewTopic, new_group: NewGroup
) -> None:
    topic, group = new_topic(PARTITIONS), new_group()
    work = Work(reader, topic)
    work.send()
    first = members.start(kind, group, topic)
    until("sole reader", share_fairly(first), first)
    until("records", all_read(work, first), first)
    second, third = members.start(kind, group, topic), members.start(kind, group, topic)
    until("shares of three", share_fairly(first, second, third), first, second, third)
    work.send()
    until("records", all_read(work, first, second, third), first, second, third)
    second.leave()
    until("shares of two", share_fairly(first, third), first, third)
    third.die()
    until("sole reader again", share_fairly(first), first)
    work.send()
    until("records", all_read(work, first, second, third), first)
    back = members.start(kind, group, topic)
    until("shares with who came back", share_fairly(first, back), first, back)
    work.send()
    everybody = (first, second, third, back)
    until("records", all_read(work, *everybody), *everybody)
    read = [value for member in everybody for value in member.read]
    assert set(read) == work.sent
    # Only what was read and not yet committed when the third was killed may be read twice.
    assert len(read) - len(work.sent) <= 120


@pytest.mark.java_clients
def test_clients_of_different_makes_share_one_group(
    members: Members, reader: Confluent, new_topic: NewTopic, new_group: NewGroup
) -> None:
    """librdkafka, kafka-python, aiokafka and Java, each with its own versions of every message."""
    topic, group = new_topic(PARTITIONS), new_group()
    work = Work(reader, topic)
    work.send()
    mixed = [
        members.start(kind, group, topic) for kind in ("confluent-range", "kafka-python", "aiokafka", "java")
    ]
    until("shares of all makes", share_fairly(*mixed), *mixed)
    work.send()
    until("records", all_read(work, *mixed), *mixed)


@pytest.mark.parametrize("kind", ["confluent-range", "kafka-python", "aiokafka"])
def test_a_static_member_that_is_restarted_keeps_its_partitions(
    kind: str,
    members: Members,
    reader: Confluent,
    new_topic: NewTopic,
    new_group: NewGroup,
    bootstrap: str,
) -> None:
    """Killed and back within its session: the others are not even asked to rebalance."""
    topic, group = new_topic(PARTITIONS), new_group()
    work = Work(reader, topic)
    stays = members.start(kind, group, topic, "stays")
    restarts = members.start(kind, group, topic, "restarts")
    until("shares", share_fairly(stays, restarts), stays, restarts)
    before = set(restarts.partitions)
    said = len(stays.words)
    restarts.die()
    again = members.start(kind, group, topic, "restarts")
    until("the same partitions", lambda: again.partitions == before, stays, again)
    work.send()
    until("records", all_read(work, stays, again), stays, again)
    assert not [line for line in stays.words[said:] if "partitions" in line], "nobody else noticed"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    described = admin.describe_consumer_groups([group])[group].result()
    assert {member.group_instance_id for member in described.members} == {"stays", "restarts"}
