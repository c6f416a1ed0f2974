"""What retention took before it was read is told with its range; other gaps in offsets are no loss."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from gapless.errors import GaplessError
from gapless.pipeline.folder import CheckpointFolder
from gapless.pipeline.lag import Edges
from gapless.pipeline.loss import (
    Lost,
    RecordsLost,
    SourceReplaced,
    explain_loss,
    judge_positions,
    missing_ranges,
    positions,
    source_edges,
)
from gapless.pipeline.progress import TopicPartition as Place
from gapless.pipeline.properties import client_properties
from gapless.pipeline.ranges import Range, source_ranges
from gapless.pipeline.sections import Source
from tests.client.conftest import read_all
from tests.pipeline.dedup.batches import Sent, run_batches, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

with_spark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_missing_is_what_lies_below_the_first_offset_that_can_be_read() -> None:
    ranges = [Range("a", 0, 10, 20), Range("a", 1, 10, 20), Range("a", 2, 10, 20), Range("b", 0, 0, 5)]
    earliest = {Place("a", 0): 10, Place("a", 1): 13, Place("a", 2): 90, Place("b", 0): 0}
    assert missing_ranges(ranges, earliest) == [Lost("a", 1, 10, 12), Lost("a", 2, 10, 19)]
    assert missing_ranges(ranges, {}) == []


@pytest.mark.parametrize(
    ("standing", "edges", "message"),
    [
        ({("a", 0): 5}, {("a", 0): (5, 9)}, None),
        ({}, {("a", 0): (5, 9)}, None),
        ({("a", 0): 5}, {("a", 0): (7, 9)}, r"up to 2 records .* \(a-0: offsets 5 to 6\).*on_loss"),
        ({("a", 0): 9}, {("a", 0): (9, 9), ("a", 1): (1, 4)}, r"\(a-1: offset 0\)"),
        ({("a", 0): 5}, {("a", 0): (0, 3)}, "a-0 ends at offset 3, but the checkpoint is at 5.*made again"),
        ({("a", 0): 5, ("b", 0): 1}, {("a", 0): (0, 5)}, "b-0 does not exist any more"),
    ],
)
def test_a_checkpoint_and_what_there_is_are_compared(
    standing: dict[Any, int], edges: dict[Any, tuple[int, int]], message: str | None
) -> None:
    error = judge_positions(
        {Place(*where): offset for where, offset in standing.items()},
        {Place(*where): Edges(*ends) for where, ends in edges.items()},
    )
    if message is None:
        assert error is None
    else:
        with pytest.raises(GaplessError, match=message):
            raise error or AssertionError("nothing was found")


class Pipeline:
    """Reads a topic, again and again, with one checkpoint."""

    def __init__(self, spark: SparkSession, bootstrap: str, topic: str, checkpoint: Path) -> None:
        self._spark, self._checkpoint = spark, checkpoint
        self.source = Source(bootstrap, [topic])
        self.folder = CheckpointFolder(spark, checkpoint)
        assert self.folder.id, "made before the first batch, as by every pipeline"
        self.came: list[int] = []
        self.lost: list[Lost] = []

    def run(self, **settings: Any) -> list[int]:
        self.came.clear()
        self.lost.clear()
        source = Source(self.source.bootstrap, self.source.topics, **settings)
        try:
            run_batches(self._spark, source, self._checkpoint, self._batch)
        except Exception as error:
            clear = explain_loss(error, self.folder, source, client_properties())
            raise clear or error from None
        return sorted(self.came)

    def _batch(self, rows: DataFrame, number: int) -> None:
        edges = source_edges(self.source, client_properties())
        earliest = {where: each.earliest for where, each in edges.items()}
        self.lost += missing_ranges(source_ranges(rows) or [], earliest)
        self.came.extend(row.offset for row in rows.select("offset").collect())


@pytest.fixture
def pipeline(spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path) -> Pipeline:
    return Pipeline(spark, bootstrap, topic, tmp_path)


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def deleted(admin: AdminClient, topic: str, before: int) -> None:
    for done in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        done.result(30)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s, f"not in a minute: {what}"
        time.sleep(0.05)


def numbered(numbers: range) -> list[Sent]:
    return [Sent(0, b"%d" % number, []) for number in numbers]


class TestWithSpark:
    pytestmark = with_spark

    def test_what_retention_took_stops_the_pipeline_with_its_range_or_is_told(
        self, pipeline: Pipeline, bootstrap: str, topic: str, admin: AdminClient
    ) -> None:
        send(bootstrap, topic, numbered(range(10)))
        assert pipeline.run() == list(range(10))
        assert positions(pipeline.folder) == {Place(topic, 0): 10, Place(topic, 1): 0}
        send(bootstrap, topic, numbered(range(10, 30)))
        deleted(admin, topic, before=17)
        for _ in range(2):
            with pytest.raises(RecordsLost) as raised:
                pipeline.run()
            assert raised.value.lost == [Lost(topic, 0, 10, 16)]
            assert f"{topic}-0: offsets 10 to 16" in str(raised.value)
        assert pipeline.run(on_loss="continue") == list(range(17, 30))
        assert pipeline.lost == [Lost(topic, 0, 10, 16)]
        send(bootstrap, topic, numbered(range(30, 32)))
        assert pipeline.run() == [30, 31]
        assert pipeline.lost == []

    def test_offsets_to_start_at_that_are_gone_are_told_too(
        self, pipeline: Pipeline, bootstrap: str, topic: str, admin: AdminClient
    ) -> None:
        send(bootstrap, topic, numbered(range(10)))
        deleted(admin, topic, before=5)
        with pytest.raises(RecordsLost) as raised:
            pipeline.run(starting={topic: {0: 2}})
        assert raised.value.lost == [Lost(topic, 0, 2, 4)]

    def test_a_topic_that_was_deleted_and_made_again_is_told(
        self, pipeline: Pipeline, bootstrap: str, topic: str, admin: AdminClient
    ) -> None:
        send(bootstrap, topic, numbered(range(10)))
        assert len(pipeline.run()) == 10
        admin.delete_topics([topic])[topic].result(30)
        wait_for(lambda: topic not in admin.list_topics(timeout=30).topics, "the topic is gone")
        with pytest.raises(SourceReplaced, match=f"{topic}-0, {topic}-1 does not exist any more"):
            pipeline.run()
        admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
        send(bootstrap, topic, numbered(range(3)))
        with pytest.raises(SourceReplaced, match=f"{topic}-0 ends at offset 3, but the checkpoint is at 10"):
            pipeline.run()

    def test_gaps_of_compaction_and_of_transactions_are_no_loss(
        self, spark: SparkSession, bootstrap: str, admin: AdminClient, tmp_path: Path
    ) -> None:
        topic = f"compacted-{tmp_path.name}"
        config = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "segment.ms": "100",
            "segment.bytes": "2000",
            "min.compaction.lag.ms": "0",
        }
        admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(30)
        producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": f"of-{topic}", "log_level": 0}
        )
        producer.init_transactions(30)

        def transact(commit: bool, keys: range) -> None:
            producer.begin_transaction()
            for key in keys:
                producer.produce(topic, b"x" * 200, key=b"%d" % key, partition=0)
            producer.flush(30)
            if commit:
                producer.commit_transaction(30)
            else:
                producer.abort_transaction(30)

        pipeline = Pipeline(spark, bootstrap, topic, tmp_path)
        transact(True, range(3))
        assert pipeline.run() == [0, 1, 2]
        for number in range(30):
            transact(number % 3 != 0, range(3))
        wait_for(lambda: len(read_all(bootstrap, topic)) < 30, "most of 63 records are compacted away")
        came = pipeline.run()
        assert pipeline.lost == []
        assert came == [each.offset for each in read_all(bootstrap, topic) if each.offset > 2]
        assert pipeline.run() == []
