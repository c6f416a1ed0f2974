"""Whatever ends a pipeline is told in one line, which says what to do where we know it (F2)."""

from __future__ import annotations

import errno
import json

import pytest

from gapless.errors import ExitCode, GaplessError, Unreachable
from gapless.pipeline.failures import PipelineFailed, explain

JOB = """An error occurred while calling o88.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, \
most recent failure: Lost task 0.3 in stage 3.0 (TID 7) (127.0.0.1 executor driver): {what}
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:1)
Caused by: {what}
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.divideByZeroError(QueryExecutionErrors.scala:1)
\t... 1 more
"""
IN_PYTHON = """org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/site-packages/pyspark/worker.py", line 1, in main
    process()
{what}

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:1)"""

ENDED = "[STREAM_FAILED] Query [id = 1-2, runId = 3-4] terminated with exception: "


@pytest.mark.parametrize(
    ("text", "message", "code"),
    [
        (
            JOB.format(what=IN_PYTHON.format(what="gapless.errors.Unreachable: no broker at x:1")),
            "no broker at x:1",
            ExitCode.UNREACHABLE,
        ),
        (
            JOB.format(what=IN_PYTHON.format(what="gapless.pipeline.tasks.RowRefused: too large")),
            "too large",
            ExitCode.FAILED,
        ),
        (
            JOB.format(what=IN_PYTHON.format(what="ValueError: no amount")),
            "Spark stopped the pipeline: ValueError: no amount",
            ExitCode.FAILED,
        ),
        (
            JOB.format(what=IN_PYTHON.format(what="shop.prices.Missing: no price\nof 3")),
            "Spark stopped the pipeline: Missing: no price",
            ExitCode.FAILED,
        ),
        (
            JOB.format(
                what="org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero. Use "
                "`try_divide`. SQLSTATE: 22012"
            ),
            "Spark stopped the pipeline: Division by zero. Use `try_divide`.",
            ExitCode.FAILED,
        ),
        (
            JOB.format(
                what="org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION] orders-0, offset 3: "
                "the value is empty SQLSTATE: P0001"
            ),
            "orders-0, offset 3: the value is empty",
            ExitCode.FAILED,
        ),
        (
            JOB.format(what="java.lang.OutOfMemoryError: Java heap space"),
            "Spark ran out of memory: .*max_records_per_batch",
            ExitCode.FAILED,
        ),
        (JOB.format(what="java.io.IOException: No space left on device"), "a disk is full", ExitCode.FAILED),
        (
            ENDED + "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log.",
            "another process runs with the same checkpoint",
            ExitCode.FAILED,
        ),
        (
            ENDED + "[X.Y] It is so. SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: orders",
            "Spark stopped the pipeline: It is so.$",
            ExitCode.FAILED,
        ),
        (
            "An error occurred while calling o1.x.\n: java.net.UnknownHostException: nowhere: no\n\tat x",
            "Spark stopped the pipeline: UnknownHostException: nowhere",
            ExitCode.FAILED,
        ),
        ("", "Spark stopped the pipeline: Exception", ExitCode.FAILED),
    ],
)
def test_what_spark_says_is_one_line(text: str, message: str, code: ExitCode) -> None:
    with pytest.raises(PipelineFailed, match=f"^{message}") as told:
        raise explain(Exception(text))
    assert "\n" not in str(told.value)
    assert told.value.exit_code is code


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/c/gapless/x"), "a disk is full"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "/c/gapless"), "/c/gapless: Not a directory"),
        (PermissionError(errno.EACCES, "Permission denied", "/c/gapless/id"), "/c/gapless/id: Permission"),
        (json.JSONDecodeError("Expecting value", "{", 1), "a file of the checkpoint.* is garbled"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "Java process has gone"),
    ],
)
def test_what_the_system_says_is_told_with_the_file(error: Exception, message: str) -> None:
    with pytest.raises(GaplessError, match=message):
        raise explain(error)


def test_an_error_for_the_user_stays_what_it_is() -> None:
    error = Unreachable("away")
    assert explain(error) is error
