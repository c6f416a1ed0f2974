"""Progress on stderr: bars that move in a terminal, a line every few seconds when piped."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from gapless.cli.output import note

LINE_EVERY_S = 3.0


class Lines:
    """Lines with the seconds since the start before them; in a terminal, above something that moves."""

    def __init__(self, moving: Callable[[], Any], *, lines_when_piped: bool = True) -> None:
        self._started_s = time.monotonic()
        self._lines = lines_when_piped
        self._live: Any = moving() if sys.stderr.isatty() else None

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
        """Say something. From any thread."""
        seconds = f"{time.monotonic() - self._started_s:5.1f} s"
        if self._live is not None:
            self._live.console.print(f"[dim]{seconds}[/dim]  {text}", highlight=False, soft_wrap=True)
        elif self._lines:
            note(f"{seconds}  {text}")


class Screen(Lines):
    """Bars of work with a known size, and lines between them. Both may come from several threads."""

    def __init__(self, *, lines_when_piped: bool = True) -> None:
        super().__init__(_rich_progress, lines_when_piped=lines_when_piped)
        self._bars: dict[str, Callable[[int], None]] = {}
        self._lock = threading.Lock()

    def bar(self, title: str, total: int) -> Callable[[int], None]:
        """A bar: call the result with how much is done. The same title gives the same bar."""
        with self._lock:
            if title not in self._bars:
                self._bars[title] = (
                    self._moving(title, total) if self._live is not None else self._said(title, total)
                )
            return self._bars[title]

    @contextmanager
    def busy(self, title: str) -> Iterator[None]:
        """A bar that only shows that something goes on, for as long as the block runs."""
        if self._live is None:
            yield
            return
        task = self._live.add_task(title, total=None)
        try:
            yield
        finally:
            self._live.remove_task(task)

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
    from rich.progress import BarColumn, Progress, ProgressColumn, Task
    from rich.text import Text

    class Count(ProgressColumn):
        """How much of how much, or how long if nobody knows."""

        def render(self, task: Task) -> Text:
            if task.total is None:
                return Text(f"{task.elapsed or 0:5.1f} s", style="dim")
            return Text(f"{task.percentage:3.0f}%  {task.completed:>11,.0f} of {task.total:,.0f}")

    class Title(ProgressColumn):
        """Under the text of the lines above, which begin with a time."""

        def render(self, task: Task) -> Text:
            return Text(f"         {task.description:<14}")

    return Progress(Title(), BarColumn(bar_width=32), Count(), console=Console(stderr=True))
