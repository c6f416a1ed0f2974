"""`gapless groups delete`."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from functools import partial
from typing import Annotated

import typer
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from gapless.cli.connection import BootstrapOption, ClientConfigOption, Connection, in_words
from gapless.cli.group import examples
from gapless.cli.groups.ask import ANSWER_TIMEOUT_S, patiently
from gapless.cli.output import note, say
from gapless.errors import ExitCode, UsageError

EXAMPLES = examples("gapless groups delete old-billing", "gapless groups delete test-1 test-2 --yes")
REASONS = {
    KafkaError.NON_EMPTY_GROUP: "it has members, stop its consumers first",
    KafkaError.GROUP_ID_NOT_FOUND: "there is no such group",
}


def delete(
    names: Annotated[list[str], typer.Argument(metavar="GROUP...", help="The groups.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    bootstrap: BootstrapOption = None,
    client_config: ClientConfigOption = None,
) -> int:
    """Delete groups without members, and the offsets that they have committed."""
    connection = Connection(bootstrap, client_config)
    if not yes:
        _confirm(names, connection.bootstrap)
    admin = connection.admin()
    failed = False
    for name in dict.fromkeys(names):
        try:
            patiently(partial(_delete, admin, name))
            say(f"deleted {name}")
        except KafkaException as error:
            failed = True
            cause: KafkaError = error.args[0]
            note(f"gapless: cannot delete {name}: {REASONS.get(cause.code()) or in_words(cause)}")
    return ExitCode.FAILED if failed else ExitCode.OK


def _delete(admin: AdminClient, name: str) -> Future[None]:
    return admin.delete_consumer_groups([name], request_timeout=ANSWER_TIMEOUT_S)[name]


def _confirm(names: list[str], bootstrap: str) -> None:
    if not sys.stdin.isatty():
        raise UsageError("nobody can be asked here: add --yes to delete without asking")
    if not typer.confirm(f"Delete {', '.join(names)} at {bootstrap}, with all offsets?", err=True):
        raise UsageError("nothing was deleted")
