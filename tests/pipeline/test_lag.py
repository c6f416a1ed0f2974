"""A pipeline's progress is a consumer group on the source's cluster: every Kafka tool shows its lag."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as At
from confluent_kafka.admin import AdminClient, NewPartitions

from gapless.cli import run
from gapless.pipeline.lag import Edges, SourceGroup
from gapless.pipeline.progress import TopicPartition
from gapless.pipeline.properties import client_properties
from gapless.testing.apache_kafka import kafka_tool
from tests.pipeline.dedup.batches import Sent, send

Capture = pytest.CaptureFixture[str]


def group_of(bootstrap: str, topic: str) -> SourceGroup:
    properties = client_properties().for_librdkafka(bootstrap)
    return SourceGroup(properties, f"gapless.pipeline.of-{topic}", [topic])


def numbered(partition: int, count: int) -> list[Sent]:
    return [Sent(partition, b"%d" % number, []) for number in range(count)]


def described(bootstrap: str, topic: str, capfd: Capture) -> dict[int, tuple[int, int]]:
    """What `gapless groups describe` says: committed and lag by partition."""
    capfd.readouterr()
    group = f"gapless.pipeline.of-{topic}"
    assert run(["groups", "describe", group, "--json", "--bootstrap", bootstrap]) == 0
    told = json.loads(capfd.readouterr().out)
    return {each["partition"]: (each["committed"], each["lag"]) for each in told["partitions"]}


def test_the_group_shows_where_the_pipeline_is(bootstrap: str, topic: str, capfd: Capture) -> None:
    send(bootstrap, topic, [*numbered(0, 10), *numbered(1, 5)])
    group = group_of(bootstrap, topic)
    assert group.edges() == {TopicPartition(topic, 0): Edges(0, 10), TopicPartition(topic, 1): Edges(0, 5)}
    group.commit({TopicPartition(topic, 0): 7, TopicPartition(topic, 1): 0})
    assert group.lag() == {TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 5}
    assert described(bootstrap, topic, capfd) == {0: (7, 3), 1: (0, 5)}
    group.commit({TopicPartition(topic, 0): 10, TopicPartition(topic, 1): 5})
    assert group.lag() == {TopicPartition(topic, 0): 0, TopicPartition(topic, 1): 0}
    assert described(bootstrap, topic, capfd) == {0: (10, 0), 1: (5, 0)}


def test_partitions_that_are_added_appear_and_deleted_records_are_no_lag(bootstrap: str, topic: str) -> None:
    send(bootstrap, topic, numbered(0, 4))
    group = group_of(bootstrap, topic)
    group.commit({TopicPartition(topic, 0): 4, TopicPartition(topic, 1): 0})
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    send(bootstrap, topic, numbered(2, 6))
    for done in admin.delete_records([At(topic, 2, 2)]).values():
        done.result(30)
    assert group.lag() == {TopicPartition(topic, n): lag for n, lag in enumerate([0, 0, 4])}


@pytest.mark.java_clients
def test_kafkas_own_tool_shows_it(bootstrap: str, topic: str) -> None:
    send(bootstrap, topic, numbered(0, 10))
    group_of(bootstrap, topic).commit({TopicPartition(topic, 0): 7})
    group = f"gapless.pipeline.of-{topic}"
    shown = kafka_tool(
        "kafka-consumer-groups", "--bootstrap-server", bootstrap, "--describe", "--group", group
    )
    [line] = [line.split() for line in shown.stdout.splitlines() if line.startswith(group)]
    assert line[1:6] == [topic, "0", "7", "10", "3"]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.WARNING, "gapless.pipeline"):
        yield caplog


def test_a_group_that_others_use_is_a_warning_and_stops_nothing(
    bootstrap: str, topic: str, told: pytest.LogCaptureFixture
) -> None:
    member = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"gapless.pipeline.of-{topic}", "log_level": 0}
    )
    member.subscribe([topic])
    for _ in range(300):
        member.poll(0.1)
        if member.assignment():
            break
    group = group_of(bootstrap, topic)
    group.commit({TopicPartition(topic, 0): 0})
    group.commit({TopicPartition(topic, 0): 0})
    member.close()
    [warning] = told.records
    assert "does not show the pipeline's progress" in warning.getMessage()
    group.commit({TopicPartition(topic, 0): 0})
    assert len(told.records) == 1


def test_a_cluster_that_does_not_answer_is_a_warning_and_stops_nothing(
    told: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gapless.pipeline.lag._PATIENCE_S", 1.0)
    group = group_of("127.0.0.1:1", "orders")
    group.commit({TopicPartition("orders", 0): 5})
    assert group.lag() == {}
    group.commit({TopicPartition("orders", 0): 6})
    assert group.lag() == {}
    assert len(told.records) == 2, "each once"
