"""`gapless topics create`."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Annotated

import typer
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from gapless.cli.connection import BootstrapOption, ClientConfigOption, Connection, kafka_errors, split_pairs
from gapless.cli.group import examples
from gapless.cli.output import say

_KNOWN_S, _AGAIN_S = 5.0, 0.02

EXAMPLES = examples(
    "gapless topics create orders --partitions 6",
    "gapless topics create audit --config flush.messages=1",
)


def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new topic.")],
    partitions: Annotated[int, typer.Option(metavar="N", min=1, help="How many partitions.")] = 1,
    replication_factor: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="How many copies.", show_default="the cluster's"),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", metavar="KEY=VALUE", help="A setting of the topic; may be repeated."),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="An existing topic is no error.")
    ] = False,
    bootstrap: BootstrapOption = None,
    client_config: ClientConfigOption = None,
) -> None:
    """Create a topic."""
    settings = split_pairs(config or [], "--config")
    admin = Connection(bootstrap, client_config).admin()
    # The cluster fills in its default for a replication factor of -1.
    topic = NewTopic(name, partitions, replication_factor or -1, config=settings)
    created = admin.create_topics([topic])[name]
    with kafka_errors(f"cannot create {name}"):
        try:
            created.result()
        except KafkaException as error:
            if not (if_not_exists and error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS):
                raise
            say(f"{name} exists already")
            return
    _wait_until_known(admin, name, partitions)
    say(f"created {name} with {partitions} partition{'s' if partitions != 1 else ''}")


def _wait_until_known(admin: AdminClient, name: str, partitions: int) -> None:
    """A broker of Apache Kafka may hear of a new topic a moment after the one that was asked to make it."""
    give_up_at = time.monotonic() + _KNOWN_S
    while time.monotonic() < give_up_at:
        with suppress(KafkaException):
            known = admin.list_topics(timeout=_KNOWN_S).topics.get(name)
            if known is not None and len(known.partitions) == partitions:
                return
        time.sleep(_AGAIN_S)
