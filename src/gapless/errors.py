"""Errors that are meant for a person, and the exit codes of every `gapless` command.

A `GaplessError` carries one line that says what is wrong and what to do. The command line prints it on stderr
and exits with the error's code; it never shows a traceback for one. Anything else that escapes is a bug
and keeps its traceback.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a script may rely on. The numbers never change."""

    OK = 0
    FAILED = 1  # the operation failed, or a check found something
    USAGE = 2  # wrong options, arguments or configuration: nothing was attempted
    UNREACHABLE = 3  # the cluster, or a service that the command needs, does not answer
    INTERRUPTED = 130  # Ctrl-C


class GaplessError(Exception):
    """One clear line for the user; the operation failed."""

    exit_code: ExitCode = ExitCode.FAILED


class UsageError(GaplessError):
    """The user asked for something that cannot be: a bad option, value or configuration file."""

    exit_code = ExitCode.USAGE


class Unreachable(GaplessError):
    """The cluster or service does not answer, or refuses our credentials."""

    exit_code = ExitCode.UNREACHABLE


class InvariantViolated(Exception):
    """Gapless contradicts itself: a bug, which keeps its traceback."""
