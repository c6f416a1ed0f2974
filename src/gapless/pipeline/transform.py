"""What becomes of a batch: a SQL query over the view `records`, a Python function, or nothing.

    Transform(definition).apply(rows)

Made on the driver when the pipeline starts, so that a missing file or a function that does not exist is told
before anything runs. Whatever is wrong is a `WrongTransform` that points at the definition's line, at the SQL
file's, or at the user's own code.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gapless.errors import UsageError
from gapless.pipeline.complaints import Problem, problem_of, unsaid
from gapless.pipeline.definition import Definition
from gapless.pipeline.functions import WrongFunction, load_function, raised_at

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame

VIEW = "records"


class WrongTransform(UsageError):
    """The transform cannot be applied. The message says where and why."""


class Transform:
    """Applies what the definition says. `version` changes whenever it may give something else."""

    def __init__(self, definition: Definition) -> None:
        settings = definition.transform
        self._definition = definition
        self._sql: str | None = settings.sql
        self._function: Callable[[DataFrame], DataFrame] | None = None
        self.version = ""
        if settings.file is not None:
            self._sql = _text_of(settings.file, definition)
        if self._sql is not None:
            # Spark's parser of queries does not know the end of a statement.
            self._sql = self._sql.rstrip().rstrip(";")
            self.version = hashlib.sha256(self._sql.encode()).hexdigest()[:16]
        if settings.function is not None:
            try:
                self._function, self.version = load_function(settings.function, definition.folder)
            except WrongFunction as wrong:
                raise WrongTransform(f"{definition.at('transform', 'function')}: {wrong}") from None

    @property
    def is_given(self) -> bool:
        """Whether there is one at all: else rows come as they are."""
        return self._sql is not None or self._function is not None

    def apply(self, rows: DataFrame) -> DataFrame:
        """The batch transformed. Runs nothing: the result is a plan."""
        if self._sql is not None:
            return self._query(rows, self._sql)
        if self._function is not None:
            return self._call(rows, self._function)
        return rows

    def _query(self, rows: DataFrame, sql: str) -> DataFrame:
        from pyspark.errors import PySparkException

        # The session of a batch is its query's own, and so is the view.
        spark = rows.sparkSession
        rows.createOrReplaceTempView(VIEW)
        try:
            with unsaid():
                spark._jsparkSession.sessionState().sqlParser().parseQuery(sql)
        except PySparkException as error:
            raise self._wrong_sql(_not_a_query(sql, error)) from None
        try:
            with unsaid():
                return spark.sql(sql)
        except PySparkException as error:
            raise self._wrong_sql(problem_of(error)) from None

    def _wrong_sql(self, problem: Problem) -> WrongTransform:
        file = self._definition.transform.file
        if file is not None:
            return WrongTransform(f"{file}:{problem.line}: {problem.words}")
        return WrongTransform(
            f"{self._definition.at_text('transform', 'sql', line=problem.line)}: {problem.words}"
        )

    def _call(self, rows: DataFrame, function: Callable[[DataFrame], DataFrame]) -> DataFrame:
        from pyspark.errors import PySparkException
        from pyspark.sql import DataFrame

        name = self._definition.transform.function
        where = self._definition.at("transform", "function")
        try:
            with unsaid():
                result = function(rows)
        except PySparkException as error:
            place = raised_at(error, self._definition.folder)
            raise WrongTransform(f"{where}: {name} failed{place}: {problem_of(error).words}") from error
        except Exception as error:
            place = raised_at(error, self._definition.folder)
            raise WrongTransform(
                f"{where}: {name} raised {type(error).__name__}{place}: {_first_line(error)}"
            ) from error
        if not isinstance(result, DataFrame):
            raise WrongTransform(f"{where}: {name} must return a DataFrame, not {type(result).__name__}")
        if result.isStreaming:
            raise WrongTransform(f"{where}: {name} must return the rows of its batch, not a stream")
        return result


def _not_a_query(sql: str, error: PySparkException) -> Problem:
    problem = problem_of(error)
    word = re.match(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*([A-Za-z]+)", sql, re.DOTALL)
    if word is not None and word[1].upper() not in {
        "SELECT",
        "WITH",
        "FROM",
        "VALUES",
        "TABLE",
        "MAP",
        "REDUCE",
    }:
        return Problem(f"the transform must be a query (SELECT ... FROM {VIEW}), not {word[1].upper()}", 1)
    return problem


def _text_of(file: str, definition: Definition) -> str:
    where = definition.at("transform", "file")
    try:
        text = Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise WrongTransform(f"{where}: cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise WrongTransform(f"{where}: cannot read {file}: it is not UTF-8 text") from None
    if not text.strip():
        raise WrongTransform(f"{where}: {file} is empty")
    return text


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
