"""`gapless spool status`."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime

from gapless.cli.connection import JsonOption
from gapless.cli.group import examples
from gapless.cli.output import say, say_json
from gapless.cli.spool.folder import FolderArgument
from gapless.client.spool.inspect import Status, status

EXAMPLES = examples("gapless spool status ./spool", "gapless spool status ./spool --json | jq .unsent")


def show_status(folder: FolderArgument, as_json: JsonOption = False) -> None:
    """Show what a spool holds, without a cluster, and also while a producer has it open."""
    seen = status(folder)
    if as_json:
        say_json({**asdict(seen), "incarnation": seen.incarnation.hex(), "unsent": seen.unsent})
        return
    for name, text in _lines(seen).items():
        say(f"{name + ':':13}{text}")


def _lines(seen: Status) -> dict[str, str]:
    waiting = f"{seen.unsent:,} records"
    if seen.oldest_unsent_ms is not None:
        oldest = datetime.fromtimestamp(seen.oldest_unsent_ms / 1000, UTC)
        waiting += f", the oldest of {oldest:%Y-%m-%d %H:%M:%S} UTC"
    torn = f", {seen.torn_bytes:,} bytes being written or torn" if seen.torn_bytes else ""
    return {
        "source": seen.source,
        "incarnation": seen.incarnation.hex(),
        "unsent": waiting,
        "sent": f"{seen.sent:,} records"
        + (f", kept from {seen.first:,} on" if seen.first < seen.sent else ""),
        "stored": f"{seen.stored:,} records in all",
        "on disk": f"{seen.size_bytes:,} bytes in {_count(seen.segments, 'segment')}{torn}",
        "position": "on the cluster" if seen.claimed else "only here",
        "in use": "no" if seen.pid is None else f"by process {seen.pid or '(unknown)'}",
    }


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
