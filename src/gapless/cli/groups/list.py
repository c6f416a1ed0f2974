"""`gapless groups list`."""

from __future__ import annotations

from confluent_kafka import ConsumerGroupType

from gapless.cli.connection import BootstrapOption, ClientConfigOption, Connection, JsonOption, kafka_errors
from gapless.cli.group import examples
from gapless.cli.groups.ask import ANSWER_TIMEOUT_S, STATES
from gapless.cli.output import note, say, say_json, say_table

EXAMPLES = examples("gapless groups list", "gapless groups list --json | jq -r '.[].group'")
TYPES = {ConsumerGroupType.CLASSIC: "classic", ConsumerGroupType.CONSUMER: "consumer"}
COLUMNS = ("group", "state", "protocol")


def list_groups(
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = None,
    client_config: ClientConfigOption = None,
) -> None:
    """List consumer groups and their state."""
    admin = Connection(bootstrap, client_config).admin()
    with kafka_errors("cannot list groups"):
        result = admin.list_consumer_groups(request_timeout=ANSWER_TIMEOUT_S).result()
    for error in result.errors or []:
        note(f"gapless: a broker did not answer: {error}")
    rows = sorted(
        (group.group_id, STATES.get(group.state, "unknown"), TYPES.get(group.type, "unknown"))
        for group in result.valid or []
    )
    if as_json:
        say_json([dict(zip(COLUMNS, row, strict=True)) for row in rows])
    elif rows:
        say_table(COLUMNS, rows)
    else:
        say("no groups")
