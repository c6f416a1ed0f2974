"""Records of other producers: the same one twice, and counts that do not agree with a sink's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gapless.audit import Fault, Report, Verdict
from gapless.audit.auditing import audit
from gapless.audit.carried import Matching
from gapless.audit.tables import SinkSpec
from gapless.errors import UsageError
from tests.audit.test_audit import Bench

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINUTE_MS = 60_000
BEGIN_MS = 1_700_000_040_000  # a whole minute


@pytest.fixture
def bench(spark: SparkSession, bootstrap: str) -> Bench:
    made = Bench(spark, bootstrap)
    made.make(made.topic, 2)
    return made


def send(bench: Bench, records: list[tuple[bytes | None, bytes, int]]) -> None:
    """Key, value and the minute of each."""
    producer = bench.producer()
    for number, (key, value, minute) in enumerate(records):
        time_ms = BEGIN_MS + minute * MINUTE_MS + number
        producer.produce(bench.topic, value, key=key, partition=number % 2, timestamp=time_ms)
    assert producer.flush(30) == 0


def audited(bench: Bench, matching: Matching, *sinks: str) -> Report:
    specs = [SinkSpec.parse(sink) for sink in sinks]
    return audit(bench.spark, bench.bootstrap, bench.topic, sinks=specs, matching=matching, foreign=True)


def test_equal_records_are_named(bench: Bench) -> None:
    send(bench, [(b"a", b"1", 0), (b"b", b"1", 0), (b"a", b"2", 0), (None, b"3", 0), (b"a", b"1", 0)])
    report = audited(bench, Matching("hash"))
    (hop,) = report.hops
    assert [(each.fault, each.partition, each.first_offset) for each in hop.findings] == [
        (Fault.DUPLICATED, 0, 2)
    ]
    assert (hop.counts.present, hop.counts.duplicated) == (4, 1)
    (hop,) = audited(bench, Matching("key")).hops
    assert (hop.counts.present, hop.counts.duplicated) == (2, 2)
    assert hop.notes == ["1 records have nothing to be compared by"]
    (hop,) = audited(bench, Matching("CAST(value AS STRING)")).hops
    assert hop.counts.duplicated == 2
    with pytest.raises(UsageError, match="cannot compare records"):
        audited(bench, Matching("nonsense("))


def test_a_hash_knows_where_the_key_ends(bench: Bench) -> None:
    send(bench, [(b"a", b"\x00b", 0), (b"a\x00", b"b", 0), (b"", b"x", 0), (None, b"x", 0), (b"1:", b"x", 0)])
    report = audited(bench, Matching("hash"))
    assert report.verdict is Verdict.CLEAN
    assert report.hops[0].counts.present == 5


def test_windows_with_too_few_or_too_many_rows_are_named(
    bench: Bench, spark: SparkSession, tmp_path: Path
) -> None:
    send(bench, [(None, b"x", minute) for minute in range(10) for _ in range(6)])
    rows = [minute for minute in range(10) for _ in range({3: 4, 5: 7, 7: 0}.get(minute, 6))]
    table = spark.createDataFrame([(BEGIN_MS // 1000 + 60 * minute,) for minute in rows], "s long")
    table.selectExpr("timestamp_seconds(s) AS made_at").write.parquet(str(tmp_path / "table"))
    matching = Matching(window="1 minute", sink_time="made_at")
    (hop,) = audited(bench, matching, f"parquet:{tmp_path / 'table'}").hops
    assert [
        (each.fault, each.records, ((each.first_ms or 0) - BEGIN_MS) // MINUTE_MS) for each in hop.findings
    ] == [
        (Fault.LOST, 2, 3),
        (Fault.DUPLICATED, 1, 5),
        (Fault.LOST, 6, 7),
    ]
    assert (hop.counts.promised, hop.counts.lost, hop.counts.duplicated) == (54, 8, 1)
    assert hop.notes == ["9 windows of 1 minute are compared, 1 are not whole"]
    with pytest.raises(UsageError, match="cannot count"):
        audited(bench, Matching(window="1 minute", sink_time="nowhere"), f"parquet:{tmp_path / 'table'}")


def test_without_a_record_to_compare_nothing_is_clean(bench: Bench) -> None:
    assert audited(bench, Matching("key")).verdict is Verdict.UNKNOWN
    send(bench, [(None, b"x", 0)])
    assert audited(bench, Matching("key")).verdict is Verdict.UNKNOWN
