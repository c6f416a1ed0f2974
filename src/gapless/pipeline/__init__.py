"""PySpark: from a topic to a table, against any Kafka."""

from __future__ import annotations

from gapless.pipeline.session import SparkMissing, require_spark, spark_session
from gapless.pipeline.table import read_table, read_topic, topic_to_table

__all__ = ["SparkMissing", "read_table", "read_topic", "require_spark", "spark_session", "topic_to_table"]
