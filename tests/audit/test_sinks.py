"""From a topic to a sink: what a table lacks or has twice is named, and what need not be there is not."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition as Place
from delta.tables import DeltaTable

from gapless.audit import Fault, Report, Verdict
from gapless.audit.auditing import audit
from gapless.audit.carried import Matching, Sink, Topic, judge_sink
from gapless.audit.cluster import Ends
from gapless.audit.reading import Reader
from gapless.audit.tables import SinkSpec, jdbc_options
from gapless.client.formats import source_header
from gapless.errors import UsageError
from gapless.pipeline.lag import SourceGroup
from gapless.pipeline.progress import TopicPartition
from gapless.pipeline.properties import client_properties
from tests.audit.planting import Name, Planted, clean
from tests.audit.test_audit import A, B, Bench, headers_of, transact
from tests.audit.test_judging import named

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOUR_MS = 3_600_000


@pytest.fixture
def bench(spark: SparkSession, bootstrap: str) -> Bench:
    return Bench(spark, bootstrap)


def records(bench: Bench, spark: SparkSession) -> DataFrame:
    options = {"kafka.bootstrap.servers": bench.bootstrap, "subscribe": bench.topic, "includeHeaders": "true"}
    options |= {"startingOffsets": "earliest", "kafka.isolation.level": "read_committed"}
    return spark.read.format("kafka").options(**options).load()


def audited(
    bench: Bench, spark: SparkSession, sink: str, matching: Matching | None = None, group: str | None = None
) -> Report:
    specs = [SinkSpec.parse(sink)]
    return audit(
        spark, bench.bootstrap, bench.topic, ledger=bench.ledger, sinks=specs, matching=matching, group=group
    )


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        ("delta", "partition, offset, value"),
        ("parquet", "headers, partition"),
        ("postgres", "topic, partition, offset"),
    ],
)
def test_planted_faults_of_a_table_are_named(
    bench: Bench, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest, kind: str, kept: str
) -> None:
    random = Random(kind + kept)
    planted = clean(random, 10, 2, 3000)
    bench.fill(planted)
    expected: dict[Fault, Counter[Name]] = {fault: Counter() for fault in Fault}
    copies = []
    dropped = random.choice(planted.logs[0])[0]  # a whole source; and the tail of partition 1 is cut
    for partition, log in planted.logs.items():
        for offset, (maker, sequence) in enumerate(log):
            (count,) = random.choices([0, 1, 2, 3], [5, 90, 4, 1])
            if maker == dropped or (partition == 1 and offset >= len(log) - 40):
                count = 0
            copies += [(partition, offset)] * count
            if count != 1:
                expected[Fault.DUPLICATED if count else Fault.LOST][maker, partition, sequence] += 1
    chosen = spark.createDataFrame(copies, "partition int, offset long")
    table = records(bench, spark).join(chosen, ["partition", "offset"]).selectExpr(*kept.split(", "))
    report = audited(bench, spark, write(table, kind, tmp_path, request))
    first, hop = report.hops
    assert not first.counts.faults
    assert named(hop) == expected
    assert (hop.counts.promised, hop.counts.lost) == (3000, sum(expected[Fault.LOST].values()))
    assert report.verdict is Verdict.FINDINGS


def write(table: DataFrame, kind: str, folder: Path, request: pytest.FixtureRequest) -> str:
    """Make a sink of it; its name."""
    if kind != "postgres":
        table.write.format(kind).save(str(folder / "table"))
        return f"{kind}:{folder / 'table'}"
    dsn = request.getfixturevalue("dsn")
    spec = SinkSpec.parse(f"postgres:{dsn}#audited")
    table.write.format("jdbc").options(**jdbc_options(spec)).mode("overwrite").save()
    return f"postgres:{dsn}#audited"


@pytest.mark.parametrize("kept", ["partition, offset", "headers"])
def test_records_of_a_sink_are_counted_by_time(
    bench: Bench, spark: SparkSession, tmp_path: Path, kept: str
) -> None:
    bench.make(bench.topic)
    bench.make(bench.ledger)
    producer, begin_ms = bench.producer(), 1_700_000_040_000
    for number in range(30):
        time_ms = begin_ms + number // 10 * 1000 + number
        producer.produce(bench.topic, b"x", headers=headers_of(A, number), timestamp=time_ms)
    bench.seal(producer, [(A, 0, 0, 29)])
    producer.flush()
    path = str(tmp_path / "table")
    rows = records(bench, spark)
    rows.filter("offset NOT BETWEEN 8 AND 12").union(rows.filter("offset = 25")).selectExpr(
        *kept.split(", ")
    ).write.parquet(path)
    told = audited(bench, spark, f"parquet:{path}").hops[1].timeline
    assert (told.width_ms, told.is_sealed) == (1000, False)
    assert told.promised == {"a": {begin_ms + second * 1000: 10 for second in range(3)}}
    assert told.present == {"a": {begin_ms: 8, begin_ms + 1000: 7, begin_ms + 2000: 11}}


@pytest.mark.slow
def test_a_record_that_the_topic_holds_twice_is_once_in_a_sink_without_duplicates(
    bench: Bench, spark: SparkSession, tmp_path: Path
) -> None:
    bench.fill(Planted({0: [(A, 0), (A, 1), (A, 0)]}, [[(A, 0, 0, 1)]]))
    path = str(tmp_path / "table")
    records(bench, spark).filter("offset < 2").select("partition", "offset").write.format("delta").save(path)
    first, hop = audited(bench, spark, f"delta:{path}").hops
    assert first.counts.duplicated == 1
    assert hop.counts.faults == 0
    records(bench, spark).filter("offset = 2").select("partition", "offset").write.format("delta").mode(
        "append"
    ).save(path)
    _, hop = audited(bench, spark, f"delta:{path}").hops
    assert (hop.counts.lost, hop.counts.duplicated) == (0, 1)


def test_what_a_group_has_not_come_to_is_pending(bench: Bench, spark: SparkSession, tmp_path: Path) -> None:
    bench.fill(Planted({0: [(A, n) for n in range(10)]}, [[(A, 0, 0, 9)]]))
    path = str(tmp_path / "table")
    records(bench, spark).filter("offset < 4").select("partition", "offset").write.parquet(path)
    group = SourceGroup({"bootstrap.servers": bench.bootstrap}, "carrier", [bench.topic])
    group.commit({TopicPartition(bench.topic, 0): 6})
    report = audited(bench, spark, f"parquet:{path}", group="carrier")
    hop = report.hops[1]
    assert (hop.counts.pending, hop.counts.lost) == (4, 2)
    assert [each.which for each in hop.findings] == ["4 to 5"]
    assert audited(bench, spark, f"parquet:{path}").hops[1].counts.lost == 6


def test_an_aborted_record_in_a_table_is_named(bench: Bench, spark: SparkSession, tmp_path: Path) -> None:
    bench.make(bench.topic)
    bench.make(bench.ledger)
    producer = bench.producer(**{"transactional.id": bench.topic})
    producer.init_transactions(30)
    for end in ("commit", "abort", "commit"):
        producer.begin_transaction()
        for sequence in range(3):
            bench.send(producer, bench.topic, 0, headers_of(A if end == "commit" else B, sequence))
        producer.flush()
        getattr(producer, f"{end}_transaction")(30)
    # Each transaction has three records and a marker; the second one's are aborted.
    path = str(tmp_path / "table")
    rows = [(0, offset) for offset in (0, 1, 2, 5, 6, 8, 9, 10, 100)]
    spark.createDataFrame(rows, "partition int, offset long").write.parquet(path)
    hop = audited(bench, spark, f"parquet:{path}").hops[1]
    (found,) = (each for each in hop.findings if each.fault is Fault.ABORTED)
    assert (found.source, found.partition, found.which) == ("b", 0, "1 to 2")
    assert (found.first_offset, found.last_offset, found.records) == (5, 6, 2)
    assert found.first_ms is not None
    assert hop.counts.aborted == 2


def test_an_aborted_record_in_another_topic_is_named(bench: Bench, spark: SparkSession) -> None:
    """By its identity: it is nowhere among the topic's committed records, and somewhere among the others."""
    bench.fill(Planted({0: [(A, 0), (A, 1)]}, [[(A, 0, 0, 1)]]))
    transact(bench, [(B, 0, 0), (B, 0, 1)], "abort")
    copy = f"{bench.topic}-copy"
    bench.make(copy)
    producer = bench.producer()
    stranger = source_header("elsewhere", b"12345678")
    for maker, number in ((A, 0), (A, 1), (B, 1), (stranger, 7)):
        bench.send(producer, copy, 0, headers_of(maker, number))
    producer.flush()
    hop = audited(bench, spark, f"kafka:{copy}").hops[1]
    assert [(each.fault, each.source, each.which, each.first_offset) for each in hop.findings] == [
        (Fault.ABORTED, "b", "1", 3)
    ]
    assert (hop.counts.promised, hop.counts.present, hop.counts.aborted) == (2, 2, 1)
    told = f"1 rows are of records that {bench.topic} does not hold any more, or that are left out"
    assert hop.notes == [told]


