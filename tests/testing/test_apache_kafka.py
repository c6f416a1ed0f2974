"""The launcher of the real Apache Kafka."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from gapless.jars import jar_paths
from gapless.testing.apache_kafka import TOOLS, ApacheKafka, ApacheKafkaFailed, kafka_tool

pytestmark = pytest.mark.apache


@pytest.fixture(scope="module")
def kafka() -> Iterator[ApacheKafka]:
    with ApacheKafka(heap_mb=256, light=True, properties={"num.partitions": "3"}) as running:
        yield running


@pytest.mark.slow
def test_a_client_writes_and_reads(kafka: ApacheKafka) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce("letters", value=b"hello", partition=0)
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "readers"})
    try:
        consumer.assign([TopicPartition("letters", 0, 0)])
        message = consumer.poll(30)
        assert message is not None
        assert message.value() == b"hello"
    finally:
        consumer.close()


def test_its_tools_run_against_it_and_its_properties_are_used(kafka: ApacheKafka) -> None:
    created = kafka_tool(
        "kafka-topics", "--bootstrap-server", kafka.bootstrap, "--create", "--topic", "numbers"
    )
    assert created.stdout == "Created topic numbers.\n"
    described = kafka_tool(
        "org.apache.kafka.tools.TopicCommand",
        "--bootstrap-server",
        kafka.bootstrap,
        "--describe",
        "--topic",
        "numbers",
    )
    assert "PartitionCount: 3" in described.stdout


def test_every_tool_that_we_name_is_in_the_jars() -> None:
    classes = {
        name.removesuffix(".class").replace("/", ".")
        for jar in jar_paths("kafka")
        if jar.name.startswith("kafka")
        for name in zipfile.ZipFile(jar).namelist()
    }
    assert set(TOOLS.values()) <= classes


def test_a_node_that_does_not_come_up_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ApacheKafkaFailed) as failure, ApacheKafka(heap_mb=1):
        pytest.fail("a megabyte was enough")
    assert "heap" in str(failure.value)
    assert not list(tmp_path.rglob("server.log"))


def test_a_wrong_property_is_reported_and_leaves_nothing_on_disk() -> None:
    node = ApacheKafka(properties={"log.retention.ms": "soon"})
    with pytest.raises(ApacheKafkaFailed, match="soon"):
        node.start()
    with pytest.raises(ApacheKafkaFailed, match="no folder"):
        _ = node.folder


def test_nothing_is_left_after_the_block() -> None:
    with ApacheKafka(heap_mb=256) as node:
        pid, folder = node.pid, node.folder
        node.kill()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert (node.data_folder / "meta.properties").is_file()
    assert not folder.exists()
