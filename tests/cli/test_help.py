"""Every command explains itself, with an example, and the README knows it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gapless import __version__
from gapless.cli.registry import COMMANDS

from .conftest import Gapless

ROOT = Path(__file__).resolve().parents[2]
TOPICS = ("create", "list", "describe", "alter", "delete")
GROUPS = ("list", "describe", "reset", "delete")
SPOOL = ("status", "verify", "drain", "recover")
PIPELINE = ("new", "check", "run", "markers", "clean")
ALL_COMMANDS = [
    *COMMANDS,
    *(f"topics {name}" for name in TOPICS),
    *(f"groups {name}" for name in GROUPS),
    *(f"spool {name}" for name in SPOOL),
    *(f"pipeline {name}" for name in PIPELINE),
]


@pytest.mark.parametrize("command", [command for command in ALL_COMMANDS if command != "up"])
def test_help_of_every_command_has_an_example(command: str, run_gapless: Gapless) -> None:
    ran = run_gapless(*command.split(), "--help")
    assert ran.code == 0
    assert ran.out.startswith("Usage: gapless ")
    after = ran.out.partition("Examples:")[2]
    assert f"gapless {command}" in after


def test_help_of_the_broker_has_an_example_and_loads_neither_typer_nor_a_client() -> None:
    probe = (
        "import sys, atexit\n"
        "slow = {'typer', 'rich', 'confluent_kafka'}\n"
        "atexit.register(lambda: print('LOADED', slow & sys.modules.keys()))\n"
        "from gapless.cli import main\n"
        "main(['up', '--help'])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0
    assert "examples:\n  gapless up" in ran.stdout
    assert "LOADED set()" in ran.stdout


@pytest.mark.parametrize("command", ALL_COMMANDS)
def test_the_readme_mentions_every_command(command: str) -> None:
    group, _, name = command.rpartition(" ")
    mention = rf"gapless {group}\b[^\n]*\b{name}\b" if group else rf"gapless {name}\b"
    assert re.search(mention, (ROOT / "README.md").read_text())


def test_the_list_of_commands_names_all_of_them(run_gapless: Gapless) -> None:
    ran = run_gapless()
    assert ran.code == 0
    for name, command in COMMANDS.items():
        assert f"  {name} " in ran.out
        assert command.summary in " ".join(ran.out.split())


def test_the_version_is_shown(run_gapless: Gapless) -> None:
    assert run_gapless("--version").out == f"gapless {__version__}\n"


def test_every_module_of_a_command_is_in_the_registry() -> None:
    folder = ROOT / "src" / "gapless" / "cli"
    offering = {
        path.stem if path.name != "__init__.py" else path.parent.name
        for path in [*folder.glob("*.py"), *folder.glob("*/__init__.py")]
        if "\napp = new_app(" in path.read_text() or "\ndef main(argv: list[str]) -> int" in path.read_text()
    }
    assert offering - {"group"} == set(COMMANDS)
