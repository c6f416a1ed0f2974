"""PySpark: from topics into topics and tables, each record once, against any Kafka.

    from gapless.pipeline import Definition, Pipeline

    Pipeline(Definition.load("orders.toml")).run(once=True)

In a `foreachBatch` of your own, `exactly_once_to_kafka` is the Kafka sink alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gapless.pipeline.definition import Definition
    from gapless.pipeline.run import Pipeline
    from gapless.pipeline.sections import (
        Dedup,
        KafkaProperties,
        Source,
        SparkSettings,
        ToDelta,
        ToKafka,
        ToParquet,
        ToPostgres,
        TransformSettings,
        Trigger,
    )
    from gapless.pipeline.session import SparkMissing, require_spark, spark_session
    from gapless.pipeline.sinks.kafka import exactly_once_to_kafka
    from gapless.pipeline.table import read_table, read_topic, topic_to_table

__all__ = [
    "Dedup",
    "Definition",
    "KafkaProperties",
    "Pipeline",
    "Source",
    "SparkMissing",
    "SparkSettings",
    "ToDelta",
    "ToKafka",
    "ToParquet",
    "ToPostgres",
    "TransformSettings",
    "Trigger",
    "exactly_once_to_kafka",
    "read_table",
    "read_topic",
    "require_spark",
    "spark_session",
    "topic_to_table",
]

_HOMES = {
    "Dedup": "sections",
    "KafkaProperties": "sections",
    "Source": "sections",
    "SparkSettings": "sections",
    "ToDelta": "sections",
    "ToKafka": "sections",
    "ToParquet": "sections",
    "ToPostgres": "sections",
    "TransformSettings": "sections",
    "Trigger": "sections",
    "Definition": "definition",
    "Pipeline": "run",
    "SparkMissing": "session",
    "exactly_once_to_kafka": "sinks.kafka",
    "read_table": "table",
    "read_topic": "table",
    "require_spark": "session",
    "spark_session": "session",
    "topic_to_table": "table",
}


def __getattr__(name: str) -> Any:
    """Each is imported when it is asked for: workers of Spark need little of it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
