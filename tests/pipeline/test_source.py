"""A source gives every committed record once, with all its columns, from where it was told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from gapless.errors import Unreachable, UsageError
from gapless.pipeline.properties import client_properties
from gapless.pipeline.ranges import source_ranges
from gapless.pipeline.sections import KafkaProperties, Source
from gapless.pipeline.source import COLUMNS, partitions_of, read_source, starting_offsets
from tests.pipeline.dedup.batches import Sent, run_batches, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gapless.pipeline.ranges import Range

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


class Reader:
    """Keeps what comes."""

    def __init__(self, spark: SparkSession, source: Source, checkpoint: Path) -> None:
        self._spark, self._source, self._checkpoint = spark, source, checkpoint
        self.values: list[bytes] = []
        self.ranges: list[Range] = []
        self.batches: list[int] = []

    def run(self) -> list[bytes]:
        """What has come since the last time."""
        self.values.clear()
        self.ranges.clear()
        self.batches.clear()
        run_batches(self._spark, self._source, self._checkpoint, self._keep)
        return sorted(self.values)

    def _keep(self, rows: DataFrame, number: int) -> None:
        came = [bytes(row.value) for row in rows.select("value").collect()]
        self.values.extend(came)
        self.batches.append(len(came))
        self.ranges.extend(source_ranges(rows) or [])


def numbered(partition: int, numbers: range) -> list[Sent]:
    return [Sent(partition, b"%d" % number, []) for number in numbers]


def test_every_column_comes_and_headers_too(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    send(bootstrap, topic, [Sent(1, b"x", [("a", b"1"), ("a", None), ("b", b"")]), Sent(0, b"y", [])])
    found = {}

    def keep(rows: DataFrame, number: int) -> None:
        assert tuple(rows.columns) == COLUMNS
        found.update({row.partition: row for row in rows.collect()})

    run_batches(spark, Source(bootstrap, [topic]), tmp_path, keep)
    assert (found[1].topic, found[1].offset, found[1].key) == (topic, 0, None)
    headers = [(header.key, header.value and bytes(header.value)) for header in found[1].headers]
    assert headers == [("a", b"1"), ("a", None), ("b", bytearray())]
    assert found[0].headers is None


def test_only_committed_records_come_and_the_gaps_of_transactions_are_no_loss(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"of-{topic}", "log_level": 0})
    producer.init_transactions(30)
    for number in range(6):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=0)
        producer.flush(30)
        if number % 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    reader = Reader(spark, Source(bootstrap, [topic]), tmp_path)
    assert reader.run() == [b"0", b"2", b"4"]
    assert reader.run() == []


def test_batches_have_the_size_that_was_asked_for_and_one_task_for_each_partition(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    send(bootstrap, topic, [*numbered(0, range(50)), *numbered(1, range(50, 100))])
    reader = Reader(spark, Source(bootstrap, [topic], max_records_per_batch=40), tmp_path)
    assert len(reader.run()) == 100
    assert reader.batches == [40, 40, 20]
    assert sorted(each.name for each in reader.ranges) == [f"{topic}-0"] * 3 + [f"{topic}-1"] * 3


def test_partitions_that_are_added_are_read_from_their_beginning(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    reader = Reader(spark, Source(bootstrap, [topic], starting="latest"), tmp_path)
    send(bootstrap, topic, numbered(0, range(3)))
    assert reader.run() == [], "it starts at the latest"
    send(bootstrap, topic, numbered(0, range(3, 5)))
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(30)
    send(bootstrap, topic, [*numbered(2, range(5, 7)), *numbered(3, range(7, 9))])
    assert reader.run() == [b"3", b"4", b"5", b"6", b"7", b"8"]


def test_it_starts_at_given_offsets_and_at_the_earliest_where_none_is_given(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    send(bootstrap, topic, [*numbered(0, range(5)), *numbered(1, range(5, 8))])
    reader = Reader(spark, Source(bootstrap, [topic], starting={topic: {0: 3}}), tmp_path)
    assert reader.run() == [b"3", b"4", b"5", b"6", b"7"]


def test_a_topic_or_cluster_that_is_not_there_is_told(
    spark: SparkSession, bootstrap: str, topic: str
) -> None:
    properties = client_properties()
    with pytest.raises(UsageError, match="there is no topic missing at"):
        partitions_of(Source(bootstrap, [topic, "missing"]), properties)
    with pytest.raises(UsageError, match=f"names {topic}-7, which does not exist"):
        read_source(spark, Source(bootstrap, [topic], starting={topic: {7: 0}}), properties)


def test_a_cluster_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapless.pipeline.source._PATIENCE_S", 0.5)
    with pytest.raises(Unreachable, match=r"cannot reach a Kafka broker at 127\.0\.0\.1:1"):
        partitions_of(Source("127.0.0.1:1", ["orders"]), client_properties())


def test_offsets_are_written_as_spark_wants_them() -> None:
    text = starting_offsets({"a": {1: 7}}, {"a": [0, 1], "b": [0]})
    assert json.loads(text) == {"a": {"0": -2, "1": 7}, "b": {"0": -2}}


@pytest.mark.parametrize(("name", "usual"), [("fetch.max.wait.ms", "5"), ("metadata.max.age.ms", "5000")])
def test_reading_goes_on_at_the_end_of_the_log_and_after_a_leader_has_died_unless_the_user_wants_it(
    spark: SparkSession, bootstrap: str, topic: str, name: str, usual: str
) -> None:
    """Spark's questions wait behind a fetch on the same connection; a reader may miss a change of leaders."""

    def option(**java: str) -> str:
        properties = client_properties(KafkaProperties(java=java))
        stream = read_source(spark, Source(bootstrap, [topic]), properties)
        leaf = stream._jdf.queryExecution().analyzed().collectLeaves().apply(0)
        return str(leaf.extraOptions().get(f"kafka.{name}"))

    assert option() == usual
    assert option(**{name: "700"}) == "700"