def test_what_a_sinks_topic_holds_only_in_an_aborted_transaction_is_torn(
    bench: Bench, spark: SparkSession
) -> None:
    bench.fill(Planted({0: [(A, n) for n in range(10)]}, [[(A, 0, 0, 9)]]))
    copy = Bench(spark, bench.bootstrap)
    copy.make(copy.topic, 2)
    transact(copy, [(A, n % 2, n) for n in range(4)], "commit")
    transact(copy, [(A, 0, 4), (A, 0, 5), (A, 0, 6)], "abort")
    transact(copy, [(A, 1, 6), (A, 1, 8), (A, 1, 9)], "commit")
    hop = audited(bench, spark, f"kafka:{copy.topic}").hops[1]
    assert {(each.fault, each.which) for each in hop.findings} == {(Fault.TORN, "4 to 5"), (Fault.LOST, "7")}
    assert (hop.counts.torn, hop.counts.lost) == (2, 1)


@pytest.mark.slow
def test_what_may_be_behind_an_open_transaction_of_a_sinks_topic_is_not_lost(
    bench: Bench, spark: SparkSession
) -> None:
    bench.fill(Planted({0: [(A, 0), (A, 1)]}, [[(A, 0, 0, 1)]]))
    copy = f"{bench.topic}-copy"
    bench.make(copy)
    producer = bench.producer()
    bench.send(producer, copy, 0, headers_of(A, 0))
    producer.flush()
    holding = bench.producer(**{"transactional.id": copy})
    holding.init_transactions(30)
    holding.begin_transaction()
    bench.send(holding, copy, 0, headers_of(B, 0))
    holding.flush()
    bench.send(producer, copy, 0, headers_of(A, 1))
    producer.flush()
    report = audited(bench, spark, f"kafka:{copy}")
    assert report.verdict is Verdict.UNKNOWN
    assert (report.hops[1].counts.hidden, report.hops[1].counts.lost) == (1, 0)
    assert "behind a transaction" in report.hops[1].doubts[0]
    holding.abort_transaction(30)
    assert audited(bench, spark, f"kafka:{copy}").verdict is Verdict.CLEAN


