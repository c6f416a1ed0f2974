"""Batches of a topic, by hand: Spark's Kafka source between two offsets, as a micro-batch would read it.

That takes a session from `session_for_batches`: otherwise Spark reads a topic in a batch by an older way,
which streams do not take and in which nobody can see the offsets of tasks.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Offsets = Mapping[int, tuple[int, int]]


_numbers = itertools.count()


def filled_topic(bootstrap: str, *, partitions: int = 2, records: int = 10) -> str:
    """A new topic with so many records in each partition. Their values are "partition.offset"."""
    name = f"batches-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result()
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for partition, offset in itertools.product(range(partitions), range(records)):
        producer.produce(name, f"{partition}.{offset}", partition=partition)
    assert producer.flush(30) == 0
    return name


def values(offsets: Offsets) -> list[str]:
    """What a topic from `filled_topic` has there, sorted."""
    return sorted(f"{partition}.{offset}" for partition, ends in offsets.items() for offset in range(*ends))


def session_for_batches(spark: SparkSession) -> SparkSession:
    """A session with settings of its own."""
    session = spark.newSession()
    session.conf.set("spark.sql.sources.useV1SourceList", "")
    session.conf.set("spark.sql.adaptive.enabled", "false")
    return session


def read_offsets(
    spark: SparkSession, bootstrap: str, topic: str, offsets: Offsets, **options: str
) -> DataFrame:
    """The records of these partitions from the first offset to before the second, values as text."""
    records = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("assign", json.dumps({topic: list(offsets)}))
        .option("startingOffsets", json.dumps({topic: {p: start for p, (start, _) in offsets.items()}}))
        .option("endingOffsets", json.dumps({topic: {p: end for p, (_, end) in offsets.items()}}))
        .option("kafka.group.id", "tests")  # consumers are kept by group: the same one spares half a second
        .options(**options)
        .load()
    )
    return records.selectExpr("topic", "partition", "offset", "CAST(value AS STRING) AS value")
