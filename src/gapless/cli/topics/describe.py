"""`gapless topics describe`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from confluent_kafka import Node, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, TopicDescription

from gapless.cli.connection import BootstrapOption, ClientConfigOption, Connection, JsonOption, kafka_errors
from gapless.cli.group import examples
from gapless.cli.output import say, say_json, say_table
from gapless.cli.single_brokers import SingleBrokers
from gapless.cli.topics.offsets import ask_ranges
from gapless.cli.topics.replicas import ask_replicas

EXAMPLES = examples(
    "gapless topics describe orders",
    "gapless topics describe orders --json | jq .configs",
    "gapless topics describe orders --replicas",
)


def describe(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The topic.")],
    replicas: Annotated[
        bool, typer.Option("--replicas", help="Ask each replica for the state of its own log.")
    ] = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = None,
    client_config: ClientConfigOption = None,
) -> None:
    """Show a topic's partitions with leader, replicas and offsets, and its settings that are not defaults."""
    connection = Connection(bootstrap, client_config)
    if replicas:
        describe_replicas(connection, name, as_json)
        return
    admin = connection.admin()
    with kafka_errors(f"cannot describe {name}"):
        topic = admin.describe_topics(TopicCollection([name]), request_timeout=10)[name].result()
        configs = _settings_of(admin, name)
    partitions = _partitions_of(admin, topic)
    if as_json:
        say_json(
            {
                "topic": name,
                "id": _topic_id(topic),
                "internal": topic.is_internal,
                "partitions": partitions,
                "configs": {config["name"]: config["value"] for config in configs},
            }
        )
        return
    say(f"{name}  (id {_topic_id(topic)}{', internal' if topic.is_internal else ''})")
    say_table(
        ("partition", "leader", "replicas", "in sync", "start", "end", "records"),
        [
            (
                p["partition"],
                p["leader"],
                _ids(p["replicas"]),
                _ids(p["isr"]),
                p["start"],
                p["end"],
                p["records"],
            )
            for p in partitions
        ],
    )
    if configs:
        say_table(("setting", "value", "set by"), [(c["name"], c["value"], c["source"]) for c in configs])
    else:
        say("all settings are defaults")


def describe_replicas(connection: Connection, name: str, as_json: bool) -> None:
    """Leader, epoch and in-sync set of each partition, and start, end and high watermark of each replica."""
    brokers = SingleBrokers(connection)
    try:
        states = ask_replicas(brokers, name)
    finally:
        brokers.close()
    if as_json:
        partitions = [
            {**state._asdict(), "replicas": [replica._asdict() for replica in state.replicas]}
            for state in states
        ]
        say_json({"topic": name, "partitions": partitions})
        return
    say_table(
        ("partition", "epoch", "broker", "role", "start", "end", "high watermark"),
        [(state.partition, state.leader_epoch, *replica) for state in states for replica in state.replicas],
        title=name,
    )


def _partitions_of(admin: AdminClient, topic: TopicDescription) -> list[dict[str, Any]]:
    numbers = sorted(partition.id for partition in topic.partitions)
    ranges = ask_ranges(admin, [(topic.name, number) for number in numbers])
    return [
        {
            "partition": partition.id,
            "leader": _id(partition.leader),
            "replicas": [node.id for node in partition.replicas],
            "isr": [node.id for node in partition.isr],
            "start": ranges[topic.name, partition.id].start,
            "end": ranges[topic.name, partition.id].end,
            "records": ranges[topic.name, partition.id].records,
        }
        for partition in sorted(topic.partitions, key=lambda partition: partition.id)
    ]


def _settings_of(admin: AdminClient, name: str) -> list[dict[str, str]]:
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    entries = admin.describe_configs([resource])[resource].result().values()
    return [
        {
            "name": entry.name,
            "value": "(hidden)" if entry.is_sensitive else str(entry.value),
            "source": ConfigSource(entry.source).name.removesuffix("_CONFIG").replace("_", " ").lower(),
        }
        for entry in sorted(entries, key=lambda entry: entry.name)
        if not entry.is_default and entry.source != ConfigSource.DEFAULT_CONFIG.value
    ]


def _topic_id(topic: TopicDescription) -> str:
    """As Kafka's own tools print it: librdkafka uses the other alphabet of base64."""
    return str(topic.topic_id).replace("+", "-").replace("/", "_")


def _id(node: Node | None) -> int | None:
    """A partition without leader has none, whatever the client library's types say."""
    return node.id if node is not None else None


def _ids(numbers: list[int]) -> str:
    return " ".join(map(str, numbers)) or "-"