def test_a_row_of_a_record_that_expired_is_no_second_row_of_another(
    bench: Bench, spark: SparkSession
) -> None:
    """Each partition counts from 0, and the rows do not say of which they are."""
    bench.make(bench.topic, 2)
    bench.make(bench.ledger)
    producer = bench.producer()
    copy = f"{bench.topic}-copy"
    bench.make(copy)
    for partition in (0, 1):
        for number in range(6):
            bench.send(producer, bench.topic, partition, headers_of(A, number))
            bench.send(producer, copy, 0, headers_of(A, number))
    bench.send(producer, copy, 0, headers_of(A, 5))
    bench.seal(producer, [(A, 0, 0, 5), (A, 1, 0, 5)])
    producer.flush()
    bench.expire({0: 4})
    hop = audited(bench, spark, f"kafka:{copy}").hops[1]
    assert (hop.counts.duplicated, hop.counts.lost) == (1, 0)
    assert [each.which for each in hop.findings] == ["5"]


@pytest.mark.slow
def test_what_was_deleted_from_a_table_has_expired(bench: Bench, spark: SparkSession, tmp_path: Path) -> None:
    bench.make(bench.topic)
    bench.make(bench.ledger)
    producer, now_ms = bench.producer(), time.time_ns() // 1_000_000
    for number in range(10):
        headers, time_ms = headers_of(A, number), now_ms - (10 - number) * HOUR_MS
        producer.produce(bench.topic, b"x", partition=0, headers=headers, timestamp=time_ms)
    bench.seal(producer, [(A, 0, 0, 9)])
    producer.flush()
    path = str(tmp_path / "table")
    rows = records(bench, spark).select("partition", "offset")
    rows.filter("offset <> 7").write.format("delta").save(path)
    assert audited(bench, spark, f"delta:{path}").hops[1].counts.lost == 1
    DeltaTable.forPath(spark, path).delete("offset < 4")
    hop = audited(bench, spark, f"delta:{path}").hops[1]
    assert (hop.counts.expired, hop.counts.lost) == (4, 1)
    assert [each.which for each in hop.findings] == ["7"]
    assert not hop.doubts
    # A folder of files does not tell; but its owner may.
    rows.filter("offset > 4").write.parquet(path + "-files")
    assert audited(bench, spark, f"parquet:{path}-files").hops[1].counts.lost == 5
    hop = audited(bench, spark, f"parquet:{path}-files", Matching(kept_s=8.5 * 3600)).hops[1]
    assert (hop.counts.expired, hop.counts.lost) == (2, 3)
    DeltaTable.forPath(spark, path).delete("true")
    report = audited(bench, spark, f"delta:{path}")
    assert report.verdict is Verdict.UNKNOWN
    nothing, too_many = report.hops[1].doubts
    assert nothing == f"nothing is left in delta:{path} of what {bench.topic} holds"
    assert too_many.startswith("10 records are missing")
    assert too_many.endswith("of which 9 rows were taken at most")


