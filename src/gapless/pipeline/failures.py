"""What went wrong in Spark, in one line.

An error of ours comes back from a task or a batch wrapped in tracebacks of two languages; the line that was
meant for the user is found in them. Of other errors the innermost cause is told.
"""

from __future__ import annotations

import re

from gapless import errors
from gapless.errors import ExitCode, GaplessError

# The last line of a Python traceback, for an exception that one of our modules defines.
_OURS = re.compile(r"^(?:\s*)gapless\.(?:\w+\.)*(\w+): (.+)$", re.MULTILINE)
_CAUSED_BY = re.compile(r"^\s*Caused by: (?:[\w$]+\.)*([\w$]+): (.+)$", re.MULTILINE)
_RAISED_IN_SQL = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?) SQLSTATE: P0001")
_LAST_OF_PYTHON = re.compile(r"^(?:[\w]+\.)*(\w+(?:Error|Exception)): (.+)$", re.MULTILINE)


class PipelineFailed(GaplessError):
    """The pipeline stopped. What was written stays, and it goes on there when it is started again."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def explain(error: BaseException) -> GaplessError:
    """The error as one line for the user. An error of ours stays what it is."""
    if isinstance(error, GaplessError):
        return error
    text = str(error)
    if ours := _OURS.findall(text):
        name, message = ours[-1]
        known = getattr(errors, name, None)
        code = (
            known.exit_code
            if isinstance(known, type) and issubclass(known, GaplessError)
            else ExitCode.FAILED
        )
        return PipelineFailed(message, code)
    if raised := _RAISED_IN_SQL.findall(text):
        return PipelineFailed(raised[-1])
    for pattern in (_LAST_OF_PYTHON, _CAUSED_BY):
        if found := pattern.findall(text):
            name, message = found[-1]
            return PipelineFailed(f"Spark stopped the pipeline: {name}: {message}")
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return PipelineFailed(f"Spark stopped the pipeline: {first}")
