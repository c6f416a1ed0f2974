"""Sinks that are watched: what is lost or doubled is told at the next look, and little is remembered."""

from __future__ import annotations

import gc
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition as Place
from delta.tables import DeltaTable

from gapless.audit import Fault, Hop, Verdict, following
from gapless.audit.auditing import Auditor, audit
from gapless.audit.carried import Matching
from gapless.audit.following import Follower
from gapless.audit.tables import SinkSpec, jdbc_options
from gapless.errors import Unreachable, UsageError
from gapless.pipeline.lag import SourceGroup
from gapless.pipeline.progress import TopicPartition
from tests.audit.planting import Name, Planted, Record, clean
from tests.audit.test_audit import A, B, Bench, fail, headers_of, transact
from tests.audit.test_judging import named

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)


_followers: list[Follower] = []


@pytest.fixture
def bench(spark: SparkSession, bootstrap: str) -> Iterator[Bench]:
    yield Bench(spark, bootstrap)
    while _followers:
        with _followers.pop():
            pass


class Carrier:
    """Who carries a topic's records to a sink, and commits how far it came."""

    def __init__(
        self, bench: Bench, sink: str, write: Callable[[list[tuple[int, int, Record]]], None]
    ) -> None:
        self.bench = bench
        self.sink = sink
        self.write = write
        self.name = f"carrier-{bench.topic}"
        self._group = SourceGroup({"bootstrap.servers": bench.bootstrap}, self.name, [bench.topic])

    def carried_to(self, ends: dict[int, int]) -> None:
        self._group.commit({TopicPartition(self.bench.topic, each): end for each, end in ends.items()})

    def follower(self, matching: Matching | None = None) -> Follower:
        bench = self.bench
        auditor = Auditor(bench.spark, bench.bootstrap, bench.topic, ledger=bench.ledger)
        specs = [SinkSpec.parse(self.sink)]
        _followers.append(Follower(auditor, specs, matching or Matching(), group=self.name))
        return _followers[-1]


def to_topic(bench: Bench) -> Carrier:
    """By identity, without the partition: as a pipeline does that shares records out by key."""
    copy, producer = f"{bench.topic}-copy", bench.producer()
    bench.make(copy, 2)

    def write(rows: list[tuple[int, int, Record]]) -> None:
        for partition, offset, record in rows:
            bench.send(producer, copy, (partition + offset) % 2, headers_of(*record))
        producer.flush()

    return Carrier(bench, f"kafka:{copy}", write)


def to_files(bench: Bench, kind: str, path: Path) -> Carrier:
    """By offset."""

    def write(rows: list[tuple[int, int, Record]]) -> None:
        table = bench.spark.createDataFrame([row[:2] for row in rows], "partition int, offset long")
        table.coalesce(1).write.format(kind).mode("append").save(str(path))

    return Carrier(bench, f"{kind}:{path}", write)


def to_database(bench: Bench, dsn: str) -> Carrier:
    spec = SinkSpec.parse(f"postgres:{dsn}#{bench.topic.replace('-', '_')}")

    def write(rows: list[tuple[int, int, Record]]) -> None:
        told = [(bench.topic, *row[:2]) for row in rows]
        table = bench.spark.createDataFrame(told, "topic string, partition int, offset long")
        table.write.format("jdbc").options(**jdbc_options(spec)).mode("append").save()

    return Carrier(bench, f"postgres:{dsn}#{spec.table}", write)


def carrier_to(kind: str, bench: Bench, tmp_path: Path, request: pytest.FixtureRequest) -> Carrier:
    if kind == "kafka":
        return to_topic(bench)
    if kind == "postgres":
        return to_database(bench, request.getfixturevalue("dsn"))
    return to_files(bench, kind, tmp_path / "table")


def remembered(follower: Follower) -> int:
    """How many intervals are kept of a sink."""
    return len(follower._sinks[0]._there.keys)


