"""SIGKILL at random and at the worst moments: effects are compared with the log, record by record (E6)."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gapless.testing.redis import Redis
from tests.client.stores.kits import PostgresKit, RedisKit, SqliteKit
from tests.client.stores.worker import expected_effects

KILLED = -9
ROOT = Path(__file__).resolve().parents[3]


class Lives:
    """A process that is ready to be forked into consumers."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.client.stores.worker"]
        self._parent = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, *arguments: object) -> int:
        """One life of a consumer; how it ended."""
        if self._parent.stdin is None or self._parent.stdout is None:
            raise RuntimeError("the pipes are missing")
        self._parent.stdin.write("\t".join(map(str, arguments)) + "\n")
        self._parent.stdin.flush()
        for line in self._parent.stdout:
            word, _, number = line.partition(" ")
            if word == "ended":
                return int(number)
            if word == "ready" and arguments[-1] == "random":
                time.sleep(random.uniform(0, 0.05))
                with contextlib.suppress(ProcessLookupError):  # it was quicker
                    os.kill(int(number), signal.SIGKILL)
        raise RuntimeError("the parent of the consumers has ended")

    def close(self) -> None:
        with self._parent:
            self._parent.kill()


@pytest.fixture(scope="module")
def life() -> Iterator[Lives]:
    lives = Lives()
    yield lives
    lives.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_no_death_of_a_consumer_loses_or_repeats_an_effect(
    request: pytest.FixtureRequest, life: Lives, kind: str
) -> None:
    kit: SqliteKit | PostgresKit = request.getfixturevalue(f"{kind}_kit")
    address = kit.dsn if isinstance(kit, PostgresKit) else str(kit.path)
    seed = random.randrange(1000)
    for moment in ["before-commit", "after-commit"] * 2:  # too few to come to the log's end
        assert life(kind, address, "", seed, moment) == KILLED
    moments = ["before-commit", "after-commit", "random"] * 6
    random.shuffle(moments)
    for moment in moments:
        assert life(kind, address, "", seed, moment) in (KILLED, 0)
    assert life(kind, address, "", seed, "end") == 0
    assert kit.effects() == expected_effects()
    assert kit.marks() == [(0, len(expected_effects()) - 1)]


def test_redis_cannot_make_an_effect_elsewhere_one_step_with_its_mark(
    redis_kit: RedisKit, redis_server: Redis, life: Lives, tmp_path: Path
) -> None:
    """A death between effect and mark, and the record in doubt redone: the effect is there twice."""
    kit = RedisKit(redis_server.url, tmp_path / "effects.redo")
    assert life("redis", redis_server.url, kit.file, 1, "before-mark") == KILLED
    begun = len(kit.effects())
    assert life("redis", redis_server.url, kit.file, 1, "end") == 0
    counts = Counter(kit.effects())
    assert {effect: count for effect, count in counts.items() if count > 1} == {
        f"shop:{begun - 1}".encode(): 2
    }
    assert sorted(counts) == sorted(expected_effects())
    kit.close()


def test_redis_can_skip_what_is_in_doubt_and_then_an_effect_may_be_missing(
    redis_kit: RedisKit, redis_server: Redis, life: Lives, tmp_path: Path
) -> None:
    """After the effect nothing is lost by it; before the effect, when the record was only begun, it is."""
    kit = RedisKit(redis_server.url, tmp_path / "effects.skip")
    assert life("redis", redis_server.url, kit.file, 1, "before-mark") == KILLED
    assert life("redis", redis_server.url, kit.file, 1, "after-mark") == KILLED
    begun = len(kit.effects())
    assert life("redis", redis_server.url, kit.file, 1, "end") == 0
    missing = Counter(expected_effects()) - Counter(kit.effects())
    assert missing == {f"shop:{begun}".encode(): 1}
    assert not Counter(kit.effects()) - Counter(expected_effects())
    kit.close()


@pytest.mark.parametrize("in_doubt", ["redo", "skip"])
def test_redis_is_wrong_about_at_most_one_record_per_death(
    redis_kit: RedisKit, redis_server: Redis, life: Lives, tmp_path: Path, in_doubt: str
) -> None:
    kit = RedisKit(redis_server.url, tmp_path / f"effects.{in_doubt}")
    seed, deaths = random.randrange(1000), 5
    for _ in range(deaths):
        life("redis", redis_server.url, kit.file, seed, "random")
    assert life("redis", redis_server.url, kit.file, seed, "end") == 0
    effects, expected = Counter(kit.effects()), Counter(expected_effects())
    repeated, missing = (effects - expected).total(), (expected - effects).total()
    assert repeated <= (deaths if in_doubt == "redo" else 0)
    assert missing <= (deaths if in_doubt == "skip" else 0)
    kit.close()
