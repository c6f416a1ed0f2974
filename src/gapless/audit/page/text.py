"""Words and figures of the HTML report: safe to put into a page, and the same wherever they are shown."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape

_END_OF_CALENDAR_MS = 253_402_300_800_000
_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def safe(text: str) -> str:
    """Text from data, as HTML. What cannot be seen (controls, turned directions) is spelled out."""
    return escape("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text))


def name(text: str) -> str:
    """A name from data, as HTML that may break anywhere and does not mix with its surroundings."""
    return f'<bdi class="name">{safe(text)}</bdi>'


def many(count: int, noun: str) -> str:
    """`many(2, "record")` is "2 records"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(parts: list[str]) -> str:
    """`listed(["a", "b", "c"])` is "a, b and c"."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def is_time(ms: int | None) -> bool:
    """Whether a calendar has it: records may carry any number as their time."""
    return ms is not None and 0 <= ms < _END_OF_CALENDAR_MS


def date_time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def utc(ms: int | None) -> str:
    """Date and time to the second, without the name of the zone."""
    return f"{date_time(ms):%Y-%m-%d %H:%M:%S}" if ms is not None and is_time(ms) else ""


def utc_range(first_ms: int | None, last_ms: int | None) -> str:
    """From, to: the date once if it is the same, and one time if both are the same."""
    first, last = utc(first_ms), utc(last_ms)
    if not first or not last or first == last:
        return first or last
    return f"{first} to {last[11:] if first[:10] == last[:10] else last}"


def duration(seconds: float) -> str:
    """In its two largest units: "4 s", "2 min 8 s", "0.35 s"."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    rest, parts = round(seconds), []
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count:,} {unit}")
    return " ".join(parts[:2])
