"""What the tests of the Kafka sink share: topics, numbered records, batches made by hand, comparing."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from gapless.client.records import Record
from gapless.pipeline.folder import CheckpointFolder
from gapless.pipeline.sinks.kafka import KafkaSink
from gapless.pipeline.sinks.port import Batch, SinkContext
from tests.client.conftest import read_all, wait_for
from tests.pipeline.kafka_batches import Offsets, read_offsets, session_for_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Case", "committed_values", "context", "fill", "new_topic", "read_all", "wait_for"]
PATIENCE_S = 30.0
_numbers = itertools.count()


def context(name: str) -> SinkContext:
    """Return what a sink knows of its pipeline. It uses names and the id only, so no Spark is needed."""
    folder = SimpleNamespace(id=f"id of {name}")
    return SinkContext(name, "out", cast("Any", folder), cast("Any", None))


def new_topic(bootstrap: str, partitions: int = 2, replicas: int = 1) -> str:
    name = f"sink-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(name, partitions, replicas)])[name].result(PATIENCE_S)
    wait_for(
        lambda: len(admin.list_topics(name, timeout=PATIENCE_S).topics[name].partitions) == partitions,
        f"{name} is known to the broker",
    )
    return name


def fill(bootstrap: str, topic: str, numbers: range, partitions: int = 2, padding: int = 0) -> None:
    """Number n goes to partition n % partitions, so that offsets are known: n // partitions."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    for number in numbers:
        value = str(number).encode().rjust(padding, b"0")
        producer.produce(topic, value, key=b"k%d" % (number % 7), partition=number % partitions)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0


def committed_values(bootstrap: str, topic: str) -> list[int]:
    """The numbers of all committed records, sorted: two of one kind are seen, and missing ones are."""
    return sorted(int(record.value or b"-1") for record in read_all(bootstrap, topic))


def twice(values: list[int]) -> list[int]:
    return [value for value, count in Counter(values).items() if count > 1]


class Case:
    """A pipeline from a topic with two partitions into another topic, batch by batch, by hand."""

    def __init__(
        self,
        spark: SparkSession,
        source: str,
        output: str,
        folder: Path,
        *,
        records: int = 0,
        padding: int = 0,
        replicas: int = 1,
        **settings: Any,
    ) -> None:
        self.spark = session_for_batches(spark)
        self.source = source
        self.output = output
        self.input_topic = new_topic(source)
        self.topic = new_topic(output, 3, replicas)
        self.name = f"case-{next(_numbers)}"
        self.checkpoint = folder / "checkpoint"
        self.context = SinkContext(self.name, "out", CheckpointFolder(spark, self.checkpoint), spark)
        self.settings = settings
        fill(source, self.input_topic, range(records), padding=padding)
        self.sink = self.opened()

    def opened(self, kind: type[KafkaSink] = KafkaSink, **settings: Any) -> KafkaSink:
        sink = kind(self.output, self.topic, **{**self.settings, **settings})
        sink.open(self.context)
        return sink

    def rows(self, ranges: Offsets) -> DataFrame:
        """The records of these offsets, each partition by one task."""
        rows = read_offsets(self.spark, self.source, self.input_topic, ranges)
        return rows.selectExpr("CAST(offset % 7 AS STRING) AS key", "value")

    def batch(self, number: int, start: int, end: int) -> Batch:
        """Offsets from `start` to `end` of both partitions."""
        return Batch(number, self.rows({0: (start, end), 1: (start, end)}))

    def written(self) -> list[int]:
        return committed_values(self.output, self.topic)

    def records(self) -> list[Record]:
        return read_all(self.output, self.topic)
