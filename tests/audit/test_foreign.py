"""Records of other producers: the same one twice, and counts that do not agree with a sink's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition as Place
from delta.tables import DeltaTable
from py4j.protocol import Py4JError

from gapless.audit import Counts, Fault, Hop, Report, Verdict, auditing, reading
from gapless.audit.auditing import audit
from gapless.audit.carried import Matching
from gapless.audit.naming import NOBODY
from gapless.audit.tables import SinkSpec
from gapless.errors import Unreachable, UsageError
from gapless.pipeline.lag import SourceGroup
from gapless.pipeline.progress import TopicPartition
from gapless.pipeline.source import reading_options
from gapless.testing.broker import EmbeddedBroker
from tests.audit.test_audit import A, Bench, transact

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


def test_values_that_cannot_be_cast_are_told_in_one_line(bench: Bench) -> None:
    send(bench, [(None, b"x", 0)])
    with pytest.raises(UsageError, match=r"cannot compare records .* by CAST\(CAST\(value") as raised:
        audited(bench, Matching("CAST(CAST(value AS STRING) AS INT)"))
    assert "\n" not in str(raised.value)


@pytest.mark.slow_variants("key")
@pytest.mark.parametrize("by", ["key", None])
def test_a_cluster_that_dies_while_records_are_compared_cannot_be_read(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, by: str | None
) -> None:
    impatient = {
        "kafkaConsumer.pollTimeoutMs": "1000",
        "kafka.request.timeout.ms": "1000",
        "kafka.default.api.timeout.ms": "1000",
    }
    monkeypatch.setattr(reading, "reading_options", lambda *given: {**reading_options(*given), **impatient})
    with EmbeddedBroker() as broker:
        dying = Bench(spark, broker.bootstrap)
        dying.make(dying.topic, 2)
        send(dying, [(b"x", b"x", 0)] * 10)
        for name in ("judge_repeats", "judge_offsets"):
            monkeypatch.setattr(auditing, name, after(broker.kill, getattr(auditing, name)))
        with pytest.raises(Unreachable, match=f"cannot read {dying.topic} at {broker.bootstrap}: "):
            audited(dying, Matching(by))


def after(event: Callable[[], None], judge: Callable[..., Hop]) -> Callable[..., Hop]:
    def judged(*given: Any) -> Hop:
        event()
        return judge(*given)

    return judged


@pytest.mark.parametrize("judge", ["judge_sink", "judge_windows"])
def test_a_sink_that_cannot_be_read_any_more_is_no_wrong_usage(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, judge: str
) -> None:
    def fail(*_: object) -> Hop:
        raise Py4JError("the broker is gone")

    monkeypatch.setattr(auditing, judge, fail)
    bench.make(f"{bench.topic}-copy")
    matching = Matching(window="1 minute") if judge == "judge_windows" else Matching()
    with pytest.raises(Unreachable, match=r"cannot read .*, or kafka:.*-copy: the broker is gone"):
        audited(bench, matching, f"kafka:{bench.topic}-copy")


def test_topics_of_the_brokers_themselves_are_refused(bench: Bench) -> None:
    said = "__consumer_offsets is the brokers' own topic"
    with pytest.raises(UsageError, match=said):
        audited(bench, Matching("key"), "kafka:__consumer_offsets")
    bench.topic = "__consumer_offsets"
    for matching in (Matching(), Matching("key")):
        with pytest.raises(UsageError, match=said):
            audited(bench, matching)


def test_a_hash_knows_where_the_key_ends(bench: Bench) -> None:
    send(bench, [(b"a", b"\x00b", 0), (b"a\x00", b"b", 0), (b"", b"x", 0), (None, b"x", 0), (b"1:", b"x", 0)])
    report = audited(bench, Matching("hash"))
    assert report.verdict is Verdict.CLEAN
    assert report.hops[0].counts.present == 5


def test_offsets_that_hold_nothing_leave_a_doubt(bench: Bench) -> None:
    assert audited(bench, Matching()).hops[0].doubts == [f"{bench.topic} holds no record"]
    send(bench, [(None, b"x", 0)] * 10)
    report = audited(bench, Matching())
    assert (report.verdict, report.hops[0].counts.present) == (Verdict.CLEAN, 10)
    # Aborted or not, a transaction's end takes an offset, and its records are there for who wants them.
    transact(bench, [(A, 0, n) for n in range(3)], "abort")
    transact(bench, [(A, 1, 0)], "commit")
    report = audited(bench, Matching())
    assert report.verdict is Verdict.UNKNOWN
    assert report.hops[0].counts.present == 14
    where = f"({bench.topic}-0 8, {bench.topic}-1 6)"
    said = f"2 offsets hold no record: transactions end there, or records are gone {where}"
    assert report.hops[0].doubts == [said]


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
    told = hop.timeline
    assert (told.width_ms, told.is_sealed) == (MINUTE_MS, False)
    assert list(told.promised[NOBODY].values()) == [6] * 9
    assert list(told.present[NOBODY].values()) == [6, 6, 6, 4, 6, 7, 6, 6]
    for length, column in (("1 minute", "nowhere"), ("banana", "made_at"), ("1 month", "made_at")):
        with pytest.raises(UsageError, match="cannot count"):
            audited(bench, Matching(window=length, sink_time=column), f"parquet:{tmp_path / 'table'}")


def test_what_is_not_due_or_not_wanted_is_not_missed_in_windows(
    bench: Bench, spark: SparkSession, tmp_path: Path
) -> None:
    """The group has come to the middle of minute 2, and the sink some records further."""
    send(bench, [(None, b"x" if number % 3 else b"y", number // 6) for number in range(30)])
    rows = [(BEGIN_MS + minute * MINUTE_MS,) for minute in (0, 0, 0, 0, 1, 1, 1, 2, 2, 2)]
    table = spark.createDataFrame(rows, "ms long").selectExpr("timestamp_millis(ms) AS made_at")
    table.write.parquet(str(tmp_path / "table"))
    group = SourceGroup({"bootstrap.servers": bench.bootstrap}, f"carrier-{bench.topic}", [bench.topic])
    group.commit({TopicPartition(bench.topic, each): 7 for each in (0, 1)})
    sink = [SinkSpec.parse(f"parquet:{tmp_path / 'table'}")]
    matching = Matching(window="1 minute", sink_time="made_at", where="value = 'x'")
    (hop,) = audit(
        bench.spark,
        bench.bootstrap,
        bench.topic,
        sinks=sink,
        matching=matching,
        group=f"carrier-{bench.topic}",
        foreign=True,
    ).hops
    assert [(each.fault, each.records, each.first_ms) for each in hop.findings] == [
        (Fault.LOST, 1, BEGIN_MS + MINUTE_MS)
    ]
    counts = hop.counts
    assert (counts.promised, counts.present, counts.pending, counts.duplicated) == (16, 10, 5, 0)


def windows_of(bench: Bench, sink: str, time: str) -> tuple[list[tuple[Fault, int]], Counts]:
    """Each finding with its minute, and the counts."""
    (hop,) = audited(bench, Matching(window="1 minute", sink_time=time), sink).hops
    found = [(each.fault, ((each.first_ms or 0) - BEGIN_MS) // MINUTE_MS) for each in hop.findings]
    return found, hop.counts


def test_windows_that_the_sinks_own_retention_took_have_expired(bench: Bench) -> None:
    send(bench, [(None, b"x", minute) for minute in range(10) for _ in range(6)])
    copy = f"{bench.topic}-copy"
    bench.make(copy)
    producer = bench.producer()
    for minute in (each for each in range(10) for _ in range(6)):
        if minute != 8:
            producer.produce(copy, b"x", timestamp=BEGIN_MS + minute * MINUTE_MS)
    producer.flush()
    assert windows_of(bench, f"kafka:{copy}", "timestamp")[0] == [(Fault.LOST, 8)]
    # Up to the middle of minute 4.
    for answer in bench.admin.delete_records([Place(copy, 0, 4 * 6 + 3)]).values():
        answer.result(30)
    found, counts = windows_of(bench, f"kafka:{copy}", "timestamp")
    assert found == [(Fault.LOST, 8)]
    assert (counts.expired, counts.lost, counts.promised) == (24, 6, 48)


def test_more_windows_than_retention_has_taken_rows_have_not_expired(bench: Bench) -> None:
    send(bench, [(None, b"x", minute) for minute in range(10) for _ in range(6)])
    copy = f"{bench.topic}-copy"
    bench.make(copy)
    producer = bench.producer()
    for minute in (each for each in range(4, 10) for _ in range(6)):
        producer.produce(copy, b"x", timestamp=BEGIN_MS + minute * MINUTE_MS)
    producer.flush()
    for answer in bench.admin.delete_records([Place(copy, 0, 1)]).values():
        answer.result(30)
    report = audited(bench, Matching(window="1 minute", sink_time="timestamp"), f"kafka:{copy}")
    assert (report.verdict, report.hops[0].counts.expired) == (Verdict.UNKNOWN, 24)
    assert "of which 1 rows were taken at most" in report.hops[0].doubts[0]


def test_windows_of_which_the_topics_retention_took_records_are_not_compared(
    bench: Bench, spark: SparkSession, tmp_path: Path
) -> None:
    """Its partitions are cut at different times, and the sink still has all rows."""
    send(bench, [(None, b"x", minute) for minute in range(10) for _ in range(6)])
    path = str(tmp_path / "table")
    rows = [(BEGIN_MS // 1000 + 60 * minute,) for minute in [*range(10), 1, 7] for _ in range(6)]
    table = spark.createDataFrame(rows, "s long").selectExpr("timestamp_seconds(s) AS made_at")
    table.write.parquet(path)
    doubled = [(Fault.DUPLICATED, 1), (Fault.DUPLICATED, 7)]
    assert windows_of(bench, f"parquet:{path}", "made_at")[0] == doubled
    # Three records of each minute are in each partition: up to the middle of minutes 2 and 4.
    bench.expire({0: 2 * 3 + 1, 1: 4 * 3 + 1})
    found, counts = windows_of(bench, f"parquet:{path}", "made_at")
    assert (found, counts.promised, counts.lost) == (doubled[1:], 24, 0)
    (hop,) = audited(bench, Matching(window="1 minute", sink_time="made_at"), f"parquet:{path}").hops
    assert hop.notes == [
        "4 windows of 1 minute are compared, 6 are not whole",
        f"36 rows are not compared: retention has taken records of their time from {bench.topic}",
    ]
    # Nobody knows what was in a partition of which nothing is left.
    bench.expire({0: 30})
    report = audited(bench, Matching(window="1 minute", sink_time="made_at"), f"parquet:{path}")
    assert report.verdict is Verdict.UNKNOWN
    assert report.hops[0].doubts == ["there is no whole window of 1 minute to be compared"]


@pytest.mark.slow
def test_windows_that_were_deleted_from_a_table_have_expired(
    bench: Bench, spark: SparkSession, tmp_path: Path
) -> None:
    send(bench, [(None, b"x", minute) for minute in range(10) for _ in range(6)])
    path = str(tmp_path / "table")
    rows = [(BEGIN_MS // 1000 + 60 * minute,) for minute in range(10) for _ in range(6) if minute != 6]
    table = spark.createDataFrame(rows, "s long").selectExpr("timestamp_seconds(s) AS made_at")
    table.write.format("delta").save(path)
    assert windows_of(bench, f"delta:{path}", "made_at")[0] == [(Fault.LOST, 6)]
    begin = f"timestamp_millis({BEGIN_MS + 3 * MINUTE_MS})"
    DeltaTable.forPath(spark, path).delete(f"made_at < {begin}")
    found, counts = windows_of(bench, f"delta:{path}", "made_at")
    assert found == [(Fault.LOST, 6)]
    assert (counts.expired, counts.lost) == (18, 6)


def test_without_a_record_to_compare_nothing_is_clean(bench: Bench) -> None:
    assert audited(bench, Matching("key")).verdict is Verdict.UNKNOWN
    send(bench, [(None, b"x", 0)])
    assert audited(bench, Matching("key")).verdict is Verdict.UNKNOWN
