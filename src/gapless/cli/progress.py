"""Progress on stderr: a bar in a terminal, one line every few seconds when piped."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

from gapless.cli.output import note

LINE_EVERY_S = 5.0


class ProgressBar:
    """How far a piece of work of known size has come."""

    def __init__(self, title: str, total: int, *, lines_when_piped: bool = True) -> None:
        self._title = title
        self._total = total
        self._lines = lines_when_piped
        self._bar: Any = None
        self._task: Any = None
        self._started_s = time.monotonic()
        self._next_line_s = self._started_s + LINE_EVERY_S
        self._shown = -1

    def __enter__(self) -> Self:
        self._started_s = time.monotonic()
        if sys.stderr.isatty():
            self._bar = _rich_bar()
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=self._total, note="")
        return self

    def update(self, done: int, remark: str = "") -> None:
        """Show that `done` of the total is done, with a remark behind it."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, note=remark)
        elif self._lines and time.monotonic() >= self._next_line_s and done != self._shown:
            self._next_line_s = time.monotonic() + LINE_EVERY_S
            self._shown = done
            note(f"{self._title}: {done:,} of {self._total:,}{', ' + remark if remark else ''}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _rich_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
    )
