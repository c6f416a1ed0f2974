"""`gapless topics`: create, list, describe, alter, reassign, delete. One file each."""

from __future__ import annotations

from gapless.cli.group import examples, new_app
from gapless.cli.topics import alter, create, delete, describe, reassign
from gapless.cli.topics import list as listing

app = new_app("Create, list, describe, alter, move and delete topics, on any Kafka.")
app.callback(epilog=examples("gapless topics create orders --partitions 6", "gapless topics list"))(
    lambda: None
)
app.command("create", epilog=create.EXAMPLES)(create.create)
app.command("list", epilog=listing.EXAMPLES)(listing.list_topics)
app.command("describe", epilog=describe.EXAMPLES)(describe.describe)
app.command("alter", epilog=alter.EXAMPLES)(alter.alter)
app.command("reassign", epilog=reassign.EXAMPLES)(reassign.reassign)
app.command("delete", epilog=delete.EXAMPLES)(delete.delete)
