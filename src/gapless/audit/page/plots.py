"""The HTML report's plots, as SVG.

Places along a plot are percentages and all else is in pixels. So a plot is as wide as its page, and its text
and marks have the same size on a phone as on a large screen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import ceil
from typing import NamedTuple

from gapless.audit.findings import Fault, Finding
from gapless.audit.page.text import date_time, is_time, many, safe, utc_range

_SHAPES = {
    Fault.LOST: "M0-6 6 5H-6Z",
    Fault.DUPLICATED: "M-5-5H5V5H-5Z",
    Fault.REORDERED: "M-5.5 0a5.5 5.5 0 1 0 11 0a5.5 5.5 0 1 0-11 0Z",
    Fault.ABORTED: "M0-6.5 6.5 0 0 6.5-6.5 0Z",
    Fault.TORN: "M-5.5-5.5H-1V5.5H-5.5ZM1-5.5H5.5V5.5H1Z",
}
_LANE, _BARS, _AXIS = 16, 110, 22
# Marks that are closer than one in so many parts of a plot would cover each other, and are one mark.
_PLACES = 1000
_MOST_TICKS = 8
_DAY_MS = 86_400_000
_TICKS_MS = [
    *(seconds * 1000 for seconds in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800)),
    *(hours * 3_600_000 for hours in (1, 2, 3, 6, 12)),
    *(days * _DAY_MS for days in (1, 2, 7, 14, 28, 91, 182, 365)),
]


class Span(NamedTuple):
    """What a plot shows from its left to its right edge: times or offsets."""

    first: int
    end: int

    def percent(self, at: int) -> float:
        part = (at - self.first) / max(self.end - self.first, 1)
        return 100 * min(max(part, 0.0), 1.0)


class Series(NamedTuple):
    """Counts by the beginning of their slot."""

    promised: Mapping[int, int]
    present: Mapping[int, int]
    width_ms: int


def shapes() -> str:
    """The marks' shapes, once for the whole page."""
    paths = "".join(f'<path id="{fault}" d="{path}" fill="currentColor"/>' for fault, path in _SHAPES.items())
    return f'<svg class="shapes" width="0" height="0" aria-hidden="true"><defs>{paths}</defs></svg>'


def icon(fault: Fault) -> str:
    """A mark within text."""
    return f'<svg class="icon {fault}" viewBox="-7 -7 14 14" aria-hidden="true"><use href="#{fault}"/></svg>'


def moment(finding: Finding) -> int | None:
    """When: for lost records, the time of the one before them, or else after them."""
    times = (finding.first_ms, finding.last_ms)
    return next((ms for ms in times if is_time(ms)), None)


def place(finding: Finding) -> int | None:
    """Where in the partition; None if nobody can tell."""
    if finding.partition < 0:
        return None
    return finding.last_offset if finding.first_offset is None else finding.first_offset


def time_span(series: Series, findings: Iterable[Finding]) -> Span | None:
    """All the time that there is to show."""
    slots = [*series.promised, *series.present]
    moments = [ms for finding in findings if (ms := moment(finding)) is not None]
    if not slots and not moments:
        return None
    ends = [*(at + series.width_ms for at in slots), *(ms + 1 for ms in moments)]
    return Span(min([*slots, *moments]), max(ends))


def lanes_for(findings: Iterable[Finding]) -> dict[Fault, int]:
    """How high each fault's marks are: the same in all plots, so that one can look from one to the next."""
    found = {finding.fault for finding in findings}
    return {
        fault: _LANE * lane + _LANE // 2
        for lane, fault in enumerate(fault for fault in Fault if fault in found)
    }


def by_time(
    title: str, series: Series, findings: list[Finding], span: Span, lanes: Mapping[Fault, int]
) -> str:
    """Counts by time, if there are any, with a lane of marks for each fault above them."""
    if not series.promised and not series.present:
        bottom = _LANE * len(lanes)
        parts = [_time_axis(span, bottom), _ground(bottom), _marks(findings, lanes, moment, span)]
        return _svg("time", bottom + _AXIS, _told_of(title, span, findings), parts)
    top = _LANE * len(lanes) + 16  # the highest label is above its line
    bottom = top + _BARS
    highest = _round_up(max([*series.promised.values(), *series.present.values()], default=0))
    parts = [
        _levels(highest, top, "line"),
        f'<svg y="{top}" width="100%" height="{_BARS}" viewBox="0 0 1000 100" preserveAspectRatio="none">',
        f'<path class="present" d="{_steps(series.present, series.width_ms, span, highest)}"/>',
        f'<path class="promised" d="{_steps(series.promised, series.width_ms, span, highest)}"/></svg>',
        _levels(highest, top, "text"),
        _time_axis(span, bottom),
        _marks(findings, lanes, moment, span),
    ]
    return _svg("time", bottom + _AXIS, _told_of(title, span, findings), parts)


def _told_of(title: str, span: Span, findings: list[Finding]) -> str:
    return f"{title}, {utc_range(span.first, span.end)} UTC: {many(len(findings), 'finding')}"


