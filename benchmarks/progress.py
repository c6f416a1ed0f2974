"""How far a run is: a bar on a terminal, a line per step elsewhere; on stderr, as stdout is for the table."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress


class Progress(Protocol):
    """Who is told how far it is."""

    def begin(self, what: str) -> None: ...

    def done(self, took_s: float, result: str) -> None: ...


class RunProgress:
    """`Progress` for people, to be used in a `with` block."""

    def __init__(self, total: int) -> None:
        self._console = Console(stderr=True)
        self._bar = RichProgress(
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=total)
        self._what = ""

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, what: str) -> None:
        self._what = what
        self._bar.update(self._task, description=what)

    def done(self, took_s: float, result: str) -> None:
        self._bar.advance(self._task)
        if self._bar.disable:
            line = f"{self._what} · {took_s:.1f} s" + (f" · {result}" if result else "")
            self._console.print(line, soft_wrap=True, highlight=False, markup=False)
