"""The ratios to Apache Kafka as a picture: hand-written SVG that reads well on light and dark pages.

One line per cell that has a target, on a logarithmic axis: the dot is the median, the whisker lowest to
highest, the small mark the target, the vertical line parity. Where more is better and where less is better
are apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from benchmarks.harness import Cell

_WIDTH = 860
_LABEL_WIDTH = 430
_RIGHT_MARGIN = 70
_ROW_HEIGHT = 22
_HEADING_HEIGHT = 34
_AXIS_HEIGHT = 30
_NICE = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)

_STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #24292f; }
.heading { font-weight: 600; }
.faint { fill: #57606a; }
.grid { stroke: #d0d7de; }
.parity { stroke: #57606a; stroke-width: 1.5; }
.target { stroke: #57606a; stroke-width: 3; }
.ok { stroke: #1a7f37; fill: #1a7f37; }
.short { stroke: #cf222e; fill: #cf222e; }
line.ok, line.short { stroke-width: 2; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .faint { fill: #8d96a0; }
  .grid { stroke: #30363d; }
  .parity, .target { stroke: #8d96a0; }
  .ok { stroke: #3fb950; fill: #3fb950; }
  .short { stroke: #f85149; fill: #f85149; }
}
"""


class _Axis:
    """From ratios to horizontal positions."""

    def __init__(self, values: Sequence[float]) -> None:
        lowest, highest = min(*values, 1.0), max(*values, 1.0)
        self.low = max((tick for tick in _NICE if tick <= lowest), default=_NICE[0])
        self.high = min((tick for tick in _NICE if tick >= highest), default=_NICE[-1])
        self.ticks = [tick for tick in _NICE if self.low <= tick <= self.high]

    def x(self, ratio: float) -> float:
        inside = min(max(ratio, self.low), self.high)
        share = math.log(inside / self.low) / math.log(self.high / self.low)
        return _LABEL_WIDTH + share * (_WIDTH - _LABEL_WIDTH - _RIGHT_MARGIN)


def draw(cells: Sequence[Cell]) -> str | None:
    """The picture, or None if no cell has both a ratio and a target."""
    shown = [cell for cell in cells if cell.verdict()]
    if not shown:
        return None
    values = [value for cell in shown if (ratio := cell.ratio()) for value in ratio.rounds]
    bounds = [cell.figure.target.bound for cell in shown if cell.figure.target]
    axis = _Axis([*values, *bounds])
    groups = [
        ("more is better", [cell for cell in shown if cell.figure.higher_is_better]),
        ("less is better", [cell for cell in shown if not cell.figure.higher_is_better]),
    ]
    parts: list[str] = []
    y = 8.0
    for heading, members in groups:
        if members:
            y += _HEADING_HEIGHT
            parts.append(_text(8, y - 10, f"Gapless ÷ Apache Kafka, {heading}", "heading"))
        for cell in members:
            parts += _row(cell, axis, y + _ROW_HEIGHT / 2)
            y += _ROW_HEIGHT
    parts.append(
        _text(8, y + 18, "dot: median of the rounds · line: lowest to highest · mark: target", "faint")
    )
    height = y + _AXIS_HEIGHT
    return "\n".join([_opening(height), *_grid(axis, y), *parts, "</svg>", ""])


def _opening(height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" role="img"'
        f' aria-label="Ratios of Gapless to Apache Kafka">\n<style>\n{_STYLE}</style>'
    )


def _grid(axis: _Axis, bottom: float) -> list[str]:
    parts = []
    for tick in axis.ticks:
        style = "parity" if tick == 1.0 else "grid"
        parts.append(_line(axis.x(tick), _HEADING_HEIGHT, axis.x(tick), bottom, style))
        parts.append(_text(axis.x(tick), bottom + 18, f"{tick:g}×", "faint", anchor="middle"))
    return parts


def _row(cell: Cell, axis: _Axis, y: float) -> list[str]:
    ratio, target = cell.ratio(), cell.figure.target
    if ratio is None or target is None:
        return []
    style = cell.verdict()
    return [
        _text(_LABEL_WIDTH - 12, y + 4, f"{cell.step.title}: {_brief(cell)}", anchor="end"),
        _line(axis.x(target.bound), y - 7, axis.x(target.bound), y + 7, "target"),
        _line(axis.x(ratio.lowest), y, axis.x(ratio.highest), y, style),
        f'<circle class="{style}" cx="{axis.x(ratio.median):.1f}" cy="{y:.1f}" r="4"/>',
        _text(_WIDTH - 8, y + 4, f"{ratio.median:.2f}×", anchor="end"),
    ]


def _brief(cell: Cell) -> str:
    names = {
        "rate": "throughput",
        "broker_cpu": "broker CPU",
        "p50": "median",
        "start": "first acknowledgement",
        "gap": "gap in writes",
    }
    return names.get(cell.figure.key, cell.figure.label)


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text{kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
