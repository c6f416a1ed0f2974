"""Drivers killed by SIGKILL at random moments: every record comes out once, aligned and shuffled (C8, E2).

`make test` kills two drivers. `GAPLESS_KILLS` says how many the other tiers kill: 10 in `make test-all`, and
100 in `make soak`. `GAPLESS_SEED` repeats a run.
"""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.pipeline.sinks.kafka.driving import Driving, children
from tests.pipeline.sinks.kafka.helpers import wait_for
from tests.servers import ApacheBehindProxy

KILLS = int(os.environ.get("GAPLESS_KILLS", "10"))
"""In all; a fifth of them on Apache Kafka."""
KILLS_ON_APACHE = max(1, KILLS // 5)
RECORDS_PER_RUN = 600
START_S = 180.0


@pytest.mark.parametrize("kills", [2, pytest.param(KILLS - KILLS_ON_APACHE, marks=pytest.mark.slow)])
@pytest.mark.spark
@pytest.mark.timeout(300 + 60 * KILLS)
def test_a_driver_killed_at_random_moments(bootstrap: str, tmp_path: Path, kills: int) -> None:
    kill_often(bootstrap, tmp_path, kills)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.apache
@pytest.mark.timeout(300 + 60 * KILLS_ON_APACHE)
def test_a_driver_killed_at_random_moments_on_apache_kafka(apache: ApacheBehindProxy, tmp_path: Path) -> None:
    kill_often(apache.bootstrap, tmp_path, KILLS_ON_APACHE)


def kill_often(bootstrap: str, folder: Path, kills: int) -> None:
    seed = int(os.environ.get("GAPLESS_SEED", "0")) or random.randrange(1 << 30)
    print(f"GAPLESS_SEED={seed}")  # shown when the test fails
    chance = random.Random(seed)
    driving = Driving(bootstrap, bootstrap, folder, ("aligned", "shuffled"))
    for _ in range(kills):
        driving.send(RECORDS_PER_RUN)
        before = driving.batches()
        with driving.started(ends={"pause_s": 0.03}) as process:
            if chance.random() < 0.8:  # mostly while it writes, sometimes while it starts
                wait_for(
                    lambda: process.poll() is not None or driving.batches() > before,  # noqa: B023
                    "a batch is written",
                    START_S,
                )
            else:
                time.sleep(chance.uniform(0.0, 10.0))
            time.sleep(chance.uniform(0.0, 1.5))
            assert process.poll() is None, driving.last_words()
            # Python alone, the JVM alone, or all at once. What is left has a moment to do harm.
            victims = [[process.pid], children(process.pid), []][chance.randrange(3)]
            for victim in victims:
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
            if victims:
                time.sleep(chance.uniform(0.0, 0.5))
    # Most were killed before they had carried what had come for them.
    driving.finish(timeout_s=120 + 5 * kills)
    driving.check()
    print(f"{driving.sent} records, {kills} kills, {driving.batches()} batches")
