"""The odds as a picture: a row for each configuration (or fault), a scale of powers of ten.

It is an SVG with its own colours for light and dark, so that a browser shows it as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

from gapless.simulator.odds.estimate import Estimate
from gapless.simulator.odds.figures import told

WIDTH, LEFT, RIGHT = 1120, 390, 200
TOP, ROW, LANE, BOTTOM = 92, 44, 11, 58

_STYLE = """
svg { background: #fff; color: #1b2330; --quiet: #566070; --rule: #dde2e9; --lost: #c4261d;
  --doubled: #a86400;
  font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
@media (prefers-color-scheme: dark) { svg { background: #12161c; color: #e4e9f0; --quiet: #9aa5b4;
  --rule: #2c343f; --lost: #ff8077; --doubled: #f0b03f; } }
text { fill: currentColor; } .quiet { fill: var(--quiet); font-size: 12px; } .title { font-size: 17px;
  font-weight: 650; } .grid { stroke: var(--rule); } .value { font-size: 11.5px; }
.lost { fill: var(--lost); stroke: var(--lost); } .doubled { fill: var(--doubled); stroke: var(--doubled); }
.whisker { stroke-width: 2; opacity: .55; } .bound { stroke-width: 1.5; stroke-dasharray: 2 3; }
text.lost, text.doubled { stroke: none; }
"""


class Row(NamedTuple):
    """What one row shows."""

    label: str
    lost: Estimate
    doubled: Estimate


class _Scale(NamedTuple):
    """Powers of ten from edge to edge."""

    first: int
    last: int

    def x(self, value: float) -> float:
        part = (log10(max(value, 10.0**self.first)) - self.first) / (self.last - self.first)
        return LEFT + min(part, 1.0) * (WIDTH - LEFT - RIGHT)


def draw(title: str, subtitle: str, rows: list[Row]) -> str:
    """The whole picture."""
    scale = _scale(rows)
    height = TOP + ROW * len(rows) + BOTTOM
    parts = [
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="20" y="32">{escape(title)}</text>',
        f'<text class="quiet" x="20" y="54">{escape(subtitle)}</text>',
        *_legend(),
        *_grid(scale, height),
    ]
    for turn, row in enumerate(rows):
        parts += _row(row, TOP + ROW * turn, scale)
    described = "; ".join(
        f"{row.label}: lost {told(row.lost)}, doubled {told(row.doubled)} per million" for row in rows
    )
    label = escape(f"{title}. {described}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
        f' height="{height}" role="img" aria-label="{label}">{"".join(parts)}</svg>\n'
    )


def as_page(title: str, svg: str) -> str:
    """The picture as an HTML page."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>"
        "<style>:root { color-scheme: light dark; } body { margin: 0; } "
        f"svg {{ max-width: 100%; height: auto; }}</style></head><body>{svg}</body></html>\n"
    )


def _scale(rows: list[Row]) -> _Scale:
    values = [
        value
        for row in rows
        for what in (row.lost, row.doubled)
        for value in ((what.low, what.mean, what.high) if what.seen else (what.high,))
        if value > 0
    ] or [1.0]
    first, last = floor(log10(min(values))), ceil(log10(max(values)))
    return _Scale(first, max(last, first + 1))


def _legend() -> Iterator[str]:
    for x, name, text in ((LEFT, "lost", "lost"), (LEFT + 80, "doubled", "doubled")):
        yield _mark(name, x + 6, 74)
        yield f'<text class="quiet" x="{x + 17}" y="78">{text}</text>'
    yield (
        f'<text class="quiet" x="{LEFT + 185}" y="78">line: 95 % interval; '
        "dotted: nothing seen, less than this</text>"
    )


def _grid(scale: _Scale, height: int) -> Iterator[str]:
    bottom = height - BOTTOM
    powers = range(scale.first, scale.last + 1)
    every = ceil(len(powers) / 9)
    for power in powers:
        x = scale.x(10.0**power)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>'
        if (power - scale.first) % every == 0:
            label = f"{10.0**power:,.{max(0, -power)}f}" if -4 <= power <= 6 else f"10{_raised(power)}"
            yield f'<text class="quiet" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{label}</text>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield (
        f'<text class="quiet" x="{middle:g}" y="{bottom + 40}" text-anchor="middle">'
        "records per million (each line is ten times the one before)</text>"
    )


def _raised(power: int) -> str:
    return str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _row(row: Row, top: int, scale: _Scale) -> Iterator[str]:
    middle = top + ROW / 2
    yield f'<line class="grid" x1="20" x2="{WIDTH - 20}" y1="{top}" y2="{top}"/>'
    yield f'<text x="20" y="{middle + 4.5:g}">{escape(row.label)}</text>'
    for name, what, y in (("lost", row.lost, middle - LANE), ("doubled", row.doubled, middle + LANE)):
        if what.seen:
            low, high = scale.x(what.low), scale.x(what.high)
            yield f'<line class="whisker {name}" x1="{low:.1f}" x2="{high:.1f}" y1="{y:g}" y2="{y:g}"/>'
            yield _mark(name, scale.x(what.mean), y)
        else:
            x = scale.x(what.high)
            yield f'<line class="bound {name}" x1="{LEFT}" x2="{x:.1f}" y1="{y:g}" y2="{y:g}"/>'
            yield f'<path class="{name}" d="M{x:.1f} {y - 4:g}v8" fill="none" stroke-width="2"/>'
        yield (
            f'<text class="value {name}" x="{WIDTH - 20}" y="{y + 4:g}" text-anchor="end">'
            f"{escape(told(what))}</text>"
        )


def _mark(name: str, x: float, y: float) -> str:
    shape = "m0-6 6 10.5h-12z" if name == "lost" else "m-5-5h10v10h-10z"
    return f'<path class="{name}" stroke="none" d="M{x:.1f} {y:g}{shape}"/>'
