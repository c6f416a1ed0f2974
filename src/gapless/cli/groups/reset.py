"""`gapless groups reset`: where a group without members goes on reading (claim E7: it reads again)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from gapless.cli.connection import (
    BootstrapOption,
    ClientConfigOption,
    Connection,
    JsonOption,
    in_words,
    kafka_errors,
)
from gapless.cli.group import examples
from gapless.cli.groups.ask import (
    ANSWER_TIMEOUT_S,
    Partition,
    ask_committed,
    ask_group,
    partitions_of,
    patiently,
    state_of,
)
from gapless.cli.output import note, say, say_json, say_table
from gapless.cli.positions import Position, parse_position
from gapless.cli.topics.offsets import Range, ask_ranges
from gapless.errors import GaplessError, UsageError

EXAMPLES = examples(
    "gapless groups reset billing --to earliest",
    "gapless groups reset billing --topic orders --to 2026-01-31T12:00 --yes",
    "gapless groups reset billing --topic orders:3 --to 1500 --yes",
)
COLUMNS = ("topic", "partition", "committed", "new")


def reset(
    name: Annotated[str, typer.Argument(metavar="GROUP", help="The group; it must have no members.")],
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="WHERE", help="earliest, latest, an offset, or a time such as 2026-01-31T12:00."
        ),
    ],
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC[:PARTITION,…]",
            help="What to reset; may be repeated. [default: all that the group has committed]",
            show_default=False,
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it; otherwise only show what would be done.")
    ] = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = None,
    client_config: ClientConfigOption = None,
) -> None:
    """Move a group to another place in its topics. Nothing is changed without --yes."""
    position = _parse(to)
    wanted = [_parse_topic(text) for text in topics or []]
    admin = Connection(bootstrap, client_config).admin()
    _refuse_live(admin, name)
    committed = ask_committed(admin, name)
    partitions = _chosen(admin, wanted) if wanted else list(committed)
    if not partitions:
        raise UsageError(f"{name} has committed nothing: say what to reset with --topic")
    ranges = ask_ranges(admin, partitions)
    targets = _targets(admin, position, partitions, ranges)
    if yes:
        _commit(admin, name, targets)
    rows = [[*place, committed.get(place), target] for place, target in targets.items()]
    if as_json:
        changes = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
        say_json({"group": name, "done": yes, "partitions": changes})
        return
    say_table(COLUMNS, rows)
    if yes:
        say(f"{name} goes on from here")
    else:
        note("nothing was changed: add --yes to do it")


def _parse(text: str) -> Position:
    edge = {"earliest": "beginning", "latest": "end"}.get(text, text)
    try:
        return parse_position(edge, "--to")
    except UsageError:
        raise UsageError(
            f"--to expects earliest, latest, an offset or a time such as 2026-01-31T12:00, found: {text}"
        ) from None


def _parse_topic(text: str) -> tuple[str, list[int] | None]:
    topic, colon, numbers = text.partition(":")
    if not colon:
        return topic, None
    parts = numbers.split(",")
    if not topic or not all(part.isascii() and part.isdigit() for part in parts):
        raise UsageError(f"--topic expects TOPIC or TOPIC:PARTITION,…, found: {text}")
    return topic, [int(part) for part in parts]


def _refuse_live(admin: AdminClient, name: str) -> None:
    description = ask_group(admin, name)
    if state_of(description) in ("empty", "dead"):
        return
    members = len(description.members)
    raise GaplessError(
        f"{name} is {state_of(description)} with {members} member{'' if members == 1 else 's'}: "
        "stop its consumers first, they would overwrite the new offsets"
    )


def _chosen(admin: AdminClient, wanted: Sequence[tuple[str, list[int] | None]]) -> list[Partition]:
    existing = partitions_of(admin, [topic for topic, _ in wanted])
    chosen: dict[Partition, None] = {}
    for topic, numbers in wanted:
        of_topic = [place for place in existing if place[0] == topic]
        for number in numbers if numbers is not None else [place[1] for place in of_topic]:
            if (topic, number) not in of_topic:
                raise GaplessError(f"{topic} has no partition {number}: it has {len(of_topic)}")
            chosen[topic, number] = None
    return list(chosen)


def _targets(
    admin: AdminClient,
    position: Position,
    partitions: Sequence[Partition],
    ranges: Mapping[Partition, Range],
) -> dict[Partition, int]:
    """The offset to go to in each partition, within what is there."""
    times = _at_time(admin, position.time_ms, partitions) if position.time_ms is not None else {}
    targets = {}
    for place in partitions:
        start, end = ranges[place]
        if start is None or end is None:
            raise GaplessError(f"{place[0]}, partition {place[1]}: no leader answers, try again later")
        if position.edge is not None:
            offset = start if position.edge == "beginning" else end
        elif position.offset is not None:
            offset = position.offset
        else:
            offset = times[place] if times[place] >= 0 else end
        targets[place] = min(max(offset, start), end)
        if targets[place] != offset:
            what = f"{place[0]}, partition {place[1]}"
            note(f"gapless: {what} has offsets {start} to {end}: {targets[place]} instead of {offset}")
    return targets


def _at_time(admin: AdminClient, time_ms: int, partitions: Sequence[Partition]) -> dict[Partition, int]:
    """The first offset at or after a time; -1 where all records are older."""
    where = OffsetSpec.for_timestamp(time_ms)
    answers = admin.list_offsets({TopicPartition(*place): where for place in partitions})
    with kafka_errors("cannot look up the time"):
        return {(asked.topic, asked.partition): answer.result().offset for asked, answer in answers.items()}


def _commit(admin: AdminClient, name: str, targets: Mapping[Partition, int]) -> None:
    offsets = [TopicPartition(*place, offset) for place, offset in targets.items()]
    asked = [ConsumerGroupTopicPartitions(name, offsets)]
    with kafka_errors(f"cannot reset {name}"):
        answer = patiently(
            lambda: admin.alter_consumer_group_offsets(asked, request_timeout=ANSWER_TIMEOUT_S)[name]
        )
    failed: list[Any] = [each for each in answer.topic_partitions if each.error is not None]
    if failed:
        first = failed[0]
        raise GaplessError(
            f"{name}: {len(failed)} of {len(offsets)} partitions were not reset, among them "
            f"{first.topic}, partition {first.partition}: {in_words(first.error)}"
        )
