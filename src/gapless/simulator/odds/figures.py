"""Figures for people: as many digits as mean something."""

from __future__ import annotations

from math import floor, log10

from gapless.simulator.odds.estimate import Estimate

_SPANS = (
    ("y", 31_557_600_000),
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("min", 60_000),
    ("s", 1_000),
    ("ms", 1),
)
_SMALLEST = 1e-4


def figure(number: float) -> str:
    """Two digits that count, three of large numbers."""
    if number == 0:
        return "0"
    power = floor(log10(number))
    if number < _SMALLEST:
        return f"{number / 10**power:.1f}e{power}"
    rounded = round(number, (2 if number >= 100 else 1) - power)
    return f"{rounded:,.0f}" if number >= 10 else f"{rounded:.{max(0, 1 - power)}f}"


def span(ms: float) -> str:
    """A time in the largest unit that it fills."""
    unit, length = next(((unit, length) for unit, length in _SPANS if ms >= length), _SPANS[-1])
    number = ms / length
    return f"{number:g} {unit}" if number == round(number) else f"{figure(number)} {unit}"


def told(what: Estimate) -> str:
    """A mean with its interval; a bound if nothing was seen."""
    if not what.seen:
        return f"< {figure(what.high)}"
    return f"{figure(what.mean)} ({figure(what.low)}–{figure(what.high)})"


def told_span(ms: Estimate) -> str:
    """The same for times, without the interval."""
    return span(ms.mean) if ms.seen else f"< {span(ms.high)}"
