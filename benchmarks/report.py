"""The figures for people and for programs: a table (plain when piped), Markdown for the README, and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.brokers import OURS, PEER, TITLES
from benchmarks.harness import Cell
from benchmarks.scenarios.log_size import LogSizeRow, grown_counters
from benchmarks.statistics import Summary

_PLAIN_WIDTH = 200


@dataclass(frozen=True, slots=True)
class Results:
    """All that a run found."""

    machine: Mapping[str, str | int]
    settings: Mapping[str, Any]
    cells: Sequence[Cell]
    log_sizes: Sequence[LogSizeRow]


def number(value: float) -> str:
    """Three significant digits, with K or M for large ones."""
    if value >= 999_500:
        return f"{value / 1e6:.3g} M"
    if value >= 9_995:
        return f"{value / 1e3:.3g} K"
    if value >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def spread(summary: Summary | None, unit: str = "") -> str:
    """Median, and lowest to highest."""
    if summary is None:
        return "–"
    return (
        f"{number(summary.median)} {unit}".rstrip() + f" ({number(summary.lowest)}–{number(summary.highest)})"
    )


# ------------------------------------------------------------------------------------------- for people


def show(results: Results, console: Console) -> None:
    """All tables. Boxes and colours only on a terminal."""
    if not console.is_terminal:
        console = Console(file=console.file, width=_PLAIN_WIDTH, color_system=None)
    machine = ", ".join(f"{key} {value}" for key, value in results.machine.items())
    console.print(
        f"median (lowest–highest) of {results.settings['rounds']} rounds; {machine}",
        highlight=False,
        soft_wrap=True,
    )
    if results.cells:
        console.print(_cell_table(results.cells, plain=not console.is_terminal))
    if results.log_sizes:
        console.print(_log_size_table(results.log_sizes, plain=not console.is_terminal))
        grown = grown_counters(results.log_sizes)
        console.print(
            f"cost grows with the log's size: {', '.join(grown)}" if grown else "cost is flat in log size: ok"
        )
    if results.settings["small"]:
        console.print("small sizes, and Apache Kafka not warm: this shows that all works, and nothing else")
    short = [cell for cell in results.cells if cell.verdict() == "short"]
    for cell in short:
        console.print(f"short of its target: {cell.step.title}, {cell.figure.label}", highlight=False)


def _table(plain: bool, *columns: str) -> Table:
    table = Table(box=None if plain else box.SIMPLE_HEAD, pad_edge=False)
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position == 0 else "right")
    return table


def _cell_table(cells: Sequence[Cell], *, plain: bool) -> Table:
    table = _table(plain, "", TITLES[PEER], TITLES[OURS], "ratio", "target", "")
    title = ""
    for cell in cells:
        if cell.step.title != title:
            title = cell.step.title
            table.add_row(title if plain else f"[bold]{title}[/bold]")
        colour = {"ok": "green", "short": "red"}.get(cell.verdict(), "")
        verdict = f"[{colour}]{cell.verdict()}[/{colour}]" if colour else ""
        table.add_row(f"  {cell.figure.label}", *_columns(cell), verdict)
    return table


def _columns(cell: Cell) -> tuple[str, str, str, str]:
    ratio, unit = cell.ratio(), cell.figure.unit
    return (
        spread(cell.summary(PEER), unit),
        spread(cell.summary(OURS), unit),
        "–" if ratio is None else _ratio(ratio),
        str(cell.figure.target or ""),
    )


def _ratio(ratio: Summary) -> str:
    digits = 2 if ratio.median >= 0.1 else 3
    return f"{ratio.median:.{digits}f} ({ratio.lowest:.{digits}f}–{ratio.highest:.{digits}f})"


_COUNTERS = (
    ("log reads/op", "log_reads", "log_bytes"),
    ("index reads/op", "index_reads", "index_bytes"),
    ("writes/op", "writes", "written_bytes"),
)


def _log_size_columns(row: LogSizeRow) -> list[str]:
    """Operation, size, time, and each counter with its bytes."""
    counters = [f"{row.counters[count]:.2f} ({row.counters[size]:,.0f} B)" for _, count, size in _COUNTERS]
    return [row.operation, f"{row.size_mb:,} MB", spread(row.time_us, "µs"), *counters]


def _log_size_table(rows: Sequence[LogSizeRow], *, plain: bool) -> Table:
    table = _table(plain, "cost by log size", "log size", "time/op", *(heading for heading, *_ in _COUNTERS))
    for row in sorted(rows, key=lambda row: row.operation):
        table.add_row(*_log_size_columns(row))
    return table


def markdown(results: Results) -> str:
    """The same figures as Markdown tables."""
    lines = [
        f"| | {TITLES[PEER]} | {TITLES[OURS]} | ratio | target | |",
        "|---|--:|--:|--:|--:|---|",
    ]
    lines += [
        f"| {cell.step.title}: {cell.figure.label} | {' | '.join(_columns(cell))} | {cell.verdict()} |"
        for cell in results.cells
    ]
    if stated := results.settings.get("stated"):
        lines += ["", "Settings: " + ", ".join(f"`{key}` {value}" for key, value in stated.items()) + "."]
    if results.log_sizes:
        headings = " | ".join(heading for heading, *_ in _COUNTERS)
        lines += [
            "",
            f"| operation | log size | time/op | {headings} |",
            "|---|--:|--:|" + "--:|" * len(_COUNTERS),
        ]
        for row in sorted(results.log_sizes, key=lambda row: row.operation):
            lines.append(f"| {' | '.join(_log_size_columns(row))} |")
    return "\n".join(lines) + "\n"


# ----------------------------------------------------------------------------------------- for programs


def document(results: Results) -> dict[str, Any]:
    """Everything, every round's value too."""
    return {
        "machine": dict(results.machine),
        "settings": dict(results.settings),
        "cells": [_cell_document(cell) for cell in results.cells],
        "log_sizes": [asdict(row) for row in results.log_sizes],
    }


def _cell_document(cell: Cell) -> dict[str, Any]:
    target = cell.figure.target
    summaries = {OURS: cell.summary(OURS), PEER: cell.summary(PEER), "ratio": cell.ratio()}
    return {
        "key": cell.key,
        "scenario": cell.step.title,
        "figure": cell.figure.label,
        "unit": cell.figure.unit,
        "better": "higher" if cell.figure.higher_is_better else "lower",
        **{name: _rounded(summary) for name, summary in summaries.items()},
        "target": str(target) if target else None,
        "verdict": cell.verdict() or None,
    }


def _rounded(summary: Summary | None) -> dict[str, Any] | None:
    """Six digits are more than the clocks are worth."""
    if summary is None:
        return None
    values = {"median": summary.median, "lowest": summary.lowest, "highest": summary.highest}
    rounded: dict[str, Any] = {name: float(f"{value:.6g}") for name, value in values.items()}
    return {**rounded, "rounds": [float(f"{value:.6g}") for value in summary.rounds]}
