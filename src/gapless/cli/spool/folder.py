"""The folder that all commands of `gapless spool` take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gapless.cli.connection import Connection
from gapless.client.spool.errors import SpoolOfAnother
from gapless.client.spool.folder import About, read_about

FolderArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="The spool's folder.", show_default=False)
]
KEEP_ALL_S = 100 * 365 * 86_400.0
"""A command deletes nothing: how long sent records are kept is the producer's own choice."""


def about(folder: Path) -> About:
    found = read_about(folder)
    if found is None:
        raise SpoolOfAnother(f"there is no spool in {folder}")
    return found


def further_properties(connection: Connection) -> dict[str, Any]:
    """What the properties file says, but for the address, which the connection knows."""
    return {key: value for key, value in connection.properties.items() if key != "bootstrap.servers"}
