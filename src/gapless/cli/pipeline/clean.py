"""`gapless pipeline clean`."""

from __future__ import annotations

from typing import Annotated

import typer

from gapless.cli.group import examples
from gapless.cli.output import note, say, say_table
from gapless.cli.pipeline.definitions import CheckpointOption, FileArgument, load, spark_for

EXAMPLES = examples("gapless pipeline clean orders.toml", "gapless pipeline clean orders.toml --yes")


def clean_pipeline(
    file: FileArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it. Without this, only show.")] = False,
    checkpoint: CheckpointOption = None,
) -> None:
    """Remove a pipeline's markers from its sinks: when it is given up, or to write everything anew.

    Rows stay where they are, and so does the checkpoint. A pipeline of this name that starts with a new
    checkpoint afterwards writes all records again.
    """
    from gapless.pipeline.markers import Upkeep

    definition = load(file, checkpoint)
    with spark_for(definition) as spark, Upkeep(definition, spark) as upkeep:
        if not yes:
            found = upkeep.markers()
            if found:
                say_table(("sink", "slot", "next"), [(each.sink, each.slot, each.position) for each in found])
            for sink in upkeep.without_markers():
                note(f"{sink}: the numbers of its batches")
            note(f"nothing was changed: add --yes to remove the markers of {definition.name} from its sinks")
            return
        removed = upkeep.clean()
    for line in removed:
        say(f"removed {line}")
    note(
        f"{len(removed):,} removed; rows stay. The checkpoint {definition.checkpoint} does not fit any more: "
        "remove it, too, before the pipeline runs again"
    )
