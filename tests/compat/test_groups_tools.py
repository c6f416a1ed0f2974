"""Kafka's own tools on our groups: they list, describe, reset and delete them, and decode their records."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from gapless.core.shard import shard_of

from .admins.confluent import ConfluentAdmin
from .clients import eventually
from .clients.confluent import Confluent
from .conftest import NewTopic
from .jvm import run_formatter, run_tool
from .members import Members, until
from .peers import Peer
from .raw import COORDINATORS
from .sample import numbered

pytestmark = pytest.mark.java_clients
RECORDS = 100
_numbers = itertools.count()


@pytest.fixture
def at_broker(bootstrap: str) -> tuple[str, str]:
    return "--bootstrap-server", bootstrap


@pytest.fixture
def group() -> str:
    return f"tools-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def members(bootstrap: str, tmp_path: Path) -> Iterator[Members]:
    started = Members(bootstrap, tmp_path)
    yield started
    started.close()


def commit(bootstrap: str, group: str, topic: str, *offsets: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    places = [TopicPartition(topic, index, offset, "note") for index, offset in enumerate(offsets)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def table(printed: str) -> list[dict[str, str]]:
    """The rows of a table that kafka-consumer-groups prints, by its headings."""
    lines = [line.split() for line in printed.splitlines() if line.strip()]
    start = next(index for index, line in enumerate(lines) if line[0] in ("GROUP", "TOPIC"))
    return [dict(zip(lines[start], line, strict=False)) for line in lines[start + 1 :]]


def lags(at_broker: tuple[str, str], group: str) -> dict[int, tuple[str, str, str]]:
    printed = run_tool("kafka-consumer-groups", *at_broker, "--describe", "--group", group)
    return {
        int(row["PARTITION"]): (row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"])
        for row in table(printed)
    }


def test_kafka_consumer_groups_lists_describes_resets_and_deletes(
    at_broker: tuple[str, str], bootstrap: str, group: str, reader: Confluent, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    reader.produce(topic, numbered(RECORDS))
    commit(bootstrap, group, topic, 40, 0)
    groups = ("kafka-consumer-groups", *at_broker)
    assert group in run_tool(*groups, "--list").split()
    assert lags(at_broker, group) == {0: ("40", "100", "60"), 1: ("0", "0", "0")}
    states = run_tool(*groups, "--list", "--state", "Empty")
    assert re.search(rf"^{group}\s+Empty", states, re.MULTILINE)
    to_start = ("--reset-offsets", "--group", group, "--topic", f"{topic}:0", "--to-earliest")
    run_tool(*groups, *to_start, "--dry-run")
    assert lags(at_broker, group)[0] == ("40", "100", "60")
    run_tool(*groups, *to_start, "--execute")
    assert lags(at_broker, group)[0] == ("0", "100", "100")
    run_tool(*groups, "--delete-offsets", "--group", group, "--topic", f"{topic}:1")
    assert set(lags(at_broker, group)) == {0}
    assert "was successful" in run_tool(*groups, "--delete", "--group", group)
    assert group not in run_tool(*groups, "--list").split()


@pytest.mark.slow
def test_kafka_consumer_groups_shows_live_members(
    at_broker: tuple[str, str], group: str, members: Members, new_topic: NewTopic
) -> None:
    topic = new_topic(3)
    member = members.start("confluent-range", group, topic, "box-1")
    until("partitions", lambda: len(member.partitions) == 3, member)
    groups = ("kafka-consumer-groups", *at_broker, "--describe", "--group", group)
    (row,) = table(run_tool(*groups, "--members", "--verbose"))
    assert row["GROUP-INSTANCE-ID"] == "box-1"
    assert row["HOST"] == "/127.0.0.1"
    assert row["#PARTITIONS"] == "3"
    assert f"{topic}" in row["CURRENT-ASSIGNMENT"] if "CURRENT-ASSIGNMENT" in row else True
    (row,) = table(run_tool(*groups, "--state"))
    assert "Stable" in row.values()
    refused = run_tool(
        *("kafka-consumer-groups", *at_broker, "--reset-offsets", "--group", group),
        *("--all-topics", "--to-earliest", "--execute"),
    )
    assert "inactive" in refused


def test_kafka_console_consumer_goes_on_where_its_group_was(
    at_broker: tuple[str, str], group: str, reader: Confluent, new_topic: NewTopic
) -> None:
    topic = new_topic()
    reader.produce(topic, numbered(RECORDS))
    consume = ("kafka-console-consumer", *at_broker, "--topic", topic, "--group", group)
    first = run_tool(*consume, "--from-beginning", "--max-messages", "30").split()
    second = run_tool(*consume, "--max-messages", "70").split()
    assert [int(number) for number in first + second] == list(range(RECORDS))
    eventually(lambda: lags(at_broker, group)[0], ("100", "100", "0"))


def test_kafka_consumer_perf_test_reads_as_a_group(
    at_broker: tuple[str, str], group: str, reader: Confluent, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    reader.produce(topic, numbered(5_000))
    options = ("--topic", topic, "--num-records", "5000", "--group", group, "--hide-header")
    printed = run_tool("kafka-consumer-perf-test", *at_broker, *options)
    assert printed.split(", ")[4] == "5000"


@pytest.mark.slow
def test_kafka_decodes_the_records_of_groups_and_offsets(
    bootstrap: str,
    group: str,
    members: Members,
    reader: Confluent,
    new_topic: NewTopic,
    peer: Peer,
) -> None:
    """They are Kafka's own formats: its dump tool and its console formatters tell what is in them."""
    topic = new_topic()
    reader.produce(topic, numbered(10))
    commit(bootstrap, group, topic, 3)
    member = members.start("java", group, topic)
    until("records", lambda: len(member.read) == 7, member)
    member.leave()
    shard = shard_of(group, COORDINATORS)

    def decoded(formatter: str) -> list[Any]:
        found = run_formatter(formatter, bootstrap, "__consumer_offsets", shard)
        return [document for document in found if document["key"]["data"]["group"] == group]

    offsets = decoded("OffsetsMessageFormatter")
    assert offsets[0]["key"]["data"] == {"group": group, "topic": topic, "partition": 0}
    assert offsets[0]["value"]["data"]["metadata"].startswith("note")
    assert [each["value"]["data"]["offset"] for each in offsets][::6] in ([3], [3, 10])
    states = decoded("GroupMetadataMessageFormatter")
    assert states[-1]["value"]["data"]["protocolType"] == "consumer"
    assert states[-1]["value"]["data"]["members"] == [], "its last member has left"
    assert any(len(each["value"]["data"]["members"]) == 1 for each in states)
    if peer.data_dirs:
        leader = ConfluentAdmin(bootstrap).describe("__consumer_offsets")[shard].leader
        folder = peer.data_dirs[leader] / f"__consumer_offsets-{shard}"
        segment = folder / "00000000000000000000.log"
        dumped = run_tool("kafka-dump-log", "--files", str(segment), "--offsets-decoder")
        assert f'key: {{"type":"1","data":{{"group":"{group}","topic":"{topic}","partition":0}}}}' in dumped
        assert re.search(rf'"type":"2","data":{{"group":"{group}"}}.*"protocolType":"consumer"', dumped)
