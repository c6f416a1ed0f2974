"""What Spark says of a statement, in one line.

try:
    with unsaid():
        rows = spark.sql(statement)
except PySparkException as error:
    problem = problem_of(error)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.errors import PySparkException

# [ERROR_CLASS] what is wrong. SQLSTATE: 42703; line 2 pos 7; and then the plan.
_ERROR_CLASS = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_STATE = re.compile(r"\s*SQLSTATE: \w+")
_PLACE = re.compile(r"[;(]?\s*\(?line (\d+),? pos \d+\)?;?")
_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j.clientserver")


class Problem(NamedTuple):
    """What is wrong, and in which line of the statement."""

    words: str
    line: int


def problem_of(error: PySparkException) -> Problem:
    """Spark's words, without error classes and plans."""
    text = str(error)
    place = _PLACE.search(text)
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    words = _PLACE.sub("", _STATE.sub("", _ERROR_CLASS.sub("", first.strip())))
    return Problem(words.strip().rstrip(".;"), int(place[1]) if place is not None else 1)


@contextmanager
def unsaid() -> Iterator[None]:
    """PySpark logs the errors that it raises, a page each. Not those that are told to the user anyway."""
    from pyspark.logger import PySparkLogger

    loggers = [PySparkLogger.getLogger(name) for name in _LOGGERS]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was
