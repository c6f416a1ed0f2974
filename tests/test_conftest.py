"""What tests/conftest.py promises for all tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
from tests.conftest import pytest_runtest_protocol

pytest_plugins = ["tests.services"]
"""
LEAVES_A_SOCKET_OPEN = """
import gc, socket

class Cycle:
    def __init__(self):
        self.itself, self.socket = self, socket.socket()

def test_fails():
    left = Cycle()
    assert not left

def test_stands_by():
    gc.collect()
"""
TAKES_LONG = """
import pytest

def test_short(): ...

@pytest.mark.timeout(400)
def test_long(): ...
"""


NEEDS_SERVICES = """
import pytest
from tests import services

services.SERVICES["kcat"] = services.SERVICES["kcat"]._replace(why_missing=lambda: "kcat is not here")

@pytest.mark.kcat
def test_by_mark(): ...

@pytest.fixture
def redis(): ...

def test_by_fixture(redis): ...

@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_by_parameter(store): ...
"""
HAS_SLOW_VARIANTS = """
import pytest

@pytest.fixture(params=["embedded", "apache"])
def cluster(request): ...

@pytest.mark.slow_variants("apache", 3)
@pytest.mark.parametrize("number", [2, 3])
def test_variants(cluster, number): ...
"""
SHARES = """
import os, pytest

@pytest.fixture
def redis_server(): ...

@pytest.mark.parametrize("number", range(5))
def test_in_one_process(redis_server, number, testrun_uid):
    with open("processes", "a") as file:
        file.write(f"{os.getpid()}\\n")
"""


def run_pytest(folder: Path, *options: str, conftest: str = CONFTEST, **environment: str) -> str:
    """Return what pytest prints about the tests of a folder, with our hooks and in a fixed order."""
    (folder / "conftest.py").write_text(conftest)
    (folder / "pytest.ini").write_text(
        f"[pytest]\npythonpath = {Path(__file__).parents[1]}\nfilterwarnings = error\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider", *options, "."]
    env = {**os.environ, "CI": "false", **environment}
    ended = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=100
    )
    return ended.stdout


def test_what_a_failed_test_left_open_is_not_another_tests_failure(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(LEAVES_A_SOCKET_OPEN)
    assert "1 failed, 1 passed" in run_pytest(tmp_path)


def test_tests_of_a_server_come_first_and_files_with_long_tests_next(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_quick(): ...\n")
    (tmp_path / "test_b.py").write_text(TAKES_LONG)
    (tmp_path / "test_c.py").write_text(NEEDS_SERVICES)
    collected = run_pytest(tmp_path, "--collect-only", "-q").splitlines()[:5]
    assert collected == [
        "test_c.py::test_by_parameter[postgres]",
        "test_c.py::test_by_fixture",
        "test_b.py::test_short",
        "test_b.py::test_long",
        "test_a.py::test_quick",
    ]


@pytest.mark.parametrize(("ci", "outcome"), [("false", "skipped"), ("true", "error")])
def test_a_missing_service_skips_a_test_and_is_an_error_in_ci(tmp_path: Path, ci: str, outcome: str) -> None:
    (tmp_path / "test_it.py").write_text(NEEDS_SERVICES)
    printed = run_pytest(tmp_path, "-ra", "-k", "by_mark", CI=ci)
    assert f"1 {outcome}" in printed
    assert "kcat is not here" in printed


def test_servers_are_selected_however_a_test_names_them(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(NEEDS_SERVICES)
    collected = run_pytest(tmp_path, "--collect-only", "-q", "-m", "server").splitlines()
    assert collected[:2] == ["test_it.py::test_by_parameter[postgres]", "test_it.py::test_by_fixture"]
    assert "2/4 tests collected" in collected[-1]


def test_the_variants_that_a_test_names_are_slow(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(HAS_SLOW_VARIANTS)
    collected = run_pytest(tmp_path, "--collect-only", "-q", "-m", "not slow").splitlines()
    assert collected[0] == "test_it.py::test_variants[embedded-2]"
    assert "1/4 tests collected" in collected[-1]


def test_all_tests_of_a_server_run_in_one_process(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"test_{name}.py").write_text(SHARES)
    assert "15 passed" in run_pytest(tmp_path, "-n", "3", "--dist", "loadgroup")
    assert len(set((tmp_path / "processes").read_text().split())) == 1


def run_own_tests(*options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in this repository."""
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider", *options]
    root = Path(__file__).parents[1]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=100)


def test_an_unknown_peer_is_an_error_before_any_test_runs() -> None:
    ended = run_own_tests("--peer", "moon", "tests")
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert "no peer named 'moon': choose embedded, cluster, apache or HOST:PORT" in ended.stderr


def test_another_peer_does_not_repeat_tests_that_start_their_own_broker() -> None:
    folder = "tests/compat/"
    crash, sequences = f"{folder}test_transactions_crash.py", f"{folder}test_sequences.py"
    ended = run_own_tests("--peer", "cluster", "--collect-only", "-q", crash, sequences)
    assert sequences in ended.stdout
    assert crash not in ended.stdout
    assert "deselected" in ended.stdout
