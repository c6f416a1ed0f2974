"""The `gapless` command: one file per command, each imported only when it is asked for.

A command's module offers one of two things, and `registry.py` lists it by name:

    app: typer.Typer                made with `group.new_app()`; a command's function may return its exit code
    main(argv: list[str]) -> int    for commands that must start at once: no typer or rich (parsing with typer
                                    costs 150 ms, a third of what `gapless up` has until it must serve)

Either may raise `GaplessError`: its one line goes to stderr, its exit code to the caller (`gapless.errors`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from gapless.cli.registry import COMMANDS
from gapless.errors import ExitCode, GaplessError


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code."""
    sys.exit(run(list(sys.argv[1:] if argv is None else argv)))


def run(argv: list[str]) -> int:
    """Run one command; every way in which it can end becomes an exit code here, and nowhere else."""
    try:
        code = _dispatch(argv)
        sys.stdout.flush()
    except GaplessError as error:
        print(f"gapless: {error}", file=sys.stderr)  # noqa: T201
        return int(error.exit_code)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has had enough (`gapless consume t | head`): that is no failure of ours.
        # What is still buffered must not be written at exit, or Python complains about the closed pipe there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.OK)
    return code


def _dispatch(argv: list[str]) -> int:
    if argv and argv[0] in COMMANDS and COMMANDS[argv[0]].starts_at_once:
        return int(import_module(COMMANDS[argv[0]].module).main(argv[1:]))
    from gapless.cli.group import run_commands

    return run_commands(argv)
