"""When sequences were sealed, in a few points for each stream: enough to say that what is missing is too
young to have expired.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gapless.pipeline.dedup.runs import Ints, Runs, floor

NEVER_MS = -1
_MOST_SLOTS = 16
_NARROWEST_MS = 1000


class Sealed(NamedTuple):
    """Sorted by key and sequence: this one was promised by a seal of that time."""

    keys: Ints
    sequences: Ints
    times_ms: Ints

    def latest_ms(self, keys: Ints, lasts: Ints) -> Ints:
        """When something up to these sequences was sealed at the latest, as far as is known."""
        at = floor(Runs(self.keys, self.sequences, self.sequences), keys, lasts)
        found = np.full(len(keys), NEVER_MS, np.int64)
        found[at >= 0] = self.times_ms[at[at >= 0]]
        return found


def nothing_sealed() -> Sealed:
    nothing = np.empty(0, np.int64)
    return Sealed(nothing, nothing, nothing)


def sealed_too(one: Sealed, other: Sealed) -> Sealed:
    """Both, with the highest sequence of each slot of time: some slots for the whole life of a stream."""
    keys, sequences, times_ms = map(np.concatenate, zip(one, other, strict=True))
    if not len(keys):
        return one
    order = np.lexsort((sequences, times_ms, keys))
    keys, sequences, times_ms = keys[order], sequences[order], times_ms[order]
    begins = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    ends = np.append(begins[1:], len(keys)) - 1
    lives = times_ms[ends] - times_ms[begins]
    # Powers of two: narrow slots lie within wider ones, however often this is done.
    narrow = np.maximum(lives / (_MOST_SLOTS * _NARROWEST_MS), 1.0)
    widths = _NARROWEST_MS << np.ceil(np.log2(narrow)).astype(np.int64)
    slots = times_ms // np.repeat(widths, ends - begins + 1)
    order = np.lexsort((sequences, slots, keys))
    keys, sequences, times_ms, slots = (each[order] for each in (keys, sequences, times_ms, slots))
    is_last = np.append((keys[1:] != keys[:-1]) | (slots[1:] != slots[:-1]), True)
    keys, sequences, times_ms = keys[is_last], sequences[is_last], times_ms[is_last]
    order = np.lexsort((sequences, keys))
    return Sealed(keys[order], sequences[order], times_ms[order])
