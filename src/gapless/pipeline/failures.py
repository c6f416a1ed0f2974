"""What went wrong in Spark, in one line.

An error of ours comes back from a task or a batch wrapped in tracebacks of two languages; the line that was
meant for the user is found in them. Some others are told in our words, with what to do. Of the rest the
innermost cause is told.
"""

from __future__ import annotations

import errno
import json
import re
from typing import Any

from gapless import errors
from gapless.errors import ExitCode, GaplessError

# The last line of a Python traceback, for an exception that one of our modules defines.
_OURS = re.compile(r"^(?:\s*)gapless\.(?:\w+\.)*(\w+): (.+)$", re.MULTILINE)
_RAISED_IN_SQL = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?) SQLSTATE: P0001")
_TRACEBACK = "Traceback (most recent call last):"
_LAST_OF_PYTHON = re.compile(r"^(?:\w+\.)*([A-Z]\w*): (.+)$", re.MULTILINE)
_CAUSED_BY = re.compile(r"^\s*Caused by: (?:[\w$]+\.)*([\w$]+): (.+)$", re.MULTILINE)
_JAVA = re.compile(r"^:? ?(?:[\w$]+\.)+([\w$]+): (.+)$", re.MULTILINE)
_ERROR_CLASS = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_ENDED = re.compile(r"^Query \[.*?\] terminated with exception: ")
_STATE = re.compile(r"\s*SQLSTATE: \w+.*$")
_WRAPPERS = {"SparkException", "Py4JJavaError", "StreamingQueryException", "PythonException"}

# What Spark's words mean for a pipeline: the first that is found in them counts.
_KNOWN = {
    "OutOfMemoryError": "Spark ran out of memory: give it more (spark.driver.memory or spark.executor.memory "
    "in [spark]), or let batches be smaller (max_records_per_batch in [source])",
    "No space left on device": "a disk is full (the checkpoint's, the sink's, or that of spark.local.dir): "
    "make room, and start the pipeline again",
    "CONCURRENT_STREAM_LOG_UPDATE": "another process runs with the same checkpoint, and only one can",
    "Cannot start query with name": "this process runs a pipeline of the same name already: stop that first",
    "CONCURRENT_QUERY": "this process runs a pipeline with the same checkpoint already: stop that first",
}


class PipelineFailed(GaplessError):
    """The pipeline stopped. What was written stays, and it goes on there when it is started again."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def explain(error: BaseException) -> GaplessError:
    """The error as one line for the user. An error of ours stays what it is."""
    if isinstance(error, GaplessError):
        return error
    if isinstance(error, OSError) and error.strerror:
        return _of_system(error)
    if isinstance(error, json.JSONDecodeError):
        return PipelineFailed(
            f"a file of the checkpoint, in its folder gapless, is garbled ({error}): bring all of it back"
        )
    text = str(error)
    if ours := _OURS.findall(text):
        name, message = ours[-1]
        kind: Any = getattr(errors, name, GaplessError)
        return PipelineFailed(message, kind.exit_code)
    if raised := _RAISED_IN_SQL.findall(text):
        return PipelineFailed(raised[-1])
    for sign, words in _KNOWN.items():
        if sign in text:
            return PipelineFailed(words)
    return PipelineFailed(f"Spark stopped the pipeline: {cause_of(error)}")


def _of_system(error: OSError) -> GaplessError:
    """Files that the driver itself writes are those of the checkpoint; otherwise it talks to Spark."""
    if isinstance(error, ConnectionError):
        return PipelineFailed(
            "Spark's Java process has gone (killed, or out of memory: spark.driver.memory in [spark]). "
            "Start the pipeline again, and it goes on"
        )
    if error.errno == errno.ENOSPC:
        return PipelineFailed(_KNOWN["No space left on device"])
    where = f" {error.filename}" if error.filename else ""
    return PipelineFailed(f"cannot use the file{where}: {error.strerror}")


def cause_of(error: BaseException) -> str:
    """The innermost cause, in one line."""
    text = str(error)
    # What a task's Python says stands after its traceback; before it stands what Spark makes of that.
    _, traceback, after = text.rpartition(_TRACEBACK)
    if traceback and (found := _LAST_OF_PYTHON.findall(after)):
        return _joined(*found[0])
    if found := _CAUSED_BY.findall(text) or _JAVA.findall(text)[:1]:
        return _joined(*found[-1])
    return _plain(next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__))


def _joined(name: str, message: str) -> str:
    return _plain(message) if name in _WRAPPERS or name.startswith("Spark") else f"{name}: {_plain(message)}"


def _plain(message: str) -> str:
    """Without Spark's classes of errors, and ids of queries."""
    words = _ERROR_CLASS.sub("", _ENDED.sub("", _ERROR_CLASS.sub("", message.strip())))
    return _STATE.sub("", words) or message
