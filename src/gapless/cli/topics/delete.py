"""`gapless topics delete`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from confluent_kafka import KafkaException

from gapless.cli.connection import BootstrapOption, ClientConfigOption, Connection, in_words
from gapless.cli.group import examples
from gapless.cli.output import note, say
from gapless.errors import ExitCode, UsageError

EXAMPLES = examples("gapless topics delete old-orders", "gapless topics delete test-1 test-2 --yes")


def delete(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The topics.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    bootstrap: BootstrapOption = None,
    client_config: ClientConfigOption = None,
) -> int:
    """Delete topics and all their records."""
    connection = Connection(bootstrap, client_config)
    if not yes:
        _confirm(names, connection.bootstrap)
    admin = connection.admin()
    failed = False
    for name, deleted in admin.delete_topics(names).items():
        try:
            deleted.result()
            say(f"deleted {name}")
        except KafkaException as error:
            failed = True
            note(f"gapless: cannot delete {name}: {in_words(error.args[0])}")
    return ExitCode.FAILED if failed else ExitCode.OK


def _confirm(names: list[str], bootstrap: str) -> None:
    if not sys.stdin.isatty():
        raise UsageError("nobody can be asked here: add --yes to delete without asking")
    if not typer.confirm(f"Delete {', '.join(names)} at {bootstrap}, with all records?", err=True):
        raise UsageError("nothing was deleted")
