"""The demo: everyday settings lose and double, Gapless does not; and no process is left behind."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from gapless.cli.demo.view import View
from gapless.demo.children import Child, ChildFailed
from gapless.demo.faults import Kind, faults_of
from gapless.demo.scenario import Plan, Progress, Result, Snapshot
from gapless.demo.sides import EVERYDAY, GAPLESS

MARK = "GAPLESS_TEST_MARK"


class StruckByCtrlC(subprocess.Popen[str]):
    """The process is there already, and nobody has heard of it yet."""

    def _execute_child(self, *args: Any) -> None:
        super()._execute_child(*args)  # type: ignore[misc]
        signal.raise_signal(signal.SIGINT)


def test_a_process_that_fails_is_told_with_its_reason(tmp_path: Path) -> None:
    child = Child("consumer", "consuming", {"no": "side"}, tmp_path / "log")
    child.start()
    deadline = time.monotonic() + 30

    def check_until_it_fails() -> None:
        while time.monotonic() < deadline:
            child.check()
            time.sleep(0.01)

    try:
        with pytest.raises(ChildFailed, match=r"the consumer failed: KeyError: 'side'"):
            check_until_it_fails()
    finally:
        child.kill()
    child.check()  # who was killed has not failed


@pytest.mark.usefixtures("ctrl_c_raises")
def test_ctrl_c_in_the_middle_of_a_start_leaves_no_process_that_nobody_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = str(uuid.uuid4())
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setattr(subprocess, "Popen", StruckByCtrlC)
    child = Child("consumer", "consuming", {"no": "side"}, tmp_path / "log")
    with pytest.raises(KeyboardInterrupt):
        child.start()
    child.kill()
    assert marked_processes(mark) == []


@pytest.mark.spark
def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    command = [sys.executable, "-m", "gapless", "demo", "--data", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"gapless: {tmp_path} exists already: name a new folder with --data\n"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_faults_are_those_of_the_seed() -> None:
    assert faults_of(7) == faults_of(7)
    assert len({tuple(each.kind for each in faults_of(seed)) for seed in range(50)}) > 20
    for seed in range(200):
        faults = faults_of(seed)
        assert sorted(each.kind for each in faults) == sorted(Kind)
        moments = [each.at for each in faults]
        assert moments == sorted(moments)
        assert 0 < moments[0] < moments[-1] < 0.9  # the last one has something left to spoil
        cut = next(each for each in faults if each.kind is Kind.KILL_LEADER)
        assert 0 < cut.cut_s < 3  # longer, and the others would elect another leader before it is killed


def report(verdict: str = "clean", promised: int = 1_000) -> dict[str, Any]:
    return {"verdict": verdict, "hops": [{"counts": {"promised": promised}}]}


@pytest.mark.parametrize(
    ("ours", "clean"),
    [
        (report(), True),
        (report("findings"), False),
        (report("could not tell"), False),
        (report(promised=999), False),  # all that was promised is there, but not all that was to be sent
    ],
)
def test_it_is_clean_only_if_every_order_was_carried(
    ours: dict[str, Any], clean: bool, tmp_path: Path
) -> None:
    result = Result(
        Plan(tmp_path, 1, 1_000, 10.0, 2), [], {EVERYDAY: report("findings"), GAPLESS: ours}, {}, 1.0
    )
    assert result.clean is clean


def snapshot(seconds: float, acknowledged: int) -> Snapshot:
    progress = Progress(acknowledged, acknowledged // 2, acknowledged // 4)
    return Snapshot(
        Plan(Path("/demo"), 5, 1_000, 10.0, 2),
        "orders are sent",
        seconds,
        {EVERYDAY: progress, GAPLESS: Progress(17, 0, 0)},
        {1: True, 2: False, 3: True},
        {"everyday-orders": [(1, 3), (None, 0)], "gapless-orders": [(3, 2), (1, 1)]},
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def last_picture(self) -> str:
        """Return the last frame before `Live` erased it, without escape sequences."""
        pictures = re.split(r"(?:\r|\x1b\[1A|\x1b\[2K)+", self.getvalue())
        shown = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", each) for each in pictures]
        return next(each for each in reversed(shown) if each.strip())


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_live_view_shows_brokers_replicas_counts_and_rates(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"COLUMNS": str(width), "LINES": "60", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with View() as view:
        view.look(snapshot(10.0, 400))
        view.look(snapshot(12.0, 800))
    text = terminal.last_picture()
    for expected in ("● 1", "✗ 2", "● 3", "800", "200/s", "400", "100/s", "17", "3 –", "2 1", "seed 5"):
        assert expected in text
    assert "0 of 5 faults" in text
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    # Both columns, and all that they tell, side by side, whatever the width.
    assert re.search(r"everyday settings +Gapless", text)
    assert sum(line.count("/s") for line in lines) == 6
    assert "…" not in text
    assert text.count("of 3") == 2


def test_when_piped_it_says_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    seen = View()
    for step in range(100):
        seen.look(snapshot(step, 10 * step))
    seen.line("SIGKILL for somebody")
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert "orders are sent" in said[0]
    assert said[1].endswith("SIGKILL for somebody")


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
@pytest.mark.timeout(1200)
def test_everyday_settings_lose_and_double_and_gapless_does_not(tmp_path: Path) -> None:
    """F1, F3, with all parts at once, and each fault."""
    mark = str(uuid.uuid4())
    ran = subprocess.run(
        [sys.executable, "-m", "gapless", "demo", "--quick", "--seed", "7", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, MARK: mark, "TMPDIR": str(tmp_path)},
        check=False,
        timeout=1100,  # more than a minute on two idle cores
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    result = json.loads(ran.stdout)
    assert result["clean"] is True
    assert result["seed"] == 7
    assert len(result["faults"]) == len(Kind), result["faults"]
    hops = result["sides"]["gapless"]
    assert len(hops) == 4
    for hop in hops.values():
        assert hop["present"] == 20_000
        assert hop["lost"] == hop["duplicated"] == hop["reordered"] == 0
    to_topic, to_bills, to_table, to_other = result["sides"]["everyday"].values()
    assert to_topic["lost"] > 0  # acks=1, and the leader dies
    assert to_topic["duplicated"] > 0  # acknowledgements that were lost, a producer that was killed
    for sink in (to_bills, to_table, to_other):
        # What is doubled in the topic is so here, and what was done again by consumer and driver, too.
        assert sink["duplicated"] > to_topic["duplicated"]
    for side, page in result["pages"].items():
        assert f"{side}-orders" in Path(page).read_text()
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"everyday.html", "gapless.html"}
    assert gone_soon(mark) == []


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("number", "when"), [(signal.SIGINT, "3 brokers"), (signal.SIGTERM, "SIGKILL for both consumers")]
)
def test_an_interrupted_demo_leaves_nothing_behind(number: signal.Signals, when: str, tmp_path: Path) -> None:
    mark = str(uuid.uuid4())
    environment = {**os.environ, MARK: mark, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-m", "gapless", "demo", "--quick", "--seed", "7"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as demo:
        assert demo.stderr is not None
        while when not in (line := demo.stderr.readline()):
            assert line, "it ended"
        demo.send_signal(number)
        out, err = demo.communicate(timeout=120)
    assert (demo.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert gone_soon(mark) == []
    assert list(tmp_path.glob("gapless-*")) == []
