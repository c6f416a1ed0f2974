"""When sequences were sealed, in few points."""

from __future__ import annotations

import numpy as np

from gapless.audit.sealing import NEVER_MS, Sealed, nothing_sealed, sealed_too

BEGIN_MS = 1_700_000_000_000


def latest_ms(sealed: Sealed, key: int, last: int) -> int:
    return int(sealed.latest_ms(np.array([key]), np.array([last]))[0])


def points(key: int, first: int, count: int, step_ms: int) -> Sealed:
    """A seal for every ten sequences."""
    sequences = first + 10 * np.arange(count)
    return Sealed(np.full(count, key), sequences, BEGIN_MS + step_ms * np.arange(count))


def test_few_points_are_kept_for_each_stream_and_none_tells_of_a_later_time() -> None:
    sealed = nothing_sealed()
    for step in range(0, 10_000, 100):
        every = points(3, 9, 10_000, 10_000)
        sealed = sealed_too(sealed, Sealed(*(column[step : step + 100] for column in every)))
        sealed = sealed_too(sealed, points(1, 9, 1, 0))
    assert 8 <= np.count_nonzero(sealed.keys == 3) <= 17
    assert np.count_nonzero(sealed.keys == 1) == 1
    assert latest_ms(sealed, 3, 8) == NEVER_MS
    assert latest_ms(sealed, 2, 100) == NEVER_MS
    life_ms = 10_000 * 10_000
    for last in range(10_000, 100_000, 997):
        sealed_ms = BEGIN_MS + (last + 1) // 10 * 10_000
        assert sealed_ms - life_ms / 8 - 10_000 <= latest_ms(sealed, 3, last) <= sealed_ms
    # The last is known exactly.
    assert latest_ms(sealed, 3, 2**40) == BEGIN_MS + life_ms - 10_000


def test_no_points_are_none() -> None:
    nothing = sealed_too(nothing_sealed(), nothing_sealed())
    assert latest_ms(nothing, 0, 5) == NEVER_MS