@pytest.mark.slow_variants("parquet", "postgres")
@pytest.mark.parametrize("kind", ["kafka", "delta", "parquet", "postgres"])
def test_losses_and_doubles_are_told_at_the_first_look_after_they_are_due(
    bench: Bench, tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    random = Random(kind)
    # Records of another topic do not tell of which partition they were.
    planted = clean(random, 4, 1 if kind == "kafka" else 2, 600)
    bench.fill(planted)
    carrier = carrier_to(kind, bench, tmp_path, request)
    follower, hop = None, Hop("none")
    expected: dict[Fault, Counter[Name]] = {fault: Counter() for fault in Fault}
    rows = {each: [(each, at, record) for at, record in enumerate(log)] for each, log in planted.logs.items()}
    for step, faults in enumerate([0, 2, 0, 3]):
        ends = {each: len(log) * (step + 1) // 4 for each, log in planted.logs.items()}
        new = [row for each, log in rows.items() for row in log[len(log) * step // 4 : ends[each]]]
        chosen = random.sample(range(len(new)), 2 * faults)
        for at in chosen:
            partition, _, (maker, sequence) = new[at]
            fault = Fault.LOST if at in chosen[:faults] else Fault.DUPLICATED
            expected[fault][maker, partition, sequence] += 1
        written = [row for at, row in enumerate(new) if at not in chosen[:faults]]
        # Some rows are ahead of what the group says, as they are while a batch is under way.
        carrier.write([*written, *(new[at] for at in chosen[faults:])])
        carrier.carried_to(ends)
        follower = follower or carrier.follower()
        report = follower.look()
        hop = report.hops[1]
        assert named(hop) == expected
        assert hop.counts.lost + hop.counts.present == sum(ends.values())
        assert hop.counts.pending == 600 - sum(ends.values())
        assert report.verdict is (Verdict.FINDINGS if step else Verdict.CLEAN)
    assert follower is not None
    # Eight streams, and each fault cuts one of them at most twice.
    assert remembered(follower) <= 8 + 2 * 10
    at_once = audit(
        bench.spark,
        bench.bootstrap,
        bench.topic,
        ledger=bench.ledger,
        sinks=[SinkSpec.parse(carrier.sink)],
        group=carrier.name,
    ).hops[1]
    assert named(at_once) == expected
    assert at_once.counts == hop.counts
    assert {str(each) for each in hop.findings} == {str(each) for each in at_once.findings}


def filled(bench: Bench, count: int) -> list[tuple[int, int, Record]]:
    """So many records of one source in one partition, and rows for them."""
    bench.fill(Planted({0: [(A, n) for n in range(count)]}, [[(A, 0, 0, count - 1)]]))
    return [(0, n, (A, n)) for n in range(count)]


def test_where_rows_do_not_tell_the_partition_a_double_is_told_when_all_of_its_number_are_due(
    bench: Bench,
) -> None:
    """Each partition has a record 0: until both are due, a second row may be the other one's."""
    bench.fill(Planted({0: [(A, 0)], 1: [(A, 0)]}, [[(A, 0, 0, 0), (A, 1, 0, 0)]]))
    carrier = to_topic(bench)
    carrier.write([(0, 0, (A, 0)), (0, 0, (A, 0))])
    carrier.carried_to({0: 1, 1: 0})
    follower = carrier.follower()
    assert follower.look().hops[1].counts.faults == 0
    carrier.write([(1, 0, (A, 0))])
    carrier.carried_to({0: 1, 1: 1})
    hop = follower.look().hops[1]
    assert [(each.fault, each.which, each.partition) for each in hop.findings] == [
        (Fault.DUPLICATED, "0", -1)
    ]


def test_a_record_that_comes_late_is_not_lost_any_more(bench: Bench) -> None:
    rows, carrier = filled(bench, 10), to_topic(bench)
    carrier.write([row for row in rows if row[1] not in (4, 5)])
    carrier.carried_to({0: 10})
    follower = carrier.follower()
    hop = follower.look().hops[1]
    assert [(each.fault, each.which, each.first_offset, each.last_offset) for each in hop.findings] == [
        (Fault.LOST, "4 to 5", 4, 5)
    ]
    assert hop.findings[0].first_ms is not None
    carrier.write(rows[4:5])
    assert [each.which for each in follower.look().hops[1].findings] == ["5"]
    carrier.write(rows[5:6])
    assert follower.look().verdict is Verdict.CLEAN
    assert remembered(follower) == 1


def test_a_look_that_fails_in_the_middle_counts_nothing_twice(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, carrier = filled(bench, 10), to_topic(bench)
    carrier.write(rows)
    carrier.carried_to({0: 10})
    follower = carrier.follower()
    with monkeypatch.context() as patched:
        patched.setattr(following, "held_too", fail)
        with pytest.raises(Unreachable):
            follower.look()
    report = follower.look()
    assert (report.verdict, report.hops[1].counts.present) == (Verdict.CLEAN, 10)


@pytest.mark.slow
def test_records_that_a_sink_need_not_have_leave_no_gaps(bench: Bench) -> None:
    rows, carrier = filled(bench, 100), to_topic(bench)
    carrier.write([row for row in rows if row[1] % 2 == 0 and row[1] != 40])
    carrier.carried_to({0: 100})
    follower = carrier.follower(Matching(where="offset % 2 = 0"))
    hop = follower.look().hops[1]
    assert (hop.counts.promised, hop.counts.present, hop.counts.lost) == (50, 49, 1)
    assert [each.which for each in hop.findings] == ["40"]
    assert remembered(follower) == 2


@pytest.mark.parametrize("where", ["nosuch > 1", "key =", "key", "1 = 1; DROP TABLE x"])
def test_a_condition_that_cannot_be_is_refused_before_the_first_look(bench: Bench, where: str) -> None:
    filled(bench, 1)
    with pytest.raises(UsageError, match="--where does not say of each record"):
        to_topic(bench).follower(Matching(where=where))


@pytest.mark.slow
def test_a_condition_that_a_record_defies_ends_the_watch(bench: Bench) -> None:
    rows, carrier = filled(bench, 10), to_topic(bench)
    carrier.write(rows)
    follower = carrier.follower(Matching(where="CAST(CAST(value AS STRING) AS INT) > 0"))
    follower.look()
    carrier.carried_to({0: 10})
    for _ in range(2):
        with pytest.raises(UsageError, match=r"--where does not say .*: .* cannot be cast"):
            follower.look()


def test_without_a_group_records_are_given_time(bench: Bench) -> None:
    rows, carrier = filled(bench, 10), to_topic(bench)
    carrier.write(rows[:9])
    auditor = Auditor(bench.spark, bench.bootstrap, bench.topic, ledger=bench.ledger)
    patient = Follower(auditor, [SinkSpec.parse(carrier.sink)], Matching(), grace_s=3600)
    for _ in range(2):
        report = patient.look()
        assert report.verdict is Verdict.UNKNOWN
        assert report.hops[1].doubts == [f"no record of {bench.topic} is due in {carrier.sink} yet"]
        assert (report.hops[1].counts.pending, report.hops[1].counts.lost) == (1, 0)
    strict = Follower(auditor, [SinkSpec.parse(carrier.sink)], Matching(), grace_s=0)
    strict.look()
    assert [each.which for each in strict.look().hops[1].findings] == ["9"]


def test_a_table_from_which_rows_are_deleted_is_read_again(bench: Bench, tmp_path: Path) -> None:
    rows, carrier = filled(bench, 10), to_files(bench, "delta", tmp_path / "table")
    carrier.write(rows)
    carrier.carried_to({0: 10})
    follower = carrier.follower()
    assert follower.look().verdict is Verdict.CLEAN
    DeltaTable.forPath(bench.spark, str(tmp_path / "table")).delete("offset = 6")
    assert [each.which for each in follower.look().hops[1].findings] == ["6"]
    DeltaTable.forPath(bench.spark, str(tmp_path / "table")).delete("offset < 3")
    hop = follower.look().hops[1]
    assert [each.which for each in hop.findings] == ["6"]
    assert hop.counts.expired == 3


@pytest.mark.slow
def test_of_a_source_whose_rows_were_all_deleted_from_a_table_the_old_ones_have_expired(
    bench: Bench, tmp_path: Path
) -> None:
    bench.make(bench.topic)
    bench.make(bench.ledger)
    producer, now_ms = bench.producer(), time.time_ns() // 1_000_000
    records = [(B, 0), (B, 1), *((A, number) for number in range(5))]
    for maker, number in records:
        time_ms = now_ms - (3_600_000 if maker is B else 0)
        headers = headers_of(maker, number)
        producer.produce(bench.topic, b"x", partition=0, headers=headers, timestamp=time_ms)
    bench.seal(producer, [(A, 0, 0, 4)])
    bench.seal(producer, [(B, 0, 0, 1)])
    producer.flush()
    path = str(tmp_path / "table")
    carrier = to_files(bench, "delta", tmp_path / "table")
    carrier.write([(0, at, record) for at, record in enumerate(records) if record != (A, 3)])
    carrier.carried_to({0: 7})
    DeltaTable.forPath(bench.spark, path).delete("offset < 3")
    follower = carrier.follower()
    hop = follower.look().hops[1]
    assert (hop.counts.expired, [(each.source, each.which) for each in hop.findings]) == (3, [("a", "3")])
    DeltaTable.forPath(bench.spark, path).delete("true")
    report = follower.look()
    assert report.verdict is Verdict.UNKNOWN
    nothing, too_many = report.hops[1].doubts
    assert nothing == f"nothing is left in {carrier.sink} of what {bench.topic} holds"
    # One of them was never written.
    assert too_many.startswith("7 records are missing")
    assert too_many.endswith("of which 6 rows were taken at most")


def test_where_rows_do_not_tell_the_partition_each_is_named_if_all_of_its_number_are_lost(
    bench: Bench,
) -> None:
    """And only as many have expired as are old."""
    bench.make(bench.topic, 2)
    bench.make(bench.ledger)
    producer, now_ms = bench.producer(), time.time_ns() // 1_000_000
    for partition, number in ((each, number) for each in (0, 1) for number in range(5)):
        time_ms = now_ms - (3_600_000 if partition == 0 and number < 2 else 0)
        headers = headers_of(A, number)
        producer.produce(bench.topic, b"x", partition=partition, headers=headers, timestamp=time_ms)
    bench.seal(producer, [(A, 0, 0, 4), (A, 1, 0, 4)])
    producer.flush()
    carrier = to_topic(bench)
    # Number 1 is old in one partition only, 2 is in neither, 3 in one of them.
    carrier.write([(0, 0, (A, number)) for number in (0, 3, 4, 4)])
    carrier.carried_to({0: 5, 1: 5})
    hop = carrier.follower(Matching(kept_s=60)).look().hops[1]
    assert not hop.doubts
    told = [
        (each.which, each.partition, each.first_offset, each.records)
        for each in hop.findings
        if each.fault is Fault.LOST
    ]
    assert sorted(told) == [("1", -1, None, 1), ("2", 0, 2, 1), ("2", 1, 2, 1), ("3", -1, None, 1)]
    assert (hop.counts.expired, hop.counts.lost, hop.counts.duplicated) == (2, 4, 0)


def test_rows_that_a_database_loses_or_gets_again_later_are_noticed(bench: Bench, dsn: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    rows, carrier = filled(bench, 10), to_database(bench, dsn)
    carrier.write(rows)
    carrier.carried_to({0: 10})
    follower = carrier.follower()
    assert follower.look().verdict is Verdict.CLEAN
    carrier.write(rows[2:3])
    assert [(each.fault, each.which) for each in follower.look().hops[1].findings] == [
        (Fault.DUPLICATED, "2")
    ]
    table = SinkSpec.parse(carrier.sink).table
    with psycopg.connect(dsn) as connection:
        connection.execute(f'DELETE FROM {table} WHERE "offset" = 7')
    assert {(each.fault, each.which) for each in follower.look().hops[1].findings} == {
        (Fault.DUPLICATED, "2"),
        (Fault.LOST, "7"),
    }


def test_what_a_topics_retention_took_before_the_watch_began_has_expired(bench: Bench) -> None:
    rows, carrier = filled(bench, 10), to_topic(bench)
    carrier.write(rows)
    carrier.carried_to({0: 10})
    copy = carrier.sink.removeprefix("kafka:")
    for answer in bench.admin.delete_records([Place(copy, 0, 2), Place(copy, 1, 2)]).values():
        answer.result(30)
    follower = carrier.follower()
    hop = follower.look().hops[1]
    assert (hop.counts.expired, hop.counts.lost) == (4, 0)
    # What is taken after it was seen was there.
    for answer in bench.admin.delete_records([Place(copy, 0, 4)]).values():
        answer.result(30)
    hop = follower.look().hops[1]
    assert (hop.counts.expired, hop.counts.lost) == (4, 0)


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_nothing_refers_to_a_closed_follower_of_a_table(bench: Bench, tmp_path: Path, kind: str) -> None:
    """Its clients of the cluster are open for as long as something does."""
    rows, carrier = filled(bench, 3), to_files(bench, kind, tmp_path / "table")
    carrier.write(rows)
    carrier.carried_to({0: 3})
    with carrier.follower() as follower:
        assert follower.look().verdict is Verdict.CLEAN
    sink = weakref.ref(follower._sinks[0])
    _followers.clear()
    del follower
    gc.collect()
    assert sink() is None


def test_rows_of_aborted_records_are_named(bench: Bench, tmp_path: Path) -> None:
    filled(bench, 3)
    transact(bench, [(B, 0, 0), (B, 0, 1)], "abort")
    carrier = to_files(bench, "parquet", tmp_path / "table")
    carrier.write([(0, offset, (A, offset)) for offset in (0, 1, 2, 4)])
    carrier.carried_to({0: 3})
    hop = carrier.follower().look().hops[1]
    assert [(each.fault, each.source, each.which, each.first_offset) for each in hop.findings] == [
        (Fault.ABORTED, "b", "1", 4)
    ]


def test_what_cannot_be_remembered_in_a_few_intervals_is_refused(bench: Bench, dsn: str) -> None:
    filled(bench, 1)
    carrier = to_topic(bench)
    with pytest.raises(UsageError, match=r"by offset or identity, and not by key"):
        carrier.follower(Matching(by="key"))
    table = f"{bench.topic}_values".replace("-", "_")
    spec = SinkSpec.parse(f"postgres:{dsn}#{table}")
    frame = bench.spark.createDataFrame([("x",)], "value string")
    frame.write.format("jdbc").options(**jdbc_options(spec)).save()
    with pytest.raises(UsageError, match="cannot be watched: a database does not tell what is new"):
        Carrier(bench, f"postgres:{dsn}#{table}", lambda _: None).follower()
