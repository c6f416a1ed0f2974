"""Spark's Kafka connector, in batch and in streaming, with the Java client 3.9 that it brings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from .clients import Sending
from .clients.confluent import Confluent
from .conftest import NewTopic
from .sample import AN_HOUR_AGO_MS, CODECS, Record, numbered, numbers, rich

pytestmark = pytest.mark.spark

QUERY_TIMEOUT_S = 60


def batch_of(spark: SparkSession, bootstrap: str, topic: str, **options: str) -> DataFrame:
    reader = (
        spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    )
    return reader.options(includeHeaders="true", **options).load()


def as_records(frame: DataFrame) -> list[Record]:
    rows = (
        frame.orderBy("partition", "offset").withColumn("timestamp_ms", f.unix_millis("timestamp")).collect()
    )
    return [
        Record(
            _bytes(row.value),
            _bytes(row.key),
            _headers(row.headers),
            row.timestamp_ms,
            row.partition,
            row.offset,
        )
        for row in rows
    ]


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def _headers(headers: Any) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((header.key, _bytes(header.value)) for header in headers or ())


def test_a_batch_reads_a_whole_topic_byte_for_byte(
    spark: SparkSession, reader: Confluent, bootstrap: str, new_topic: NewTopic
) -> None:
    """Claim A5: the log is read offline, in every compression, with headers, nulls and times."""
    topic = new_topic(len(CODECS))
    for partition, codec in enumerate(CODECS):
        reader.produce(topic, rich(partition), Sending(codec))
    found = [record._replace(offset=None) for record in as_records(batch_of(spark, bootstrap, topic))]
    assert found == [record for partition in range(len(CODECS)) for record in rich(partition)]


def test_a_batch_reads_between_offsets_and_between_times(
    spark: SparkSession, reader: Confluent, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    reader.produce(topic, numbered(100), Sending(batch_bytes=300))
    by_offset = batch_of(
        spark,
        bootstrap,
        topic,
        startingOffsets=json.dumps({topic: {"0": 10}}),
        endingOffsets=json.dumps({topic: {"0": 20}}),
    )
    assert numbers(as_records(by_offset)) == list(range(10, 20))
    by_time = batch_of(
        spark,
        bootstrap,
        topic,
        startingTimestamp=str(AN_HOUR_AGO_MS + 30_000),
        endingTimestamp=str(AN_HOUR_AGO_MS + 50_000),
    )
    assert numbers(as_records(by_time)) == list(range(30, 50))


def test_a_batch_is_written_and_every_other_client_reads_it(
    spark: SparkSession, reader: Confluent, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    rows = [
        (record.key, record.value, record.partition, list(record.headers) or None)
        for partition in range(2)
        for record in rich(partition)
    ]
    schema = "key binary, value binary, partition int, headers array<struct<key string, value binary>>"
    frame = spark.createDataFrame(rows, schema).coalesce(1)
    writer = frame.write.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    writer.option("kafka.compression.type", "zstd").option("topic", topic).save()
    for partition in range(2):
        sent = [record._replace(timestamp_ms=None) for record in rich(partition)]
        found = reader.read(topic, partition, 0, len(sent))
        assert [record._replace(offset=None, timestamp_ms=None) for record in found] == sent


def test_a_stream_carries_a_topic_to_another_while_it_grows(
    spark: SparkSession, reader: Confluent, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Claims A4, A5: what batch jobs read is read in real time; the order inside a partition is kept."""
    source, target = new_topic(2), new_topic(2)
    reader.produce(source, numbered(100), Sending(idempotent=True))
    kafka = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    stream = kafka.option("subscribe", source).option("startingOffsets", "earliest").load()
    query = (
        stream.select("key", "value", "partition")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        query.processAllAvailable()
        assert reader.bounds(target, 0) == (0, 100)
        reader.produce(source, numbered(100, partition=1), Sending(idempotent=True))
        query.processAllAvailable()
    finally:
        query.stop()
    for partition in range(2):
        assert numbers(reader.read(target, partition, 0, 100)) == list(range(100))


def test_a_stopped_stream_goes_on_where_it_was(
    spark: SparkSession, reader: Confluent, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Claims A7, E5: its offsets are its own, in its checkpoint; the log kept what came meanwhile."""
    topic = new_topic()

    def run_once() -> None:
        kafka = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        stream = kafka.option("subscribe", topic).option("startingOffsets", "earliest").load()
        writer = stream.writeStream.format("parquet").option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        query = writer.trigger(availableNow=True).start(str(tmp_path / "table"))
        assert query.awaitTermination(QUERY_TIMEOUT_S)

    reader.produce(topic, numbered(50))
    run_once()
    reader.produce(topic, [Record(b"%08d" % i) for i in range(50, 80)])
    run_once()
    offsets = spark.read.parquet(str(tmp_path / "table")).select("offset").orderBy("offset").collect()
    assert [row.offset for row in offsets] == list(range(80))
