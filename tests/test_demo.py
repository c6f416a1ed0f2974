"""The demo: its account can see every kind of fault, its run is clean, and it leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from gapless.demo.numbered import Sightings, number_of, value_of

MARK = "GAPLESS_TEST_MARK"


def sightings(*seen: tuple[int, int, int]) -> Sightings:
    """(number, partition, offset) of each."""
    result = Sightings()
    for number, partition, offset in seen:
        result.add(number, partition, offset)
    return result


RECEIPTS = [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1)]


@pytest.mark.parametrize(
    ("there", "fault", "numbers"),
    [
        (RECEIPTS, None, []),
        (RECEIPTS[::-1], None, []),  # rows of a table come in any order
        (RECEIPTS[:3], "lost", [3]),
        ([], "lost", [0, 1, 2, 3]),
        ([*RECEIPTS, (2, 0, 2)], "doubled", [2]),
        ([*RECEIPTS, (2, 0, 1)], "doubled", [2]),
        ([(2, 0, 0), (1, 1, 0), (0, 0, 1), (3, 1, 1)], "reordered", [0]),
        ([(0, 0, 0), (1, 1, 0), (2, 1, 1), (3, 1, 2)], "moved", [2, 3]),
        ([*RECEIPTS, (4, 0, 2)], "unacknowledged", [4]),
    ],
)
def test_the_account_sees_every_kind_of_fault(
    there: list[tuple[int, int, int]], fault: str | None, numbers: list[int], require: Callable[[str], None]
) -> None:
    require("spark")
    from gapless.demo.verdict import Columns, account

    found = account(5, Columns.of(sightings(*RECEIPTS)), Columns.of(sightings(*there)))
    assert found.clean == (fault in {None, "unacknowledged"})
    assert found.records == len(there)
    if fault is None:
        assert found.examples == {}
    else:
        assert found.examples[fault] == numbers
        assert getattr(found, fault) == len(numbers)


def test_a_record_that_nobody_sent_is_no_clean_account(require: Callable[[str], None]) -> None:
    require("spark")
    from gapless.demo.verdict import Columns, account

    for stranger in (-1, 5, 10**11):
        there = sightings(*RECEIPTS, (stranger, 0, 2))
        found = account(5, Columns.of(sightings(*RECEIPTS)), Columns.of(there))
        assert (found.unknown, found.clean) == (1, False)


def test_a_record_tells_its_number() -> None:
    assert number_of(value_of(123_456, b"." * 88)) == 123_456
    assert len(value_of(0, b"." * 88)) == 100


def marked_processes(mark: str) -> list[str]:
    """Command lines of all processes that inherited the mark."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200])
        except (PermissionError, FileNotFoundError, ProcessLookupError):
            continue  # not ours, or gone meanwhile
    return found


def gone_soon(mark: str) -> list[str]:
    """What is still there after a while; a process that was killed takes a moment to leave the list."""
    deadline = time.monotonic() + 20
    while (left := marked_processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_every_record_is_accounted_for_through_a_crash(require: Callable[[str], None]) -> None:
    require("spark")
    mark = str(uuid.uuid4())
    ran = subprocess.run(
        [sys.executable, "-m", "gapless", "demo", "--records", "50000", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, MARK: mark},
        check=False,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    result = json.loads(ran.stdout)
    assert (result["sent"], result["acknowledged"], result["failures"]) == (50_000, 50_000, {})
    assert result["outage"]["acknowledged_before"] >= 25_000
    assert result["outage"]["down_s"] > 0
    for place in ("topic", "table"):
        assert result[place]["records"] == 50_000
        assert result[place]["examples"] == {}
    assert result["clean"] is True
    assert "a leader (SIGKILL)" in ran.stderr
    assert gone_soon(mark) == []


@pytest.mark.spark
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_behind(
    number: signal.Signals, require: Callable[[str], None], tmp_path: Path
) -> None:
    require("spark")
    mark = str(uuid.uuid4())
    environment = {**os.environ, MARK: mark, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-m", "gapless", "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as demo:
        assert demo.stderr is not None
        assert "brokers ready" in demo.stderr.readline()
        assert "starting Spark" in demo.stderr.readline()
        demo.send_signal(number)
        out, err = demo.communicate(timeout=60)
    assert (demo.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert gone_soon(mark) == []
    assert list(tmp_path.glob("gapless-*")) == []
