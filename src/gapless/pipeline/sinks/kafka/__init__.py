"""Kafka as an exactly-once sink: a transaction for each task, with its marker inside."""

from __future__ import annotations

from gapless.pipeline.sinks.kafka.function import exactly_once_to_kafka
from gapless.pipeline.sinks.kafka.sink import KafkaSink

__all__ = ["KafkaSink", "exactly_once_to_kafka"]
