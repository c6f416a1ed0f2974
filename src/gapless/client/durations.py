"""Durations as people write them.

>>> seconds("24h"), seconds("500ms"), seconds("1.5m"), seconds(30)
(86400.0, 0.5, 90.0, 30.0)
"""

from __future__ import annotations

import re
from math import inf

from gapless.errors import UsageError

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_WRITTEN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*")


def seconds(duration: str | float) -> float:
    """A number is seconds already; a text is a number with one of the units ms, s, m, h, d."""
    if isinstance(duration, str):
        written = _WRITTEN.fullmatch(duration)
        if written is None:
            raise UsageError(f"{duration!r} is no duration: write it like 24h, 30m, 10s or 500ms")
        return float(written[1]) * _UNITS_S[written[2] or "s"]
    given: object = duration
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < inf:
        raise UsageError(f"{given!r} is no duration: a number of seconds, 0 or more")
    return float(given)
