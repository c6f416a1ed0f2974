"""A test that fails, fails alone."""

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


def test_what_a_failed_test_left_open_is_not_another_tests_failure(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(LEAVES_A_SOCKET_OPEN)
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_runtest_protocol\n")
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\npythonpath = {Path(__file__).parents[1]}\nfilterwarnings = error\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider", "."]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100)
    assert "1 failed, 1 passed" in ended.stdout
