"""`gapless topics alter`."""

from __future__ import annotations

from typing import Annotated

import typer
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
)

from gapless.cli.connection import BootstrapOption, ClientConfigOption, Connection, kafka_errors, split_pairs
from gapless.cli.group import examples
from gapless.cli.output import say
from gapless.errors import GaplessError, UsageError

EXAMPLES = examples(
    "gapless topics alter orders --partitions 12",
    "gapless topics alter orders --config flush.ms=50 --delete-config retention.ms",
)


def alter(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The topic.")],
    partitions: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Grow to this many partitions.", show_default=False)
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", metavar="KEY=VALUE", help="Set a setting; may be repeated."),
    ] = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", metavar="KEY", help="Back to the default; may be repeated."),
    ] = None,
    bootstrap: BootstrapOption = None,
    client_config: ClientConfigOption = None,
) -> None:
    """Add partitions to a topic, or change its settings."""
    to_set = split_pairs(config or [], "--config")
    to_delete = delete_config or []
    if partitions is None and not to_set and not to_delete:
        raise UsageError("nothing to alter: give --partitions, --config or --delete-config")
    both = sorted(set(to_set) & set(to_delete))
    if both:
        raise UsageError(f"{both[0]} is to be set and deleted: choose one")
    admin = Connection(bootstrap, client_config).admin()
    if to_set or to_delete:
        _change_settings(admin, name, to_set, to_delete)
    if partitions is not None:
        _grow(admin, name, partitions)


def _change_settings(admin: AdminClient, name: str, to_set: dict[str, str], to_delete: list[str]) -> None:
    changes = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in to_set.items()
    ]
    changes += [ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in to_delete]
    resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=changes)
    with kafka_errors(f"cannot alter {name}"):
        admin.incremental_alter_configs([resource])[resource].result()
    for key, value in to_set.items():
        say(f"{name}: {key} is now {value}")
    for key in to_delete:
        say(f"{name}: {key} is back to its default")


def _grow(admin: AdminClient, name: str, partitions: int) -> None:
    with kafka_errors(f"cannot alter {name}"):
        try:
            admin.create_partitions([NewPartitions(name, partitions)])[name].result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.INVALID_PARTITIONS:
                raise GaplessError(
                    f"cannot alter {name}: {error.args[0].str()} (partitions can be added, never removed)"
                ) from None
            raise
    say(f"{name}: now {partitions} partitions")
