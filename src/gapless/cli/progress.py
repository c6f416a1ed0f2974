"""Progress on stderr: bars that move in a terminal, a line every few seconds when piped."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from gapless.cli.output import note

LINE_EVERY_S = 3.0


class Screen:
    """Bars of work with a known size, and lines between them. Both may come from several threads."""

    def __init__(self, *, lines_when_piped: bool = True) -> None:
        self._started_s = time.monotonic()
        self._lines = lines_when_piped
        self._bars: dict[str, Callable[[int], None]] = {}
        self._lock = threading.Lock()
        self._live: Any = _rich_progress() if sys.stderr.isatty() else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def line(self, text: str) -> None:
        """Say something, with the seconds since the start before it."""
        if self._live is not None:
            self._live.console.print(f"[dim]{self._elapsed()}[/dim]  {text}", highlight=False, soft_wrap=True)
        elif self._lines:
            note(f"{self._elapsed()}  {text}")

    def bar(self, title: str, total: int) -> Callable[[int], None]:
        """A bar: call the result with how much is done. The same title gives the same bar."""
        with self._lock:
            if title not in self._bars:
                self._bars[title] = (
                    self._moving(title, total) if self._live is not None else self._said(title, total)
                )
            return self._bars[title]

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._started_s:5.1f} s"

    def _moving(self, title: str, total: int) -> Callable[[int], None]:
        task = self._live.add_task(title, total=total)
        return lambda done: self._live.update(task, completed=done)

    def _said(self, title: str, total: int) -> Callable[[int], None]:
        next_s = time.monotonic() + LINE_EVERY_S
        said = 0

        def update(done: int) -> None:
            nonlocal next_s, said
            finished = done >= total > said
            if done == said or not (finished or time.monotonic() >= next_s):
                return
            next_s, said = time.monotonic() + LINE_EVERY_S, done
            self.line(f"{title}: {done:,} of {total:,}")

        return update


def _rich_progress() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    return Progress(
        TextColumn("         {task.description:<12}"),
        BarColumn(bar_width=32),
        TaskProgressColumn(),
        TextColumn("{task.completed:>11,.0f} of {task.total:,.0f}"),
        console=Console(stderr=True),
    )
