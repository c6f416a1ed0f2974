"""Apache Kafka's own command-line tools, each run as a person runs it: a process of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gapless.testing.apache_kafka import kafka_tool

from .clients import Sending
from .clients.confluent import Confluent
from .conftest import NewTopic
from .jvm import run_tool
from .peers import Peer
from .raw import RawClient
from .sample import AN_HOUR_AGO_MS, numbered

pytestmark = pytest.mark.java_clients


@pytest.fixture
def at_broker(bootstrap: str) -> tuple[str, str]:
    return ("--bootstrap-server", bootstrap)


def test_kafka_topics(
    at_broker: tuple[str, str], raw: RawClient, peer: Peer, topic_name: Callable[[], str]
) -> None:
    """Claims A1, A8. The tool asks with DescribeTopicPartitions and shows topic id, leader and replicas."""
    topic = topic_name()
    made = run_tool("kafka-topics", *at_broker, "--create", "--topic", topic, "--partitions", "2")
    assert f"Created topic {topic}." in made
    raw.wait_for_leaders(topic, 2)
    again = kafka_tool("kafka-topics", *at_broker, "--create", "--topic", topic)
    assert again.returncode == 1
    assert f"Topic '{topic}' already exists." in again.stdout
    run_tool("kafka-topics", *at_broker, "--alter", "--topic", topic, "--partitions", "3")
    raw.wait_for_leaders(topic, 3)
    lines = run_tool("kafka-topics", *at_broker, "--describe", "--topic", topic).splitlines()
    counts = rf"PartitionCount: 3\tReplicationFactor: {peer.replicas}\t"
    assert re.search(rf"TopicId: [\w-]{{22}}\t{counts}", lines[0])
    columns = r"Partition: (\d)\tLeader: (\d+)\tReplicas: ([\d,]+)\tIsr: ([\d,]+)"
    places = [re.findall(columns, line)[0] for line in lines[1:]]
    assert [partition for partition, *_ in places] == ["0", "1", "2"]
    for _, leader, replicas, in_sync in places:
        assert replicas.split(",")[0] == leader
        assert len(replicas.split(",")) == peer.replicas
        assert sorted(in_sync.split(",")) == sorted(replicas.split(","))
    run_tool("kafka-topics", *at_broker, "--delete", "--topic", topic)
    raw.wait_until_unknown(topic)
    assert topic not in run_tool("kafka-topics", *at_broker, "--list").split()


def test_kafka_configs(at_broker: tuple[str, str], new_topic: NewTopic) -> None:
    of_topic = ("--entity-type", "topics", "--entity-name", new_topic())
    changes = "segment.ms=7000000,max.message.bytes=2000000"
    run_tool("kafka-configs", *at_broker, *of_topic, "--alter", "--add-config", changes)
    described = run_tool("kafka-configs", *at_broker, *of_topic, "--describe")
    assert "segment.ms=7000000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:segment.ms=7000000" in described
    assert (
        "max.message.bytes=2000000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:max.message.bytes=2000000, "
        "DEFAULT_CONFIG:message.max.bytes=1048588}"
    ) in described
    run_tool("kafka-configs", *at_broker, *of_topic, "--alter", "--delete-config", "segment.ms")
    described = run_tool("kafka-configs", *at_broker, *of_topic, "--describe", "--all")
    assert "segment.ms=604800000 sensitive=false" in described
    assert "max.message.bytes=2000000" in described


def test_kafka_configs_of_the_broker(at_broker: tuple[str, str], bootstrap: str) -> None:
    listed = run_tool("kafka-broker-api-versions", *at_broker)
    brokers = re.findall(r"^(\S+:\d+) \(id: (\d+) ", listed, re.MULTILINE)
    assert {address for address, _ in brokers} == set(bootstrap.split(","))
    address, broker_id = brokers[-1]
    for api, oldest_newest in {
        "Produce(0)": "0 to 13",
        "Fetch(1)": "4 to 18",
        "Metadata(3)": "0 to 13",
    }.items():
        assert f"{api}: {oldest_newest} [usable: " in listed
    of_broker = ("--entity-type", "brokers", "--entity-name", broker_id)
    described = run_tool("kafka-configs", *at_broker, *of_broker, "--describe", "--all")
    assert f"advertised.listeners=PLAINTEXT://{address} sensitive=false" in described
    assert "auto.create.topics.enable=true sensitive=false" in described


def test_kafka_delete_records_and_get_offsets(
    at_broker: tuple[str, str], reader: Confluent, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(2)
    reader.produce(topic, numbered(100), Sending(batch_bytes=300))
    wanted = tmp_path / "offsets.json"
    wanted.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 42}]})
    )
    deleted = run_tool("kafka-delete-records", *at_broker, "--offset-json-file", str(wanted))
    assert f"partition: {topic}-0\tlow_watermark: 42" in deleted

    def offsets(time: str) -> str:
        return run_tool("kafka-get-offsets", *at_broker, "--topic", topic, "--time", time)

    assert offsets("earliest").split() == [f"{topic}:0:42", f"{topic}:1:0"]
    assert offsets("latest").split() == [f"{topic}:0:100", f"{topic}:1:0"]
    assert f"{topic}:0:99" in offsets("max-timestamp").split()
    assert f"{topic}:0:60" in offsets(str(AN_HOUR_AGO_MS + 60_000)).split()


def test_kafka_log_dirs_and_describe_producers(
    at_broker: tuple[str, str], peer: Peer, reader: Confluent, new_topic: NewTopic
) -> None:
    """Claim C4: what the broker knows of a producer is told, its last sequence number among it."""
    topic = new_topic()
    reader.produce(topic, numbered(10, size_bytes=1_000), Sending(idempotent=True))
    printed = run_tool("kafka-log-dirs", *at_broker, "--describe", "--topic-list", topic)
    brokers = json.loads(printed.splitlines()[-1])["brokers"]
    assert len(brokers) == peer.replicas
    for broker in brokers:
        (log_dir,) = broker["logDirs"]
        (partition,) = log_dir["partitions"]
        assert log_dir["error"] is None
        assert partition["partition"] == f"{topic}-0"
        assert 10_000 < partition["size"] < 11_000
    of_partition = ("--topic", topic, "--partition", "0")
    table = run_tool("kafka-transactions", *at_broker, "describe-producers", *of_partition).splitlines()
    state = dict(zip(table[0].split(), table[1].split(), strict=True))
    assert (state["ProducerEpoch"], state["LastSequence"]) == ("0", "9")
    assert state["CurrentTransactionStartOffset"] == "None"


def test_kafka_producer_perf_test(at_broker: tuple[str, str], reader: Confluent, new_topic: NewTopic) -> None:
    """Idempotent and to three partitions at a time, as that producer comes: each record is counted once."""
    topic = new_topic(3)
    said = run_tool(
        *("kafka-producer-perf-test", *at_broker, "--topic", topic, "--num-records", "30000"),
        *("--record-size", "200", "--throughput", "-1", "--command-property", "compression.type=lz4"),
    )
    assert said.startswith("30000 records sent")
    assert sum(reader.bounds(topic, partition)[1] for partition in range(3)) == 30_000


def test_kafka_verifiable_producer(
    at_broker: tuple[str, str], reader: Confluent, new_topic: NewTopic
) -> None:
    """Every acknowledgement that it prints names the offset at which the record is."""
    topic = new_topic()
    said = run_tool("kafka-verifiable-producer", *at_broker, "--topic", topic, "--max-messages", "300")
    events = [json.loads(line) for line in said.splitlines()]
    acknowledged = {e["offset"]: e["value"] for e in events if e["name"] == "producer_send_success"}
    stored = {record.offset: (record.value or b"").decode() for record in reader.read(topic, 0, 0, 300)}
    assert acknowledged == stored
    assert events[-1]["acked"] == 300


def test_kafka_console_producer_and_consumer_of_a_partition(
    at_broker: tuple[str, str], reader: Confluent, new_topic: NewTopic
) -> None:
    topic = new_topic()
    options = ("parse.key=true", "parse.headers=true", "null.marker=NULL")
    reading = [part for option in options for part in ("--reader-property", option)]
    lines = "origin:console\tk1\tfirst\norigin:console\tk2\tNULL\norigin:console\tk3\tlast\n"
    run_tool("kafka-console-producer", *at_broker, "--topic", topic, *reading, stdin=lines)
    headers = (("origin", b"console"),)
    stored = [(record.key, record.value, record.headers) for record in reader.read(topic, 0, 0, 3)]
    assert stored == [(b"k1", b"first", headers), (b"k2", None, headers), (b"k3", b"last", headers)]
    shown = [f"--formatter-property=print.{what}=true" for what in ("offset", "key", "headers")]
    printed = run_tool(
        *("kafka-console-consumer", *at_broker, "--topic", topic, "--partition", "0", "--offset", "1"),
        *("--max-messages", "2", *shown),
    )
    assert printed.splitlines() == [
        "Offset:1\torigin:console\tk2\tnull",
        "Offset:2\torigin:console\tk3\tlast",
    ]
