"""A Spark session for as long as a command needs one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gapless.pipeline.session import require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gapless.pipeline.definition import Definition


@contextmanager
def session_during(definition: Definition) -> Iterator[SparkSession]:
    """The session of this process, if it has one; else one that is stopped at the end."""
    require_spark()
    from pyspark import SparkContext

    from gapless.pipeline.run import session_for

    # Not the *active* session: that is a matter of the thread that asks.
    running = SparkContext._active_spark_context is not None
    spark = session_for(definition)
    try:
        yield spark
    finally:
        if not running:
            spark.stop()
