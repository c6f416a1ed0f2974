"""What tests/conftest.py promises for all tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


def run_pytest(folder: Path, *options: str) -> str:
    """What pytest says about the tests of a folder, with our hooks and in the order of their names."""
    (folder / "conftest.py").write_text(
        'from tests.conftest import pytest_runtest_protocol\npytest_plugins = ["tests.services"]\n'
    )
    (folder / "pytest.ini").write_text(
        f"[pytest]\npythonpath = {Path(__file__).parents[1]}\nfilterwarnings = error\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider", *options, "."]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=100)
    return ended.stdout


def test_what_a_failed_test_left_open_is_not_another_tests_failure(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(LEAVES_A_SOCKET_OPEN)
    assert "1 failed, 1 passed" in run_pytest(tmp_path)


def test_files_with_long_tests_come_first(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_quick(): ...\n")
    (tmp_path / "test_b.py").write_text(TAKES_LONG)
    collected = run_pytest(tmp_path, "--collect-only", "-q").splitlines()[:3]
    assert collected == ["test_b.py::test_short", "test_b.py::test_long", "test_a.py::test_quick"]
