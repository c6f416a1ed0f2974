"""What commands show: tables and colours in a terminal, plain aligned text when piped, JSON when asked for.

Results go to stdout; everything said along the way (progress, hints, warnings) goes to stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any


def say(text: str) -> None:
    """One line of result."""
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """One line beside the result."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def say_json(value: Any) -> None:
    """One JSON document, indented for a person in a terminal and on one line for a program."""
    say(json.dumps(value, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))


def say_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """Rows under headings; a column whose cells are all numbers is aligned right."""
    cells = [[_cell(value) for value in row] for row in rows]
    right = [bool(cells) and all(_is_number(row[i]) for row in cells) for i in range(len(columns))]
    if sys.stdout.isatty():
        _say_rich_table(columns, cells, right, title)
        return
    widths = [max(len(heading), *(len(row[i]) for row in cells), 0) for i, heading in enumerate(columns)]
    if title is not None:
        say(title)
    for row in [[heading.upper() for heading in columns], *cells]:
        parts = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )
        say("  ".join(parts).rstrip())


def _say_rich_table(
    columns: Sequence[str], cells: list[list[str]], right: list[bool], title: str | None
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", header_style="bold", pad_edge=False)
    for heading, to_right in zip(columns, right, strict=True):
        table.add_column(heading, justify="right" if to_right else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def styled(text: str, style: str) -> str:
    """The text in a colour if stdout is a terminal that shows colours, and as it is otherwise."""
    if not sys.stdout.isatty():
        return text
    from rich.console import Console
    from rich.text import Text

    console = Console()
    with console.capture() as captured:
        console.print(Text(text, style=style), end="", soft_wrap=True)
    return captured.get()


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if sys.stdout.isatty() else str(value)
    return str(value)


def _is_number(cell: str) -> bool:
    return cell == "-" or cell.replace(",", "").lstrip("-").isdigit()
