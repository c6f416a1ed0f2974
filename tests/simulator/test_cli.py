"""`gapless simulate`: what it says, as text and as JSON, and how it ends."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gapless.cli import run
from gapless.simulator.campaign import mistaken
from gapless.simulator.checkers import CHECKERS
from gapless.simulator.faults import FAULTS
from gapless.simulator.hunting import Hunted
from gapless.simulator.mutants import MUTANTS
from gapless.simulator.profiles import PROFILES
from tests.cli.conftest import Gapless, Ran

MUTANT = "early-acknowledgement"
QUICK = ("--profile", "elections")


@pytest.fixture
def gapless(capfd: pytest.CaptureFixture[str]) -> Gapless:
    def go(*argv: str, stdin: bytes = b"") -> Ran:
        capfd.readouterr()
        code = run(["simulate", *argv])
        return Ran(code, *capfd.readouterr())

    return go


def test_seeds_that_keep_every_promise_end_with_0_and_a_table_of_who_was_hit(gapless: Gapless) -> None:
    ran = gapless("--seeds", "5", "--workers", "1", *QUICK)
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0].split() == ["FAULT", "LEADER", "FOLLOWER", "CONTROLLER", "COORDINATOR", "BYSTANDER"]
    assert any(line.startswith("coverage: ") and "pairs of fault and role" in line for line in lines)
    judged = r"of [\d,]+ acknowledged records [\d,]+ were judged; topics were excused in 1 run"
    assert re.fullmatch(judged, lines[-2])
    assert lines[-1].startswith("every promise was kept: 5 seeds, ")
    told = json.loads(gapless("--seeds", "5", "--workers", "1", "--json", "--profile", "power").out)
    assert told["acknowledged"] > told["judged"] > 0
    assert told["excused"]["runs"] >= max(told["excused"]["topics"].values()) > 0


def test_a_seed_that_fails_is_listed_with_the_command_that_replays_it(gapless: Gapless) -> None:
    with mistaken(MUTANT):
        ran = gapless("--seeds", "10", "--workers", "1", *QUICK)
        assert ran.code == 1
        told = json.loads(gapless("--seeds", "10", "--workers", "1", "--json", *QUICK).out)
    first = told["failures"][0]
    assert first["anomaly"] in MUTANTS[MUTANT].found_as
    assert first["replay"] == f"gapless simulate --seed {first['seed']} --profile elections"
    assert f"{first['anomaly']}: {first['text']}\n  {first['replay']}\n" in ran.out
    assert "seeds broke a promise" in ran.out.splitlines()[-1]
    assert told["coverage"]["rules"]["never"]
    assert told["faults"]["crash"] > 10


def test_a_mutant_is_found_shrunk_told_and_saved(gapless: Gapless, tmp_path: Path) -> None:
    file = tmp_path / "case.json"
    ran = gapless("--mutant", MUTANT, "--workers", "1", "--save", str(file))
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0] == f"{MUTANT} ({MUTANTS[MUTANT].ticket}): {MUTANTS[MUTANT].story}"
    assert "Jepsen calls it" in lines[-2]
    assert len(lines) < 50
    assert "shrunk from " in ran.err

    again = gapless("--case", str(file))
    assert again.code == 0, "with a mistake, 0 is to have found it"
    assert again.out.splitlines()[-3:] == lines[-3:]
    told = json.loads(gapless("--case", str(file), "--json").out)
    assert told["anomaly"] in MUTANTS[MUTANT].found_as
    assert told["story"]["lines"][0].keys() == {"at_ms", "who", "text", "kind"}


def test_of_what_is_found_inside_the_brokers_the_harm_to_a_client_is_told(
    gapless: Gapless, tmp_path: Path
) -> None:
    file = tmp_path / "case.json"
    argv = ("--mutant", "hw-of-the-fastest", "--workers", "1", "--first", "27", "--no-shrink")
    ran = gapless(*argv, "--save", str(file))
    assert ran.code == 0, ran.err
    assert "of the profile elections: high-watermark\n" in ran.err
    assert "a client suffers from it by seed " in ran.err
    anomaly, jepsen, _promise = ran.out.splitlines()[-3:]
    assert anomaly.startswith("lost-write: record")
    assert jepsen.startswith("Jepsen calls it a lost write")
    assert gapless("--case", str(file)).out.splitlines()[-3:] == ran.out.splitlines()[-3:]


def test_a_mutant_that_is_not_found_ends_with_1(gapless: Gapless, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapless.cli.simulate.hunts.find", lambda *_, **__: Hunted(MUTANT, 2_000, None))
    ran = gapless("--mutant", MUTANT, "--workers", "1")
    assert ran.code == 1
    assert ran.out == f"not found: {MUTANT}, in 2,000 seeds\n"
    assert json.loads(gapless("--mutant", MUTANT, "--workers", "1", "--json").out)["found"] is False


def test_the_table_of_mutants_says_of_each_whether_it_was_found(
    gapless: Gapless, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = {MUTANT: MUTANTS[MUTANT]}
    monkeypatch.setattr("gapless.cli.simulate.hunts.MUTANTS", only)
    ran = gapless("--mutants", "--workers", "1", "--seeds", "50")
    assert ran.code == 0, ran.err
    heading, row, verdict = ran.out.splitlines()
    assert heading.split() == ["MUTANT", "TICKET", "FOUND", "SEEDS", "STEPS", "ANOMALY", "PROFILE"]
    assert row.split()[:3] == [MUTANT, MUTANTS[MUTANT].ticket, "yes"]
    assert verdict == "1 of 1 mutants were found"


def test_a_single_seed_says_that_it_is_clean_and_its_story_can_be_told(gapless: Gapless) -> None:
    ran = gapless("--seed", "1", "--profile", "calm")
    assert ran.code == 0
    assert ran.out.startswith("seed 1, profile calm: every promise was kept (")
    told = gapless("--seed", "1", "--profile", "calm", "--story")
    assert told.out.splitlines()[-1] == "Every promise was kept."
    assert " sends record" in told.out


def test_the_list_names_everything_with_its_meaning(gapless: Gapless) -> None:
    ran = gapless("--list")
    told = json.loads(gapless("--list", "--json").out)
    for kind, known in (
        ("profiles", PROFILES),
        ("faults", FAULTS),
        ("promises", CHECKERS),
        ("mutants", MUTANTS),
    ):
        assert list(told[kind]) == list(known)
        for name in known:
            assert f"\n{name} " in ran.out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--trace"], "--trace does not go with --seeds, it goes with --seed or --case"),
        (["--seed", "1", "--seeds", "2"], "--seeds does not go with --seed"),
        (["--seed", "1", "--case", "x"], "--case does not go with --seed"),
        (["--seed", "1", "--trace", "--json"], "--trace prints lines of its own"),
        (["--mutants", "--mutant", "x"], "--mutant does not go with --mutants"),
        (["--profile", "elektions"], "there is no profile elektions: did you mean elections?"),
        (["--mutant", "x"], "there is no mutant x: there are "),
        (["--fault", "crush=1"], "there is no fault crush: did you mean crash?"),
        (["--fault", "crash"], "--fault crash: give a rate from 0 to 100, as in --fault crash=2"),
        (["--fault", "crash=often"], "--fault crash=often: give a rate from 0 to 100"),
        (["--fault", "crash=-1"], "--fault crash=-1: give a rate from 0 to 100"),
        (["--fault", "crash=nan"], "--fault crash=nan: give a rate from 0 to 100"),
        (["--mutant", MUTANT, "--fault", "crash=1"], "--fault does not go with --mutant"),
        (["--seed", "1", "--save", "/nowhere/case.json"], "cannot write /nowhere/case.json: name a file"),
        (["--mutant", MUTANT, "--save", "/"], "cannot write /: name a file in a folder that is there"),
        (["--case", "nowhere.json"], "cannot read nowhere.json"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(gapless: Gapless, argv: list[str], says: str) -> None:
    ran = gapless(*argv)
    assert ran.code == 2
    assert says in ran.err
    assert len(ran.err.splitlines()) == 1
    assert not ran.out


def test_a_rate_may_be_another_than_the_profiles(gapless: Gapless) -> None:
    argv = ("--profile", "calm", "--fault", "crash=5", "--fault", "power-cut=0")
    told = json.loads(gapless("--seeds", "5", "--workers", "1", "--json", *argv).out)
    assert told["rates"] == {"crash": 5.0, "power-cut": 0.0}
    assert told["faults"].keys() == {"crash"}
    assert gapless("--seed", "1", *argv).code == 0
    others = (*QUICK, "--fault", "clock=1")
    with mistaken(MUTANT):
        failed = json.loads(gapless("--seeds", "10", "--workers", "1", "--json", *others).out)
    first = failed["failures"][0]
    assert first["replay"] == f"gapless simulate --seed {first['seed']} {' '.join(others)}"


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_has_a_rate_of_its_own(gapless: Gapless, fault: str) -> None:
    argv = ("--profile", "calm", "--fault", f"{fault}=6")
    told = json.loads(gapless("--seeds", "2", "--workers", "1", "--json", *argv).out)
    assert not told["failures"]
    assert told["faults"].keys() <= {fault}


def test_ctrl_c_ends_it_with_what_it_has() -> None:
    command = [sys.executable, "-m", "gapless", "simulate", "--seeds", "100000", "--workers", "2", *QUICK]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        first = process.stderr.readline()
        assert "of 100,000 seeds: " in first
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.splitlines()[-1].startswith("interrupted after ")
    assert out.splitlines()[-1].startswith("every promise was kept: ")
