"""Every command of `gapless`, by name. Imports nothing, so that any command starts as fast as it can."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """Where a command lives and what `gapless --help` says of it."""

    module: str
    summary: str
    starts_at_once: bool = False  # offers `main(argv)` and is run without typer


COMMANDS: dict[str, Command] = {
    "up": Command("gapless.cli.up", "Run a broker in the foreground.", starts_at_once=True),
    "topics": Command("gapless.cli.topics", "Create, list, describe, alter and delete topics."),
    "produce": Command("gapless.cli.produce", "Send lines, or numbered records, to a topic."),
    "consume": Command("gapless.cli.consume", "Print the records of a topic."),
    "groups": Command("gapless.cli.groups", "Show consumer groups and their lag; move or delete them."),
    "spool": Command("gapless.cli.spool", "Look at a producer's spool, check it, send what it holds."),
    "pipeline": Command("gapless.cli.pipeline", "Carry topics into sinks by Spark, each record once."),
    "audit": Command("gapless.cli.audit", "Name every record that was lost, doubled or reordered."),
    "simulate": Command("gapless.cli.simulate", "Let the brokers' rules meet every fault, seed by seed."),
    "demo": Command("gapless.cli.demo", "Follow a million records through a crash, and account for each."),
}
