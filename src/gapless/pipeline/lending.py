"""A Spark session for as long as a command needs one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from gapless.pipeline.session import require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gapless.pipeline.definition import Definition


def session_during(definition: Definition) -> AbstractContextManager[SparkSession]:
    """A session as a definition wants it."""
    from gapless.pipeline.run import session_for

    return lent(lambda: session_for(definition))


@contextmanager
def lent(start: Callable[[], SparkSession]) -> Iterator[SparkSession]:
    """The session of this process, if it has one; else one that is stopped at the end."""
    require_spark()
    from pyspark import SparkContext

    # Not the *active* session: that is a matter of the thread that asks.
    running = SparkContext._active_spark_context is not None
    spark = start()
    try:
        yield spark
    finally:
        if not running:
            spark.stop()
