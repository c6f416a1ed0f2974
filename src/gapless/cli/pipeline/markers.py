"""`gapless pipeline markers`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gapless.cli.connection import JsonOption
from gapless.cli.group import examples
from gapless.cli.output import note, say, say_json, say_table
from gapless.cli.pipeline.definitions import CheckpointOption, FileArgument, load, spark_for

if TYPE_CHECKING:
    from gapless.pipeline.markers import Upkeep

EXAMPLES = examples("gapless pipeline markers orders.toml", "gapless pipeline markers orders.toml --restore")


def show_markers(
    file: FileArgument,
    restore: Annotated[
        bool, typer.Option("--restore", help="Set those that are gone, from the checkpoint.")
    ] = False,
    as_json: JsonOption = False,
    checkpoint: CheckpointOption = None,
) -> None:
    """Show how far each sink is written, by its own markers, and where the checkpoint expects them.

    A sink whose marker is gone (offsets expire, topics are deleted) stops its pipeline. --restore sets it to
    where the last finished batch ended. It refuses if a batch was under way: then only you can tell what of
    it was written. Stop the pipeline first.
    """
    from gapless.pipeline.markers import Upkeep

    definition = load(file, checkpoint)
    with spark_for(definition) as spark, Upkeep(definition, spark) as upkeep:
        if restore:
            _restore(upkeep, as_json=as_json)
        else:
            _show(upkeep, as_json=as_json)


def _show(upkeep: Upkeep, *, as_json: bool) -> None:
    found = upkeep.markers()
    if as_json:
        say_json([{**marker._asdict(), "state": marker.words} for marker in found])
        return
    if found:
        rows = [(each.sink, each.slot, each.position, each.expected, each.words) for each in found]
        say_table(("sink", "slot", "next", "expected", "state"), rows)
    for sink in upkeep.without_markers():
        note(f"{sink} needs none: each batch is one commit there, with its number")
    if not found:
        note("there are no markers")


def _restore(upkeep: Upkeep, *, as_json: bool) -> None:
    restored = upkeep.restore()
    if as_json:
        say_json([each._asdict() for each in restored])
        return
    for each in restored:
        say(f"{each.sink}: {each.slot} is at {each.position:,} again")
    if not restored:
        note("no marker is gone")
