"""A seed is a run, bit for bit: in any process, however its messages travel, and from a file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gapless.errors import UsageError
from gapless.simulator.case import Case
from gapless.simulator.cases import make_case
from gapless.simulator.profiles import PROFILES
from gapless.simulator.run import play_scene
from gapless.simulator.saved import Saved, load, save
from gapless.simulator.scene import Scene

SEED = 3


def traced(hash_seed: str, *argv: str) -> bytes:
    """What another process prints of a seed."""
    command = [sys.executable, "-m", "gapless", "simulate", *argv, "--trace"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    ran = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=100)
    assert ran.returncode in (0, 1), ran.stderr  # whether it keeps its promises is not asked here
    return ran.stdout


def test_a_seed_gives_the_same_trace_in_every_process(tmp_path: Path) -> None:
    first = traced("1", "--seed", str(SEED))
    assert first == traced("2", "--seed", str(SEED))
    lines = first.decode().splitlines()
    assert len(lines) > 1_000
    assert lines[-1].startswith(f"seed {SEED}, profile everything: ")
    assert any(" > Reply on " in line and "PRODUCE" in line for line in lines)
    assert not [line for line in lines if " at 0x" in line], "an address of memory is no part of a run"

    save(tmp_path / "case.json", Saved(make_case(SEED, PROFILES["everything"])))
    assert traced("3", "--case", str(tmp_path / "case.json")) == first


def history_of(case: Case, *, through_bytes: bool) -> tuple[object, ...]:
    scene = Scene(case, lambda world: setattr(world.network, "through_bytes", through_bytes))
    report = play_scene(scene)
    writes = [
        (write.value, write.place, write.offset, write.acknowledged)
        for write in scene.history.writes.values()
    ]
    readings = [(each.consumer, each.place, tuple(each.polled)) for each in scene.history.readings]
    return str(report.violation), report.events, report.virtual_ms, writes, readings


@pytest.mark.parametrize("profile", ["elections", "transactions"])
def test_brokers_that_talk_in_bytes_come_to_the_same_history(profile: str) -> None:
    case = make_case(SEED, PROFILES[profile])
    assert history_of(case, through_bytes=True) == history_of(case, through_bytes=False)


def test_a_case_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "case.json"
    for profile in PROFILES.values():
        case = make_case(7, profile)
        save(file, Saved(case, "early-acknowledgement"))
        assert load(file) == Saved(case, "early-acknowledgement")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no JSON", "holds no case"),
        ("[]", "holds no case"),
        ('{"format": 1, "mutant": null, "case": {"seed": 1}}', "holds no case"),
        ('{"format": 9, "mutant": null, "case": {}}', "has format 9"),
    ],
)
def test_a_file_that_is_no_case_is_refused_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "case.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=says):
        load(file)
    with pytest.raises(UsageError, match="cannot read"):
        load(tmp_path / "missing.json")
