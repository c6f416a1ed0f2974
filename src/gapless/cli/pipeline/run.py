"""`gapless pipeline run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gapless.cli.connection import JsonOption
from gapless.cli.group import examples
from gapless.cli.output import note, say
from gapless.cli.pipeline.definitions import CheckpointOption, FileArgument, load, spark_for
from gapless.cli.pipeline.stopping import Stopping
from gapless.cli.pipeline.view import View, view_for

if TYPE_CHECKING:
    from gapless.pipeline.definition import Definition

EXAMPLES = examples(
    "gapless pipeline run orders.toml",
    "gapless pipeline run orders.toml --once",
    "gapless pipeline run orders.toml --json | jq -c '[.batch, .rows_per_s]'",
)


def run_pipeline(
    file: FileArgument,
    once: Annotated[
        bool, typer.Option("--once", help="Carry what is there now, then end.", show_default=False)
    ] = False,
    as_json: JsonOption = False,
    checkpoint: CheckpointOption = None,
) -> None:
    """Carry records from topics into sinks, each once, until Ctrl-C; it goes on where it stopped.

    Ctrl-C (or SIGTERM) lets the batch that is under way end; a second one ends at once. --json prints an
    object for each batch.
    """
    from gapless.pipeline.check import refuse_early

    definition = load(file, checkpoint)
    refuse_early(definition)
    view = view_for(definition.name, as_json=as_json)
    with spark_for(definition) as spark:
        stopped = _run(definition, spark, view, once=once)
    ended = "stopped between two batches" if stopped else "all that was there is carried"
    (note if as_json else say)(f"{ended}: {view.totals.summary()}")


def _run(definition: Definition, spark: Any, view: View, *, once: bool) -> bool:
    """True if it ended because it was asked to."""
    from gapless.pipeline.run import Pipeline

    pipeline = Pipeline(definition, spark=spark)
    with Stopping(pipeline.stop, view.line) as stopping:
        view.start()
        try:
            pipeline.run(once=once or None, on_progress=view.batch)
        finally:
            view.stop()
        return stopping.asked
