"""What all commands of `gapless pipeline` share: the file, and a Spark session for a moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gapless.cli.progress import Screen

if TYPE_CHECKING:
    from gapless.pipeline.definition import Definition

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="The pipeline's definition (TOML).", show_default=False)
]
CheckpointOption = Annotated[
    str | None,
    typer.Option("--checkpoint", metavar="DIR", help="Instead of the file's own.", show_default=False),
]


def load(file: Path, checkpoint: str | None) -> Definition:
    from gapless.pipeline.definition import Definition

    definition = Definition.load(file)
    return definition if checkpoint is None else definition.with_checkpoint(checkpoint)


@contextmanager
def spark_for(definition: Definition) -> Iterator[Any]:
    """A session; starting one takes seconds, and a terminal shows that."""
    from gapless.pipeline.lending import session_during

    with ExitStack() as stack:
        with Screen(lines_when_piped=False) as screen, screen.busy("starting Spark"):
            spark = stack.enter_context(session_during(definition))
        yield spark
