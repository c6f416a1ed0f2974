"""`gapless topics reassign`."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from kafka import TopicPartition

from gapless.cli.connection import BootstrapOption, ClientConfigOption, Connection
from gapless.cli.group import examples
from gapless.cli.output import note, say
from gapless.cli.progress import Screen
from gapless.cli.single_brokers import SingleBrokers, broker_errors
from gapless.cli.topics.replicas import PartitionState, ask_replicas
from gapless.errors import GaplessError, UsageError

EXAMPLES = examples(
    "gapless topics reassign orders --brokers 1,2,4",
    "gapless topics reassign orders --replicas 0=4,1 --replicas 1=1,4",
    "gapless topics reassign orders --cancel",
)
LOOK_EVERY_S = 0.2

Assignments = dict[int, list[int]]


def reassign(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The topic.")],
    brokers: Annotated[
        str | None,
        typer.Option(
            metavar="ID,ID,…",
            help="Spread all partitions over these brokers, with as many replicas as they have.",
            show_default=False,
        ),
    ] = None,
    replicas: Annotated[
        list[str] | None,
        typer.Option(
            "--replicas",
            metavar="PARTITION=ID,ID,…",
            help="The brokers of one partition, the preferred leader first; may be repeated.",
        ),
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Go back to where replicas were before a move that is under way.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until all replicas have been copied.")
    ] = True,
    bootstrap: BootstrapOption = None,
    client_config: ClientConfigOption = None,
) -> None:
    """Move a topic's replicas to other brokers, while producers and consumers run."""
    if sum((brokers is not None, bool(replicas), cancel)) != 1:
        raise UsageError("give one of --brokers, --replicas and --cancel")
    chosen = _chosen(replicas or [])
    targets = _broker_ids(brokers, "--brokers") if brokers is not None else []
    cluster = SingleBrokers(Connection(bootstrap, client_config))
    try:
        states = ask_replicas(cluster, name)
        if targets:
            chosen = _spread(states, targets)
        _check(name, states, chosen)
        changes: dict[int, list[int] | None] = dict(chosen)
        if cancel:
            changes = dict.fromkeys(_under_way(cluster, name))
            if not changes:
                raise GaplessError(f"{name}: no replicas are being moved")
        _alter(cluster, name, changes)
        if cancel:
            say(f"{name}: the move of {len(changes)} partitions is cancelled")
        elif wait:
            _wait(cluster, name, len(changes))
            say(f"{name}: moved {_partitions(len(changes))}")
        else:
            say(f"{name}: {_partitions(len(changes))} are being moved")
    finally:
        cluster.close()


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"


def _chosen(pairs: list[str]) -> Assignments:
    chosen: Assignments = {}
    for pair in pairs:
        partition, equals, ids = pair.partition("=")
        if not equals or not partition.isdecimal():
            raise UsageError(f"--replicas expects PARTITION=ID,ID,…, found: {pair}")
        if int(partition) in chosen:
            raise UsageError(f"--replicas names partition {partition} twice")
        chosen[int(partition)] = _broker_ids(ids, "--replicas")
    return chosen


def _broker_ids(text: str, option: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"{option} expects broker ids separated by commas, found: {text}")
    ids = [int(part) for part in parts]
    if len(set(ids)) != len(ids):
        raise UsageError(f"{option} names a broker twice: {text}")
    return ids


def _spread(states: list[PartitionState], brokers: list[int]) -> Assignments:
    """As many replicas as now, on the given brokers, leaders in turn; what is there already may stay."""
    spread = {}
    for turn, state in enumerate(states):
        count = len(state.replicas)
        if count > len(brokers):
            raise UsageError(f"partition {state.partition} has {count} replicas, --brokers names fewer")
        spread[state.partition] = [brokers[(turn + place) % len(brokers)] for place in range(count)]
    return spread


def _check(name: str, states: list[PartitionState], chosen: Assignments) -> None:
    known = {state.partition for state in states}
    for partition in chosen:
        if partition not in known:
            raise GaplessError(f"{name} has no partition {partition}")


def _alter(cluster: SingleBrokers, name: str, changes: dict[int, list[int] | None]) -> None:
    wanted = {TopicPartition(name, partition): replicas for partition, replicas in changes.items()}
    with broker_errors(f"cannot reassign {name}"):
        for place, error in cluster.admin.alter_partition_reassignments(wanted).items():
            if error is not None:
                raise GaplessError(
                    f"cannot reassign partition {place.partition} of {name}: {error.description}"
                )


def _under_way(cluster: SingleBrokers, name: str) -> list[int]:
    with broker_errors(f"cannot look after {name}"):
        found: dict[Any, Any] = cluster.admin.list_partition_reassignments()
    return [place.partition for place in found if place.topic == name]


def _wait(cluster: SingleBrokers, name: str, moving: int) -> None:
    with Screen() as screen:
        bar = screen.bar("moved", moving)
        while left := len(_under_way(cluster, name)):
            bar(max(0, moving - left))
            try:
                time.sleep(LOOK_EVERY_S)
            except KeyboardInterrupt:
                note("the move goes on without us")
                raise
        bar(moving)