def test_a_sink_that_does_not_tell_of_which_records_its_rows_are_is_refused(
    bench: Bench, spark: SparkSession, tmp_path: Path
) -> None:
    bench.fill(Planted({0: [(A, 0)]}, [[(A, 0, 0, 0)]]))
    path = str(tmp_path / "table")
    spark.createDataFrame([("x",)], "id string").write.parquet(path)
    with pytest.raises(UsageError, match=r"does not tell of which records.*--by"):
        audited(bench, spark, f"parquet:{path}")
    with pytest.raises(UsageError, match="cannot compare"):
        audited(bench, spark, f"parquet:{path}", Matching(by="nonsense("))
    with pytest.raises(UsageError, match="cannot read delta"):
        audited(bench, spark, f"delta:{path}")


def test_by_what_records_contain(bench: Bench, spark: SparkSession, tmp_path: Path) -> None:
    """Foreign records, without identity: by an expression of each side, some of them not wanted there."""
    bench.make(bench.topic, 2)
    bench.make(bench.ledger)
    producer = bench.producer()
    for number in range(100):
        producer.produce(bench.topic, b'{"id": %d}' % number, key=b"%d" % (number % 10), partition=number % 2)
    producer.flush()
    path = str(tmp_path / "table")
    ids = [*range(50, 77), 76, *range(80, 100)]
    spark.createDataFrame([(number,) for number in ids], "id int").write.parquet(path)
    by = "CAST(get_json_object(CAST(value AS STRING), '$.id') AS INT)"
    hop = audited(bench, spark, f"parquet:{path}", Matching(by, "id", where=f"{by} >= 50")).hops[1]
    assert (hop.counts.promised, hop.counts.lost, hop.counts.duplicated) == (50, 3, 1)
    assert sorted(
        (each.partition, each.first_offset) for each in hop.findings if each.fault is Fault.LOST
    ) == [
        (0, 39),
        (1, 38),
    ]
    # A sink with one row for each key.
    path = str(tmp_path / "latest")
    spark.createDataFrame([(b"%d" % key,) for key in range(9)], "key binary").write.parquet(path)
    hop = audited(bench, spark, f"parquet:{path}", Matching("key", one_per_key=True)).hops[1]
    assert (hop.counts.promised, hop.counts.present, hop.counts.lost) == (10, 9, 1)


