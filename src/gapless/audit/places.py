"""Where in a topic the records are that a sink lacks, or has twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from gapless.audit.stretches import Stretches
from gapless.pipeline.dedup.runs import floor

ANY = -1
"""The partition of a name, where rows do not tell it."""


class Place(NamedTuple):
    """Of records in the topic."""

    partition: int
    first_offset: int | None = None
    last_offset: int | None = None
    first_ms: int | None = None
    last_ms: int | None = None


def places_of(
    maker: bytes,
    partition: int,
    numbers: tuple[int, int],
    where: Stretches,
    streams: Mapping[bytes, list[tuple[int, int]]],
) -> list[Place]:
    """Where these numbers are, in each stream of the maker."""
    found = []
    for key, each in streams.get(maker, []):
        if partition not in (ANY, each):
            continue
        at = int(floor(where.runs, np.array([key]), np.array([numbers[0]]))[0])
        if at >= 0 and where.lasts[at] >= numbers[1]:
            offsets = int(where.begins.offsets[at]), int(where.ends.offsets[at])
            times_ms = int(where.begins.times_ms[at]), int(where.ends.times_ms[at])
            found.append(Place(each, *offsets, *times_ms))
    return found
