"""What retention took has expired, if it can have been that: else it is lost, or nobody can tell."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition as Place
from delta.tables import DeltaTable

from gapless.audit import Fault, Hop, Verdict
from gapless.audit.auditing import Auditor, audit
from gapless.audit.carried import Matching, Sink, Topic, judge_sink
from gapless.audit.cluster import Ends
from gapless.audit.following import Follower
from gapless.audit.tables import SinkSpec, deleted_from
from tests.audit.planting import Planted
from tests.audit.test_audit import A, B, Bench, headers_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000


@pytest.fixture
def bench(spark: SparkSession, bootstrap: str) -> Bench:
    return Bench(spark, bootstrap)


def test_what_was_lost_at_one_look_does_not_expire_at_the_next(bench: Bench) -> None:
    """Retention takes what was read, and so nothing of a source of which there was nothing."""
    planted = Planted({0: [(A, n) for n in range(10)]}, [[(A, 0, 0, 9)], [(B, 0, 0, 2)]])
    bench.fill(planted)
    auditor = Auditor(bench.spark, bench.bootstrap, bench.topic, ledger=bench.ledger)
    assert auditor.look().hops[0].counts.lost == 3
    bench.expire({0: 5})
    assert auditor.look().hops[0].counts.lost == 3
    # What it takes before anybody has read it may have been anything.
    producer = bench.producer()
    for number in range(10, 20):
        bench.send(producer, bench.topic, 0, headers_of(A, number))
    producer.flush()
    bench.expire({0: 15})
    counts = auditor.look().hops[0].counts
    assert (counts.lost, counts.expired) == (0, 3)


@pytest.mark.parametrize("first_look", [True, False])
def test_a_source_that_is_lost_as_a_whole_has_not_expired_where_older_records_are_left(
    bench: Bench, first_look: bool
) -> None:
    """The seals are hours younger than what retention has left. Who watched knows that it is lost."""
    bench.make(bench.topic)
    bench.make(bench.ledger)
    producer, now_ms = bench.producer(), time.time_ns() // 1_000_000
    for number in range(20):
        time_ms = now_ms - 5 * HOUR_MS + number
        producer.produce(bench.topic, b"x", partition=0, headers=headers_of(A, number), timestamp=time_ms)
    bench.seal(producer, [(A, 0, 0, 19)], now_ms - 5 * HOUR_MS)
    producer.flush()
    bench.expire({0: 10})
    auditor = Auditor(bench.spark, bench.bootstrap, bench.topic, ledger=bench.ledger)
    if first_look:
        report = auditor.look()
        assert (report.verdict, report.hops[0].counts.expired) == (Verdict.CLEAN, 10)
    bench.seal(producer, [(B, 0, 0, 4)])
    producer.flush()
    for _ in range(2):
        report = auditor.look()
        (hop,) = report.hops
        assert report.verdict is (Verdict.FINDINGS if first_look else Verdict.UNKNOWN)
        assert (hop.counts.expired, hop.counts.lost) == ((10, 5) if first_look else (15, 0))
    # What comes unread and goes again may have been anything.
    for number in range(20, 30):
        bench.send(producer, bench.topic, 0, headers_of(A, number))
    producer.flush()
    bench.expire({0: 25})
    counts = auditor.look().hops[0].counts
    assert (counts.expired, counts.lost) == (15, 0)


def both_ways(bench: Bench, sink: str) -> list[Hop]:
    """A sink judged at once, and by who begins to watch it."""
    spec = SinkSpec.parse(sink)
    once = audit(bench.spark, bench.bootstrap, bench.topic, ledger=bench.ledger, sinks=[spec])
    auditor = Auditor(bench.spark, bench.bootstrap, bench.topic, ledger=bench.ledger)
    with Follower(auditor, [spec], Matching(), grace_s=0) as follower:
        follower.look()
        return [once.hops[1], follower.look().hops[1]]


def filled(bench: Bench, count: int) -> None:
    """One record a second, from an hour ago on."""
    bench.make(bench.topic)
    bench.make(bench.ledger)
    producer, now_ms = bench.producer(), time.time_ns() // 1_000_000
    for number in range(count):
        time_ms = now_ms - HOUR_MS + 1000 * number
        producer.produce(bench.topic, b"x", partition=0, headers=headers_of(A, number), timestamp=time_ms)
    bench.seal(producer, [(A, 0, 0, count - 1)])
    producer.flush()


@pytest.mark.slow
def test_more_than_a_topics_retention_can_have_taken_from_a_sink_has_not_expired(bench: Bench) -> None:
    """The first 30 of 40 were never written, and then a record is deleted."""
    filled(bench, 40)
    copy, producer = f"{bench.topic}-copy", bench.producer()
    bench.make(copy, 2)
    now_ms = time.time_ns() // 1_000_000
    for number in range(30, 40):
        time_ms = now_ms - HOUR_MS + 1000 * number
        producer.produce(copy, b"x", partition=number % 2, headers=headers_of(A, number), timestamp=time_ms)
    producer.flush()
    assert [hop.counts.lost for hop in both_ways(bench, f"kafka:{copy}")] == [30, 30]
    for answer in bench.admin.delete_records([Place(copy, 0, 1)]).values():
        answer.result(30)
    for hop in both_ways(bench, f"kafka:{copy}"):
        assert (hop.counts.expired, hop.counts.lost) == (31, 0)
        missing = f"31 records are missing that are older than what is left in kafka:{copy}"
        assert hop.doubts == [f"{missing}, of which 1 rows were taken at most"]


def test_more_than_was_deleted_from_a_table_has_not_expired(bench: Bench, tmp_path: Path) -> None:
    filled(bench, 40)
    path = str(tmp_path / "table")
    table = bench.spark.createDataFrame(
        [(0, number) for number in range(30, 40)], "partition int, offset long"
    )
    table.coalesce(1).write.format("delta").save(path)
    spec = SinkSpec.parse(f"delta:{path}")
    assert deleted_from(spec, bench.spark) is None
    # A DELETE that finds nothing deletes nothing.
    DeltaTable.forPath(bench.spark, path).delete("offset = 3")
    assert [hop.counts.lost for hop in both_ways(bench, str(spec))] == [30, 30]
    DeltaTable.forPath(bench.spark, path).delete("offset IN (30, 36)")
    for hop in both_ways(bench, str(spec)):
        assert (hop.counts.expired, [each.which for each in hop.findings]) == (31, ["36"])
        assert {each.fault for each in hop.findings} == {Fault.LOST}
        (doubt,) = hop.doubts
        assert doubt.endswith("older than what is left in " + f"{spec}, of which 2 rows were taken at most")


@pytest.mark.slow
def test_of_a_table_that_does_not_tell_how_many_rows_were_deleted_nobody_knows(
    bench: Bench, tmp_path: Path
) -> None:
    filled(bench, 10)
    path = str(tmp_path / "table")
    table = bench.spark.createDataFrame([(0, number) for number in range(10)], "partition int, offset long")
    table.coalesce(1).write.format("delta").save(path)
    DeltaTable.forPath(bench.spark, path).delete("offset < 3")
    assert deleted_from(SinkSpec.parse(f"delta:{path}"), bench.spark) == (3, True)
    (log,) = (Path(path) / "_delta_log").glob("*1.json")
    told = log.read_text()
    assert '"numDeletedRows":"3"' in told
    log.write_text(told.replace('"numDeletedRows":"3",', ""))
    (log.parent / f".{log.name}.crc").unlink(missing_ok=True)
    for hop in both_ways(bench, f"delta:{path}"):
        assert (hop.counts.expired, hop.counts.lost) == (3, 0)
        assert hop.doubts[0].endswith("are known to have been deleted; of others nobody can say")


@pytest.mark.slow
def test_what_compaction_may_have_taken_from_a_sink_is_not_lost(bench: Bench) -> None:
    """The first 20 of 40 have keys that come again; number 7 was never written."""
    filled(bench, 40)
    copy, producer = f"{bench.topic}-copy", bench.producer()
    whole = f"{copy}-whole"
    bench.make(whole, 1, cleanup_policy="compact")
    bench.make(copy, 1, cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.01")
    for number in (each for each in range(40) if each != 7):
        for sink in (copy, whole):
            bench.send(producer, sink, 0, headers_of(A, number), b"%d" % (number % 20))
        if number % 10 == 9:
            producer.flush()
            time.sleep(0.2)
    producer.flush()
    for hop in both_ways(bench, f"kafka:{whole}"):
        # Every offset holds a record: it is all in one segment, and nothing was taken.
        assert (hop.counts.compacted, [each.which for each in hop.findings]) == (0, ["7"])
    deadline_s = time.monotonic() + 60
    auditor = Auditor(bench.spark, bench.bootstrap, bench.topic, ledger=bench.ledger)
    while not auditor.reader.empty(copy, auditor.cluster.ends(copy)) and time.monotonic() < deadline_s:
        bench.send(producer, copy, 0, [], b"tick")
        producer.flush()
        time.sleep(0.5)
    for hop in both_ways(bench, f"kafka:{copy}"):
        assert (hop.counts.lost, hop.findings) == (0, [])
        assert hop.counts.compacted + hop.counts.present == 40
        assert hop.counts.compacted > 1
        assert hop.doubts[-1].endswith("it may have taken them. Compare --by key --one-per-key")


def test_of_a_compacted_sink_only_keys_whose_last_record_has_no_value_need_not_be_there(
    spark: SparkSession,
) -> None:
    records = [("a", "1"), ("b", "1"), ("c", None), ("b", None), ("c", "2"), ("d", "1")]
    rows = [(*each, 0, offset, offset) for offset, each in enumerate(records)]
    topic = spark.createDataFrame(rows, "key string, value string, partition int, offset long, ms long")
    topic = topic.selectExpr("*", "timestamp_millis(ms) AS timestamp").selectExpr(
        "*", "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers"
    )
    compacted = Sink("kafka:s", spark.createDataFrame([("d",)], "key string"), empty=lambda: 5)
    hop = judge_sink(
        Topic("t", topic.drop("ms"), {0: Ends(0, 6, 6)}), compacted, Matching("key", one_per_key=True)
    )
    assert (hop.counts.promised, hop.counts.compacted, hop.counts.lost) == (4, 1, 2)
    assert not hop.doubts
    untouched = compacted._replace(empty=lambda: 0)
    hop = judge_sink(
        Topic("t", topic.drop("ms"), {0: Ends(0, 6, 6)}), untouched, Matching("key", one_per_key=True)
    )
    assert (hop.counts.compacted, hop.counts.lost) == (0, 3)
