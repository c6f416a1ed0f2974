"""The page about testing: its example is run as it stands there, in a project of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "testing.md"
PLUGIN = "gapless.testing.pytest_plugin"


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """pytest in somebody else's project, with our plugin whether or not this installation announces it."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_the_example_of_the_page_works_as_it_stands_there(tmp_path: Path) -> None:
    example = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    (tmp_path / "test_orders.py").write_text(example)
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout[-5000:]
    assert "2 passed" in done.stdout


def test_a_failing_test_shows_what_the_brokers_said_and_the_next_finds_a_whole_cluster(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_two.py").write_text(
        "import pytest\n"
        "@pytest.fixture(scope='module')\n"
        "def gapless_cluster_options():\n"
        "    return {'brokers': 2}\n"
        "def test_breaks(gapless_cluster):\n"
        "    gapless_cluster.isolate(1)\n"
        "    gapless_cluster.kill(2)\n"
        "    assert gapless_cluster.running == []\n"
        "def test_goes_on(gapless_cluster):\n"
        "    assert gapless_cluster.running == [1, 2]\n"
    )
    done = run_pytest(tmp_path)
    assert "1 failed, 1 passed" in done.stdout, done.stdout[-5000:]
    assert "what the brokers said" in done.stdout
    assert "--- broker 2, down:\nready: 127.0.0.1:" in done.stdout


def test_who_does_not_ask_for_a_cluster_pays_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text(
        "import sys\n"
        "def test_nothing_is_loaded():\n"
        "    ours = {name for name in sys.modules if name.startswith('gapless')}\n"
        "    assert ours == {'gapless', 'gapless.testing', 'gapless.testing.pytest_plugin'}\n"
    )
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout


def test_the_package_announces_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"gapless": PLUGIN}
    assert hasattr(import_module(PLUGIN), "gapless_cluster")


def test_every_verb_of_the_page_exists() -> None:
    from gapless.testing import Cluster

    verbs = re.findall(r"^\| (.*?) \|", PAGE.read_text(), re.MULTILINE)
    names = {name for cell in verbs for name in re.findall(r"`(\w+)\(", cell)}
    assert len(names) >= 12
    assert all(callable(getattr(Cluster, name, None)) for name in names), names
