"""A story on the terminal: coloured there, plain when piped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gapless.cli.output import say, styled
from gapless.simulator.noting import Kind

if TYPE_CHECKING:
    from gapless.simulator.noting import Line
    from gapless.simulator.story import Story

STYLES = {
    Kind.FAULT: "yellow",
    Kind.RECORD: "bold",
    Kind.ELECTION: "cyan",
    Kind.LOSS: "bold red",
    Kind.WATERMARK: "dim",
    Kind.CLUSTER: "dim",
}


def show_story(story: Story) -> None:
    """Print it."""
    for text in story.stage:
        say(styled(text, "dim"))
    say("")
    for line in story.lines:
        say(styled(str(line), STYLES.get(line.kind, "")))
    if story.left_out:
        say(styled(f"({story.left_out:,} lines that say less are left out)", "dim"))
    say("")
    first, *rest = story.ending
    say(styled(first, "bold green" if not rest else "bold red"))
    for text in rest:
        say(text)


def story_as_json(story: Story) -> dict[str, Any]:
    """The same for a script."""
    return {
        "stage": story.stage,
        "lines": [_line_as_json(line) for line in story.lines],
        "left_out": story.left_out,
        "ending": story.ending,
    }


def _line_as_json(line: Line) -> dict[str, Any]:
    return {"at_ms": line.at_ms, "who": line.who, "text": line.text, "kind": line.kind.name.lower()}