def by_offset(partition: int, span: Span, findings: list[Finding], lanes: Mapping[Fault, int]) -> str:
    """One partition from its first offset to its end, with the findings in it."""
    height = _LANE * len(lanes)
    parts = [
        f'<rect class="strip" width="100%" height="{height}" rx="3"/>',
        *(_stretch(finding, span, lanes[finding.fault]) for finding in findings),
        _marks(findings, lanes, place, span),
    ]
    told = f"partition {partition}, offsets {span.first:,} to {span.end:,}: {many(len(findings), 'finding')}"
    return _svg("offsets", height, told, parts)


def _svg(kind: str, height: int, told: str, parts: Iterable[str]) -> str:
    return (
        f'<svg class="plot {kind}" width="100%" height="{height}" role="img" aria-label="{safe(told)}">'
        f"{''.join(parts)}</svg>"
    )


def _marks(
    findings: Iterable[Finding],
    lanes: Mapping[Fault, int],
    where: Callable[[Finding], int | None],
    span: Span,
) -> str:
    together: dict[tuple[Fault, int], list[Finding]] = {}
    for finding in findings:
        at = where(finding)
        if at is not None:
            spot = round(span.percent(at) / 100 * _PLACES)
            together.setdefault((finding.fault, spot), []).append(finding)
    return "".join(
        f'<use class="mark {fault}" href="#{fault}" x="{100 * spot / _PLACES:g}%" y="{lanes[fault]}"'
        f' data-findings="{len(found)}"><title>{safe(_told(found))}</title></use>'
        for (fault, spot), found in together.items()
    )


def _told(found: list[Finding]) -> str:
    if len(found) == 1:
        return str(found[0])
    records = sum(finding.records for finding in found)
    return f"{found[0].fault}: {many(len(found), 'finding')} here, {many(records, 'record')}"


def _stretch(finding: Finding, span: Span, y: int) -> str:
    """A line as long as the finding, where it is long enough to be seen beside its mark."""
    if finding.first_offset is None or finding.last_offset is None:
        return ""
    left, right = span.percent(finding.first_offset), span.percent(finding.last_offset)
    if right - left < 0.5:
        return ""
    line = f'x1="{left:.2f}%" x2="{right:.2f}%" y1="{y}" y2="{y}"'
    return f'<line class="stretch {finding.fault}" {line}/>'


def _steps(counts: Mapping[int, int], width_ms: int, span: Span, highest: int) -> str:
    """An outline of bars without lines between them; down to zero where a slot is empty."""
    path: list[str] = []
    end = None
    for at, count in sorted(counts.items()):
        left, right = (10 * span.percent(each) for each in (at, at + width_ms))
        if at != end:
            path.append(f"{'V100' if path else ''}M{left:.1f} 100")
        path.append(f"V{100 - 100 * count / highest:.1f}H{right:.1f}")
        end = at + width_ms
    return "".join([*path, "V100"]) if path else ""


def _levels(highest: int, top: int, what: str) -> str:
    """The ground and two lines to read heights from, behind the counts; or their numbers, before them."""
    heights = {level: top + _BARS * (highest - level) / highest for level in (highest, highest // 2)}
    if what == "text":
        return "".join(
            f'<text class="level" y="{y - 4:g}">{level:,}</text>'
            for level, y in heights.items()
            if level * 2 in {highest, highest * 2}
        )
    lines = "".join(f'<line class="grid" x2="100%" y1="{y:g}" y2="{y:g}"/>' for y in heights.values())
    return lines + _ground(top + _BARS)


def _ground(y: int) -> str:
    return f'<line class="ground" x2="100%" y1="{y}" y2="{y}"/>'


def _time_axis(span: Span, y: int) -> str:
    step = _tick_ms(span)
    parts = []
    for at in range(-(-span.first // step) * step, span.end + 1, step):
        percent = span.percent(at)
        anchor = "start" if percent < 8 else "end" if percent > 92 else "middle"
        # Where there is little room, every other label is left out.
        seldom = " more" if at // step % 2 else ""
        parts.append(
            f'<line class="ground" x1="{percent:.2f}%" x2="{percent:.2f}%" y1="{y}" y2="{y + 4}"/>'
            f'<text class="tick{seldom}" x="{percent:.2f}%" y="{y + 17}" text-anchor="{anchor}">'
            f"{_tick_label(at, step)}</text>"
        )
    return "".join(parts)


def _tick_ms(span: Span) -> int:
    length = span.end - span.first
    fitting = (step for step in _TICKS_MS if length / step <= _MOST_TICKS)
    return next(fitting, _round_up(ceil(length / _MOST_TICKS / _TICKS_MS[-1])) * _TICKS_MS[-1])


def _tick_label(ms: int, step: int) -> str:
    if not is_time(ms):  # the edge of the calendar
        return ""
    time = date_time(ms)
    if step >= _DAY_MS:
        return f"{time:%Y-%m-%d}"
    if ms % _DAY_MS == 0:
        return f"{time:%m-%d}"
    return f"{time:%H:%M:%S}" if step < 60_000 else f"{time:%H:%M}"


def _round_up(number: int) -> int:
    """To a number that is short, and so is its half."""
    if number <= 10:
        return 1 if number <= 1 else number + number % 2
    power = int(10 ** (len(str(number)) - 2))
    return next(
        short * power for short in (10, 12, 16, 20, 30, 40, 50, 60, 80, 100) if short * power >= number
    )
