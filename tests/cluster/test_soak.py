"""Half a minute of random faults from a seed (B3, C3, C5, C8, D3, D5); `make soak` runs ten."""

from __future__ import annotations

import pytest

from tests.cluster.soak import Soak, schedule


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_b3_c3_d3_nothing_is_lost_or_doubled_under_random_faults() -> None:
    soak = Soak(seed=5, minutes=0.5)
    soak.run()
    assert soak.faults > 3


def test_a_seed_gives_the_same_faults_again() -> None:
    first, second, other = schedule(1), schedule(1), schedule(2)
    taken = [next(first) for _ in range(50)]
    assert taken == [next(second) for _ in range(50)]
    assert taken != [next(other) for _ in range(50)]
