"""`gapless spool recover`."""

from __future__ import annotations

from gapless.cli.connection import BootstrapOption, ClientConfigOption, Connection, JsonOption
from gapless.cli.group import examples
from gapless.cli.output import say, say_json
from gapless.cli.spool.folder import KEEP_ALL_S, FolderArgument, about, further_properties
from gapless.client.producing.recovery import recover
from gapless.client.spool import Spool

EXAMPLES = examples("gapless spool recover ./spool --bootstrap broker-1:9092")


def recover_position(
    folder: FolderArgument,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = None,
    client_config: ClientConfigOption = None,
) -> None:
    """Find a position that the cluster has lost, by reading back what the topics have, and commit it there.

    Stop the producer first. What a topic has lost since, because it expired or the topic was deleted, is
    sent again by the next producer.
    """
    source = about(folder).source
    connection = Connection(bootstrap, client_config)
    connection.admin()  # raises in time if no broker answers
    properties = {**further_properties(connection), "bootstrap.servers": connection.bootstrap}
    with Spool(folder, source, keep_s=KEEP_ALL_S) as spool:
        found = recover(spool, source, properties)
    if as_json:
        say_json(found._asdict())
        return
    was = "the cluster had none" if found.was is None else f"the cluster had {found.was:,}"
    say(f"the position of {source} is {found.position:,} ({was}); still to be sent: {found.unsent:,} records")
