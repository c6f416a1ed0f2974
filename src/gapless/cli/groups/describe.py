"""`gapless groups describe`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription

from gapless.cli.connection import BootstrapOption, ClientConfigOption, Connection, JsonOption
from gapless.cli.group import examples
from gapless.cli.groups.ask import Partition, ask_committed, ask_group, state_of
from gapless.cli.output import say, say_json, say_table
from gapless.cli.topics.offsets import ask_ranges
from gapless.errors import GaplessError

EXAMPLES = examples("gapless groups describe billing", "gapless groups describe billing --json | jq .lag")
PARTITION_COLUMNS = ("topic", "partition", "committed", "end", "lag", "member")
MEMBER_COLUMNS = ("member", "instance", "client", "host", "partitions")


def describe(
    name: Annotated[str, typer.Argument(metavar="GROUP", help="The group.")],
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = None,
    client_config: ClientConfigOption = None,
) -> None:
    """Show a group's state, its members, and how far behind it is in each partition."""
    admin = Connection(bootstrap, client_config).admin()
    description = ask_group(admin, name)
    state = state_of(description)
    if state == "dead":
        raise GaplessError(f"there is no group {name} (see: gapless groups list)")
    members = [_member(member) for member in description.members]
    partitions = _progress(admin, name, _owners(description))
    lags = [each["lag"] for each in partitions if each["lag"] is not None]
    total_lag = sum(lags) if lags else None
    if as_json:
        say_json(
            {
                "group": name,
                "state": state,
                "assignor": description.partition_assignor or None,
                "coordinator": description.coordinator.id,
                "lag": total_lag,
                "partitions": partitions,
                "members": members,
            }
        )
        return
    assignor = f", {description.partition_assignor}" if description.partition_assignor else ""
    behind = "" if total_lag is None else f", {total_lag:,} behind"
    say(f"{name}  ({state}{assignor}, {_count(len(members), 'member')}{behind})")
    if partitions:
        say_table(PARTITION_COLUMNS, [[each[column] for column in PARTITION_COLUMNS] for each in partitions])
    else:
        say("nothing is committed or assigned")
    if members:
        say("")
        say_table(MEMBER_COLUMNS, [[each[column] for column in MEMBER_COLUMNS] for each in members])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _member(member: Any) -> dict[str, Any]:
    return {
        "member": member.member_id,
        "instance": member.group_instance_id,
        "client": member.client_id,
        "host": member.host.removeprefix("/"),
        "partitions": len(member.assignment.topic_partitions),
    }


def _owners(description: ConsumerGroupDescription) -> dict[Partition, str]:
    return {
        (each.topic, each.partition): member.member_id
        for member in description.members
        for each in member.assignment.topic_partitions
    }


def _progress(admin: AdminClient, name: str, owners: dict[Partition, str]) -> list[dict[str, Any]]:
    """Every partition that the group has committed in or reads, with its lag where both ends are known."""
    committed = ask_committed(admin, name)
    partitions = sorted(committed.keys() | owners.keys())
    ranges = ask_ranges(admin, partitions)
    rows = []
    for place in partitions:
        offset, end = committed.get(place), ranges[place].end
        rows.append(
            {
                "topic": place[0],
                "partition": place[1],
                "committed": offset,
                "end": end,
                "lag": None if offset is None or end is None else max(0, end - offset),
                "member": owners.get(place),
            }
        )
    return rows
