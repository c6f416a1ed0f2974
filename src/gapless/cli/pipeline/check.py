"""`gapless pipeline check`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gapless.cli.connection import JsonOption
from gapless.cli.group import examples
from gapless.cli.output import say, say_json, styled
from gapless.cli.pipeline.definitions import CheckpointOption, FileArgument, load
from gapless.errors import GaplessError

if TYPE_CHECKING:
    from gapless.pipeline.check import Finding

EXAMPLES = examples(
    "gapless pipeline check orders.toml", "gapless pipeline check orders.toml --json | jq '.[].state'"
)
_MARKS = {"ok": ("✓", "green"), "note": ("!", "yellow"), "failed": ("✗", "red"), "skipped": ("-", "dim")}


def check_pipeline(
    file: FileArgument,
    as_json: JsonOption = False,
    checkpoint: CheckpointOption = None,
    without_spark: Annotated[
        bool, typer.Option("--quick", help="Only what can be seen without starting Spark.")
    ] = False,
) -> int:
    """Look at a definition, its topics, transform and sinks before anything runs. Writes nothing.

    What is wrong is told with its line; exits with 1, 2 or 3 as the exit codes have it.
    """
    from gapless.pipeline.check import Finding, State, check, check_quickly, exit_code_of

    tell = _nothing if as_json else _say
    try:
        definition = load(file, checkpoint)
    except GaplessError as error:
        findings = [Finding("definition", State.FAILED, str(error), error.exit_code)]
        tell(findings[0])
    else:
        findings = (check_quickly if without_spark else check)(definition, on_finding=tell)
    if as_json:
        say_json([_as_json(finding) for finding in findings])
    return int(exit_code_of(findings))


def _nothing(finding: Finding) -> None:
    """JSON is printed at the end, as one document."""


def _say(finding: Finding) -> None:
    mark, style = _MARKS[finding.state.value]
    what = finding.what if finding.state.value != "failed" else f"{finding.what}:"
    say(f"{styled(mark, style)} {what:20} {finding.words}")
    sys.stdout.flush()


def _as_json(finding: Finding) -> dict[str, Any]:
    return {"what": finding.what, "state": finding.state.value, "words": finding.words}
