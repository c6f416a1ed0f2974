"""`gapless groups`: list, describe, reset, delete. One file each."""

from __future__ import annotations

from gapless.cli.group import examples, new_app
from gapless.cli.groups import delete, describe, reset
from gapless.cli.groups import list as listing

app = new_app("Look at consumer groups and their lag, move them, delete them, on any Kafka.")
app.callback(epilog=examples("gapless groups list", "gapless groups describe billing"))(lambda: None)
app.command("list", epilog=listing.EXAMPLES)(listing.list_groups)
app.command("describe", epilog=describe.EXAMPLES)(describe.describe)
app.command("reset", epilog=reset.EXAMPLES)(reset.reset)
app.command("delete", epilog=delete.EXAMPLES)(delete.delete)
