"""`gapless topics list`."""

from __future__ import annotations

from typing import Annotated

import typer

from gapless.cli.connection import BootstrapOption, ClientConfigOption, Connection, JsonOption, kafka_errors
from gapless.cli.group import examples
from gapless.cli.output import say, say_json, say_table
from gapless.cli.topics.offsets import ask_ranges

EXAMPLES = examples("gapless topics list", "gapless topics list --json | jq -r '.[].topic'")


def list_topics(
    all_topics: Annotated[bool, typer.Option("--all", help="Internal topics (named __…) too.")] = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = None,
    client_config: ClientConfigOption = None,
) -> None:
    """List topics, their partitions and how many records they span."""
    admin = Connection(bootstrap, client_config).admin()
    with kafka_errors("cannot list topics"):
        found = admin.list_topics(timeout=10).topics
    topics = {name: found[name] for name in sorted(found) if all_topics or not name.startswith("__")}
    ranges = ask_ranges(
        admin, [(name, number) for name, topic in topics.items() for number in topic.partitions]
    )
    rows: list[tuple[str, int, int, int | None]] = []
    for name, topic in topics.items():
        counts = [ranges[name, number].records for number in topic.partitions]
        records = None if None in counts else sum(count for count in counts if count is not None)
        replicas = max((len(partition.replicas) for partition in topic.partitions.values()), default=0)
        rows.append((name, len(topic.partitions), replicas, records))
    columns = ("topic", "partitions", "replicas", "records")
    if as_json:
        say_json([dict(zip(columns, row, strict=True)) for row in rows])
    elif rows:
        say_table(columns, rows)
    else:
        say("no topics (create one with: gapless topics create NAME)")