def test_another_topic_is_a_sink(bench: Bench, spark: SparkSession) -> None:
    bench.fill(Planted({0: [(A, n) for n in range(10)]}, [[(A, 0, 0, 9)]]))
    copy = f"{bench.topic}-copy"
    bench.make(copy)
    producer = bench.producer()
    for number in (0, 1, 2, 3, 4, 6, 7, 8, 9, 9):
        bench.send(producer, copy, 0, headers_of(A, number))
    producer.flush()
    hop = audited(bench, spark, f"kafka:{copy}").hops[1]
    assert {(each.fault, each.which) for each in hop.findings} == {(Fault.LOST, "5"), (Fault.DUPLICATED, "9")}


@pytest.mark.slow
def test_each_of_several_equal_records_is_named_where_none_of_them_is_there(
    bench: Bench, spark: SparkSession
) -> None:
    """The same number is given in each partition, and rows of another topic do not tell theirs."""
    bench.fill(Planted({each: [(A, n) for n in range(5)] for each in range(3)}, [[(A, 0, 0, 4)]]))
    copy = f"{bench.topic}-copy"
    bench.make(copy)
    producer = bench.producer()
    for number, times in enumerate((3, 0, 2, 4, 3)):
        for _ in range(times):
            bench.send(producer, copy, 0, headers_of(A, number))
    producer.flush()
    hop = audited(bench, spark, f"kafka:{copy}").hops[1]
    told = [
        (each.fault, each.partition, each.which, each.records, each.first_offset) for each in hop.findings
    ]
    assert sorted(told) == [
        (Fault.DUPLICATED, -1, "3", 1, None),
        (Fault.LOST, -1, "2", 1, None),
        (Fault.LOST, 0, "1", 1, 1),
        (Fault.LOST, 1, "1", 1, 1),
        (Fault.LOST, 2, "1", 1, 1),
    ]
    assert (hop.counts.lost, hop.counts.duplicated, hop.unnamed_findings) == (4, 1, {})


@pytest.mark.slow
def test_of_equal_records_only_the_old_ones_have_expired(bench: Bench, spark: SparkSession) -> None:
    """Numbers 0 to 9 are hours old in partition 0, and new in partition 1. One of those is lost."""
    bench.make(bench.topic, 2)
    bench.make(bench.ledger)
    copy = f"{bench.topic}-copy"
    bench.make(copy)
    producer, now_ms = bench.producer(), time.time_ns() // 1_000_000
    # The new ones are at lower offsets than the old ones.
    producer.produce(bench.topic, b"first", partition=0, timestamp=now_ms - 4 * HOUR_MS)
    for partition, ago_ms in ((0, 3 * HOUR_MS), (1, 0)):
        for number in range(10):
            headers, time_ms = headers_of(A, number), now_ms - ago_ms + number
            producer.produce(bench.topic, b"x", partition=partition, headers=headers, timestamp=time_ms)
            if (partition, number) != (1, 7):
                producer.produce(copy, b"x", partition=0, headers=headers, timestamp=time_ms)
    bench.seal(producer, [(A, 0, 0, 9), (A, 1, 0, 9)])
    producer.flush()
    for answer in bench.admin.delete_records([Place(copy, 0, 10)]).values():
        answer.result(30)
    hop = audited(bench, spark, f"kafka:{copy}", Matching(where="value = 'x'")).hops[1]
    assert (hop.counts.expired, hop.counts.lost, hop.counts.present) == (10, 1, 9)
    assert [(each.partition, each.which, each.first_offset) for each in hop.findings] == [(1, "7", 7)]


def test_a_group_that_has_come_to_nothing_is_no_evidence(
    bench: Bench, spark: SparkSession, tmp_path: Path
) -> None:
    """It may be misspelled. All is pending then, and nothing lost."""
    bench.fill(Planted({0: [(A, 0), (A, 1)]}, [[(A, 0, 0, 1)]]))
    path = str(tmp_path / "table")
    records(bench, spark).filter("offset < 1").select("partition", "offset").write.parquet(path)
    report = audited(bench, spark, f"parquet:{path}", group="nobody")
    assert report.verdict is Verdict.UNKNOWN
    assert report.hops[1].doubts == [
        f"no record of {bench.topic} is due in parquet:{path} yet: the --group has come to none"
    ]


