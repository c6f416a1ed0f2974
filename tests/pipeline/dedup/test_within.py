"""Records without an identity: what is equal within a while is taken out, and nothing else is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from gapless.errors import UsageError
from gapless.pipeline.dedup import bring_up_to_date, drop_within
from gapless.pipeline.properties import client_properties
from gapless.pipeline.sections import Source
from gapless.pipeline.source import COLUMNS, read_source
from tests.pipeline.dedup.batches import run_batches
from tests.servers import retention_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

NOW_MS, LONG_AGO_MS = int(time.time() * 1000), 1_000_000_000_000
Record = tuple[bytes | None, bytes | None, int]
"""Key, value, time."""

FIRST: list[Record] = [
    (b"a", b"1", NOW_MS),
    (b"a", b"2", NOW_MS),
    (None, b"1", NOW_MS),
    (None, b"1", NOW_MS),
    (b"", b"a1", NOW_MS),
    (b"a1", b"", NOW_MS),
    (b"b", None, NOW_MS),
]
SECOND: list[Record] = [
    (b"a", b"1", NOW_MS),
    (b"c", b"late", LONG_AGO_MS),
    (None, b"1", NOW_MS),
    (b"b", b"", NOW_MS),
    (b"a1", b"", LONG_AGO_MS),
]


def produced(bootstrap: str, topic: str, records: Sequence[Record]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    errors: list[object] = []
    for key, value, timestamp_ms in records:
        producer.produce(
            topic,
            value,
            key=key,
            timestamp=timestamp_ms,
            partition=0,
            on_delivery=lambda error, _: errors.append(error),
        )
    producer.flush(30)
    assert errors == [None] * len(records)


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        # Equal keys are one record; without a key there is nothing to compare.
        ("key", [b"a", None, None, b"", b"a1", b"b", b"c", None]),
        # Equal in key and value, with null and empty told apart.
        ("hash", [b"a", b"a", None, b"", b"a1", b"b", b"c", b"b"]),
        (["key", "value"], [b"a", b"a", None, None, b"", b"a1", b"b", b"c", None, b"b"]),
    ],
    ids=["key", "hash", "columns"],
)
def test_what_is_equal_is_taken_out_across_batches_and_what_comes_late_is_not(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    tmp_path: Path,
    by: str | list[str],
    expected: list[bytes | None],
) -> None:
    """By its own time a late record would be behind the watermark, and Spark would drop it."""
    came: list[bytes | None] = []

    def keep(rows: DataFrame, number: int) -> None:
        assert tuple(rows.columns) == COLUMNS
        came.extend(row.key if row.key is None else bytes(row.key) for row in rows.collect())

    for records in (FIRST, SECOND):
        produced(bootstrap, topic, records)
        source = Source(bootstrap, [topic])
        run_batches(spark, source, tmp_path, keep, lambda stream: drop_within(stream, by, "10 minutes"))

    assert sorted(came, key=str) == sorted(expected, key=str)


def test_the_broker_keeps_records_of_any_age(bootstrap: str, topic: str) -> None:
    assert retention_ms(bootstrap, topic) == "-1"


def test_a_column_that_is_not_there_is_told(spark: SparkSession, bootstrap: str, topic: str) -> None:
    stream = read_source(spark, Source(bootstrap, [topic]), client_properties())
    with pytest.raises(UsageError, match="there is no column id to compare"):
        drop_within(stream, ["id"], "1 minute")


def test_a_batch_that_sinks_have_already_must_still_be_run(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """As after a crash between the last sink and Spark's note that the batch is done; also run twice."""
    from pyspark.errors import StreamingQueryException

    came: list[bytes | None] = []

    def keep(rows: DataFrame, number: int) -> None:
        came.extend(row.key for row in rows.collect())

    def skip(rows: DataFrame, number: int) -> None:
        """The sink has it."""

    def skip_rightly(rows: DataFrame, number: int) -> None:
        bring_up_to_date(rows)
        bring_up_to_date(rows)

    def run(batch: Callable[[DataFrame, int], None]) -> None:
        source = Source(bootstrap, [topic])
        run_batches(spark, source, tmp_path, batch, lambda stream: drop_within(stream, "key", "10 minutes"))

    def forget_the_last_commit() -> None:
        commits = tmp_path / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
        for name in (f"{last}", f".{last}.crc"):
            (commits / name).unlink()

    produced(bootstrap, topic, [(b"a", b"1", NOW_MS)])
    run(keep)
    forget_the_last_commit()
    with pytest.raises(StreamingQueryException):
        run(skip)
    forget_the_last_commit()
    run(skip_rightly)
    produced(bootstrap, topic, [(b"a", b"2", NOW_MS), (b"b", b"2", NOW_MS)])
    run(keep)
    assert came == [b"a", b"b"]
