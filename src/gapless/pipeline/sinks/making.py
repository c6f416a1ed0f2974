"""Sinks from their settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.errors import InvariantViolated
from gapless.pipeline.properties import client_properties
from gapless.pipeline.sections import ToDelta, ToKafka, ToParquet, ToPostgres

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from gapless.pipeline.definition import Definition
    from gapless.pipeline.sections import SinkSettings
    from gapless.pipeline.sinks.port import Sink


_OF_A_RECORD = ("key", "value", "headers")


def fit(rows: DataFrame, settings: SinkSettings, *, transformed: bool) -> DataFrame:
    """The rows as a sink can take them: where no transform has chosen columns, a topic takes a record's own.

    `topic` and `partition` would say where the record goes, and not where it came from. Its time would be an
    old one, by which retention might delete it at once.
    """
    if transformed or not isinstance(settings, ToKafka):
        return rows
    return rows.select(*_OF_A_RECORD)


def make_sink(definition: Definition, settings: SinkSettings) -> Sink:
    """Each kind is imported when it is asked for: its driver need not be installed otherwise."""
    match settings:
        case ToKafka():
            from gapless.pipeline.sinks.kafka import KafkaSink

            return KafkaSink(
                definition.bootstrap_of(settings),
                settings.topic,
                tasks=settings.tasks,
                transaction_timeout_ms=settings.transaction_timeout_ms,
                properties=_properties(definition, settings),
            )
        case ToDelta():
            from gapless.pipeline.sinks.delta import DeltaSink

            return DeltaSink(settings.path, key=settings.key, latest_by=settings.latest_by)
        case ToPostgres():
            from gapless.pipeline.sinks.postgres import PostgresSink

            return PostgresSink(
                settings.url,
                settings.table,
                key=settings.key,
                latest_by=settings.latest_by,
                tasks=settings.tasks,
                create=settings.create,
            )
        case ToParquet():
            from gapless.pipeline.sinks.parquet import ParquetSink

            return ParquetSink(settings.path, partition_by=settings.partition_by)
    raise InvariantViolated(f"no sink for {settings}")


def _properties(definition: Definition, sink: ToKafka) -> dict[str, str]:
    properties = client_properties(definition.kafka_of(sink)).for_librdkafka(definition.bootstrap_of(sink))
    properties.pop("bootstrap.servers", None)
    return properties
