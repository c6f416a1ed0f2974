"""A cluster that is away is told in one line, not in librdkafka's many."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TRY = """
import sys
from gapless.client import Consumer, Producer
from gapless.errors import Unreachable
folder = sys.argv[2]
try:
    if sys.argv[1] == "consumer":
        Consumer("127.0.0.1:1", group="g", topics=["t"], connect_timeout_s=1.5).run(print)
    else:
        producer = Producer("127.0.0.1:1", source="s", semantics="exactly-once", spool=folder)
        producer.close(0)
        print(f"127.0.0.1:1: {producer.problem}")
except Unreachable as error:
    print(error)
"""


@pytest.mark.parametrize("who", ["consumer", "producer"])
def test_a_cluster_that_is_away_does_not_flood_the_terminal(who: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRY, who, str(tmp_path / "spool")], capture_output=True, text=True, check=True
    )
    assert "127.0.0.1:1" in done.stdout
    assert len(done.stdout.splitlines()) == 1
    assert len(done.stderr.splitlines()) <= 1, done.stderr  # that sending waits, and why
