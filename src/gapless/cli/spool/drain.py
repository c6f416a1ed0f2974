"""`gapless spool drain`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from gapless.cli.connection import BootstrapOption, ClientConfigOption, Connection
from gapless.cli.group import examples
from gapless.cli.output import note, say
from gapless.cli.spool.folder import KEEP_ALL_S, FolderArgument, about, further_properties
from gapless.client.producing.producer import Producer, refuse_if_claimed
from gapless.client.semantics import Semantics
from gapless.client.spool.folder import is_claimed
from gapless.client.spool.inspect import status
from gapless.errors import Unreachable, UsageError

EXAMPLES = examples("gapless spool drain ./spool", "gapless spool drain ./spool --timeout 60")
_TELL_EVERY_S = 5.0

SemanticsOption = Annotated[
    str | None,
    typer.Option(
        "--semantics",
        metavar="WORD",
        help="As the producer has it. Not given: exactly-once if the spool's position is on the cluster.",
        show_default=False,
    ),
]


def drain(
    folder: FolderArgument,
    semantics: SemanticsOption = None,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", help="Give up after this time.", min=0)
    ] = None,
    bootstrap: BootstrapOption = None,
    client_config: ClientConfigOption = None,
) -> None:
    """Send all that a spool holds, in order, and wait until the cluster has it."""
    word = _semantics(is_claimed(folder), semantics)
    source = about(folder).source
    waiting = status(folder).unsent
    connection = Connection(bootstrap, client_config)
    connection.admin()  # raises in time if no broker answers
    producer = Producer(
        connection.bootstrap,
        source,
        word,
        spool=folder,
        spool_mode="always",
        keep=KEEP_ALL_S,
        properties=further_properties(connection),
    )
    try:
        left = _wait(producer, timeout_s)
    finally:
        producer.close(timeout=10)
    if producer.failure is not None and left:
        raise producer.failure
    if left:
        reason = f": {producer.problem}" if producer.problem else ""
        raise Unreachable(f"{left:,} records are still in the spool{reason}; try again")
    say(f"sent {waiting:,} records of {source}")


def _semantics(claimed: bool, given: str | None) -> Semantics:
    if given is None:
        return Semantics.EXACTLY_ONCE if claimed else Semantics.AT_LEAST_ONCE
    word = Semantics.named(given)
    if word is Semantics.AT_MOST_ONCE:
        raise UsageError("a spool is there to lose nothing: drain it at-least-once or exactly-once")
    if word is Semantics.AT_LEAST_ONCE:
        refuse_if_claimed(claimed)
    return word


def _wait(producer: Producer, timeout_s: float | None) -> int:
    """How many are left when all is sent, nothing more can be, or time is up."""
    give_up_at = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    tell_at = time.monotonic() + _TELL_EVERY_S
    while True:
        left = producer.flush(timeout=min(0.5, max(give_up_at - time.monotonic(), 0)))
        if not left or producer.failure is not None or time.monotonic() >= give_up_at:
            return left
        if time.monotonic() >= tell_at:
            tell_at += _TELL_EVERY_S
            note(f"{left:,} records left{f' ({producer.problem})' if producer.problem else ''}")