def test_names_of_sinks() -> None:
    assert SinkSpec.parse("delta:tables/a:b") == ("delta", "tables/a:b", None)
    spec = SinkSpec.parse("postgres:postgresql://me:secret@host/db#public.orders")
    assert (spec.where, spec.table) == ("postgresql://me:secret@host/db", "public.orders")
    assert "secret" not in str(spec)
    for wrong in ("orders", "delta:", "mysql:x", "postgres:postgresql://host/db"):
        with pytest.raises(UsageError):
            SinkSpec.parse(wrong)


def test_what_retention_took_from_a_topic_that_is_a_sink_is_not_lost(
    bench: Bench, spark: SparkSession
) -> None:
    bench.fill(Planted({0: [(A, n) for n in range(10)]}, [[(A, 0, 0, 9)]]))
    copy = f"{bench.topic}-copy"
    bench.make(copy)
    producer = bench.producer()
    for number in (0, 1, 2, 3, 4, 5, 7, 8, 9):
        bench.send(producer, copy, 0, headers_of(A, number))
    producer.flush()
    assert audited(bench, spark, f"kafka:{copy}").hops[1].counts.lost == 1
    for answer in bench.admin.delete_records([Place(copy, 0, 3)]).values():
        answer.result(30)
    report = audited(bench, spark, f"kafka:{copy}")
    hop = report.hops[1]
    # 6 is older than what is left there, so nobody can tell it from the others; but one of them is lost.
    assert (hop.counts.expired, hop.counts.lost, hop.counts.present) == (4, 0, 6)
    assert report.verdict is Verdict.UNKNOWN
    missing = f"4 records are missing that are older than what is left in kafka:{copy}"
    assert hop.doubts == [f"{missing}, of which 3 rows were taken at most"]
    # Unless somebody says that it keeps nothing so long.
    assert not audited(bench, spark, f"kafka:{copy}", Matching(kept_s=0)).hops[1].doubts
    later = bench.producer()
    bench.send(later, bench.topic, 0, headers_of(A, 10))
    later.flush()
    hop = audited(bench, spark, f"kafka:{copy}").hops[1]
    assert (hop.counts.expired, [each.which for each in hop.findings]) == (4, ["10"])


def test_what_retention_took_while_a_sink_was_compared_was_not_aborted(
    bench: Bench, spark: SparkSession, tmp_path: Path
) -> None:
    bench.fill(Planted({0: [(A, n) for n in range(10)]}, [[(A, 0, 0, 9)]]))
    rows = spark.createDataFrame([(0, offset) for offset in range(10)], "partition int, offset long")
    reader = Reader(spark, bench.bootstrap, client_properties())
    before = {0: Ends(0, 10, 10)}
    bench.expire({0: 5})
    stale = Topic(bench.topic, reader.records(bench.topic, before), before)
    sink = Sink("table", rows)
    assert judge_sink(stale, sink, Matching()).counts.aborted == 5
    hop = judge_sink(stale._replace(earliest_now=lambda: {0: 5}), sink, Matching())
    assert (hop.counts.aborted, hop.findings, hop.counts.present) == (0, [], 5)


def test_records_that_cannot_be_compared_are_not_present(bench: Bench, spark: SparkSession) -> None:
    bench.fill(Planted({0: [(A, 0)]}, [[(A, 0, 0, 0)]]))
    producer = bench.producer()
    bench.send(producer, bench.topic, 0, [])
    producer.flush()
    copy = f"{bench.topic}-copy"
    bench.make(copy)
    bench.send(producer, copy, 0, headers_of(A, 0))
    producer.flush()
    report = audited(bench, spark, f"kafka:{copy}")
    assert report.hops[1].counts.present == 1
    assert report.hops[1].doubts == [f"1 records of {bench.topic} have nothing to be compared by"]
    assert report.verdict is Verdict.UNKNOWN
