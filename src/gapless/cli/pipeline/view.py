"""What `gapless pipeline run` shows: a moving table in a terminal, lines when piped, JSON when asked for."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from gapless.cli.output import note, say

if TYPE_CHECKING:
    from gapless.pipeline.progress import Progress

LINE_EVERY_S = 3.0
RECENT_S = 10.0
MOST_PARTITIONS = 20


class Totals:
    """What has happened since the start, and how fast of late."""

    def __init__(self) -> None:
        self.started_s = time.monotonic()
        self.batches = self.rows_in = self.duplicates = self.dead_letters = self.repeated = 0
        self.written: dict[str, int] = {}
        self.last: Progress | None = None
        self._recent: deque[tuple[float, int]] = deque()

    def add(self, progress: Progress) -> None:
        self.batches += 1
        self.rows_in += progress.rows_in
        self.duplicates += progress.duplicates
        self.dead_letters += progress.dead_letters
        self.repeated += progress.repeated
        for sink, rows in progress.written.items():
            self.written[sink] = self.written.get(sink, 0) + rows
        self.last = progress
        self._recent.append((time.monotonic(), progress.rows_in))

    def per_second(self) -> tuple[float, float]:
        """Rows and batches a second, over the last seconds."""
        now_s = time.monotonic()
        while self._recent and self._recent[0][0] < now_s - RECENT_S:
            self._recent.popleft()
        span_s = max(min(now_s - self.started_s, RECENT_S), 0.1)
        return sum(rows for _, rows in self._recent) / span_s, len(self._recent) / span_s

    def summary(self) -> str:
        """Where rows went, in one line."""
        parts = [f"{count(self.batches, 'batch', 'batches')}, {count(self.rows_in, 'record')} read"]
        parts += [f"{rows:,} to {sink}" for sink, rows in self.written.items()]
        if self.duplicates:
            parts.append(count(self.duplicates, "duplicate") + " left out")
        if self.dead_letters:
            parts.append(f"{self.dead_letters:,} to the dead letters")
        if self.repeated:
            parts.append(
                f"{count(self.repeated, 'batch', 'batches')} had been written before, in whole or part"
            )
        return "; ".join(parts)


class View(Protocol):
    """Shows a run."""

    totals: Totals

    def batch(self, progress: Progress) -> None:
        """A batch is in all sinks."""

    def line(self, text: str) -> None:
        """Something to be told along the way."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


def view_for(name: str, *, as_json: bool) -> View:
    if as_json:
        return JsonView()
    return LiveView(name) if sys.stderr.isatty() else LineView()


class PlainView:
    """What both ways of writing for a program or a file have in common."""

    def __init__(self) -> None:
        self.totals = Totals()

    def line(self, text: str) -> None:
        note(text)

    def start(self) -> None:
        self.totals.started_s = time.monotonic()

    def stop(self) -> None:
        """Nothing to take down."""


class JsonView(PlainView):
    """One object for each batch on stdout, and nothing else there."""

    def batch(self, progress: Progress) -> None:
        self.totals.add(progress)
        say(json.dumps(progress.to_json(), ensure_ascii=False))
        sys.stdout.flush()


class LineView(PlainView):
    """A line now and then on stderr."""

    def __init__(self) -> None:
        super().__init__()
        self._next_s = 0.0

    def batch(self, progress: Progress) -> None:
        self.totals.add(progress)
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + LINE_EVERY_S
            note(f"{now_s - self.totals.started_s:6.1f} s  {batch_line(progress)}")


class LiveView:
    """A table on stderr that follows the run."""

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.live import Live

        self.totals = Totals()
        self._name = name
        self._live = Live(
            get_renderable=self._render,
            console=Console(stderr=True),
            refresh_per_second=4,
            transient=True,
        )

    def start(self) -> None:
        self.totals.started_s = time.monotonic()
        self._live.start()

    def stop(self) -> None:
        self._live.stop()

    def batch(self, progress: Progress) -> None:
        self.totals.add(progress)

    def line(self, text: str) -> None:
        self._live.console.print(text, highlight=False, markup=False)

    def _render(self) -> Any:
        from rich.console import Group
        from rich.text import Text

        rows, batches = self.totals.per_second()
        elapsed_s = time.monotonic() - self.totals.started_s
        speed = f"  {rows:,.0f} records/s  {batches:.1f} batches/s  {elapsed_s:,.0f} s"
        head = Text.assemble((self._name, "bold"), speed)
        if self.totals.last is None:
            return Group(head, Text("waiting for records", style="dim"))
        return Group(head, _counts_table(self.totals), _lag_table(self.totals.last))


def _counts_table(totals: Totals) -> Any:
    last = totals.last
    rows = [("read", totals.rows_in, last.rows_in if last else 0)]
    rows += [
        (f"→ {sink}", all_of, last.written.get(sink, 0) if last else 0)
        for sink, all_of in totals.written.items()
    ]
    rows.append(("duplicates", totals.duplicates, last.duplicates if last else 0))
    rows.append(("dead letters", totals.dead_letters, last.dead_letters if last else 0))
    return _table(("", "records", f"batch {last.batch if last else '-'}"), rows)


def _lag_table(progress: Progress) -> Any:
    behind = sorted(progress.lag.items(), key=lambda item: -item[1])
    rows: list[tuple[str, int]] = [(str(where), lag) for where, lag in sorted(behind[:MOST_PARTITIONS])]
    if len(behind) > MOST_PARTITIONS:
        rest = behind[MOST_PARTITIONS:]
        rows.append((f"{len(rest)} more", sum(lag for _, lag in rest)))
    return _table(("partition", "lag"), rows)


def _table(columns: tuple[str, ...], rows: list[Any]) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for index, heading in enumerate(columns):
        table.add_column(heading, justify="right" if index else "left")
    for first, *others in rows:
        table.add_row(str(first), *(f"{number:,}" for number in others))
    return table


def batch_line(progress: Progress) -> str:
    """One batch in one line."""
    written = ", ".join(f"{rows:,} to {sink}" for sink, rows in progress.written.items())
    parts = [f"batch {progress.batch}: {progress.rows_in:,} read ({progress.rows_per_s:,.0f}/s)", written]
    if progress.duplicates:
        parts.append(count(progress.duplicates, "duplicate"))
    if progress.dead_letters:
        parts.append(count(progress.dead_letters, "dead letter"))
    if progress.repeated:
        parts.append("written before, in whole or part")
    parts.append(f"lag {progress.total_lag:,}")
    return ", ".join(part for part in parts if part)


def count(number: int, noun: str, nouns: str | None = None) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {nouns or noun + 's'}"
