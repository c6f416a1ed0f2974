"""`gapless spool verify`."""

from __future__ import annotations

from dataclasses import asdict

from gapless.cli.connection import JsonOption
from gapless.cli.group import examples
from gapless.cli.output import say, say_json
from gapless.cli.spool.folder import FolderArgument
from gapless.client.spool.inspect import verify
from gapless.errors import ExitCode

EXAMPLES = examples("gapless spool verify ./spool")


def verify_spool(folder: FolderArgument, as_json: JsonOption = False) -> int:
    """Read every block of a spool and check it; exits with 1 if anything is damaged."""
    found = verify(folder)
    if as_json:
        say_json(asdict(found))
    else:
        for problem in found.problems:
            say(problem)
        torn = f"; {found.torn_bytes:,} bytes at the end were never stored" if found.torn_bytes else ""
        verdict = f"{len(found.problems)} damaged" if found.problems else "all intact"
        say(
            f"{verdict}: {found.records:,} records in {found.blocks:,} blocks and {found.segments:,}"
            f" segments, {found.size_bytes:,} bytes{torn}"
        )
    return int(ExitCode.FAILED if found.problems else ExitCode.OK)
