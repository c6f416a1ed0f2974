"""What Spark raises, in one line: somebody's SQL that cannot be, or what cannot be read any more.

with spark_errors("orders at there:9092"), mistakes("cannot compare orders by nosuch"):
    rows = records.selectExpr("nosuch").collect()
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from gapless.errors import Unreachable, UsageError
from gapless.pipeline.complaints import unsaid
from gapless.pipeline.failures import cause_of

# States of data exceptions, and of syntax errors and access rule violations: what casts and names lead to.
# Kafka's loss of data has the first number of the former, and is nobody's mistake.
_MISTAKEN = re.compile(r"SQLSTATE: (?!22000)(?:22|42)")
_DATABASE_IS_AWAY = "FAILED_JDBC"


@contextmanager
def spark_errors(what: str) -> Iterator[None]:
    """What was there a moment ago, and cannot be read: brokers that died, a database's driver in Java."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    with unsaid():
        try:
            yield
        except (PySparkException, Py4JError) as error:
            raise Unreachable(f"cannot read {what}: {cause_of(error)}") from None


@contextmanager
def mistakes(what: str) -> Iterator[None]:
    """What nobody who asks for it will ever get: names that are not there, values that cannot be cast."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    with unsaid():
        try:
            yield
        except (PySparkException, Py4JError) as error:
            if not _is_mistake(error):
                raise
            raise UsageError(f"{what}: {cause_of(error)}") from None


def _is_mistake(error: Exception) -> bool:
    """Whether it is of what was asked for, and not of what was asked."""
    from pyspark.errors import AnalysisException, IllegalArgumentException

    if isinstance(error, IllegalArgumentException):
        return True
    if isinstance(error, AnalysisException):
        return not (error.getCondition() or "").startswith(_DATABASE_IS_AWAY)
    return _MISTAKEN.search(str(error)) is not None
