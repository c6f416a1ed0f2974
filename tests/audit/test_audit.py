"""The audit as a whole, by Spark: on topics with planted faults, and on what clusters do by themselves."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import PySparkException

from gapless import Producer
from gapless.audit import Fault, Report, Verdict
from gapless.audit.auditing import Auditor, audit
from gapless.audit.cluster import Cluster
from gapless.client.formats import (
    SEQUENCE_HEADER,
    SOURCE_HEADER,
    Interval,
    Seal,
    sequence_header,
    source_header,
)
from gapless.errors import Unreachable, UsageError
from tests.audit.planting import EDITS, HARMLESS, Planted, clean, plant
from tests.audit.test_judging import named

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

A, B = (source_header(name, name.encode() * 8) for name in "ab")
_numbers = itertools.count()
Headers = list[tuple[str, str | bytes | None]]


class Bench:
    """Topics and ledgers of one test."""

    def __init__(self, spark: SparkSession, bootstrap: str) -> None:
        number = next(_numbers)
        self.topic, self.ledger = f"audited-{number}", f"ledger-{number}"
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.spark = spark

    def make(self, topic: str, partitions: int = 1, **config: str) -> None:
        config = {name.replace("_", "."): value for name, value in config.items()}
        self.admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(30)

    def fill(self, planted: Planted, **config: str) -> None:
        """Bring about what was planned."""
        self.make(self.topic, len(planted.logs), **config)
        self.make(self.ledger)
        with_start = {each: [None] * planted.earliest.get(each, 0) for each in planted.logs}
        producer = self.producer()
        for partition, log in planted.logs.items():
            for record in [*with_start[partition], *log]:
                headers: Headers = [] if record is None else headers_of(*record)
                self.send(producer, self.topic, partition, headers)
        for seal in planted.seals:
            self.seal(producer, seal)
        assert producer.flush(30) == 0
        if any(planted.aborted.values()):
            every = ((maker, each, n) for each, log in planted.aborted.items() for maker, n in log)
            transact(self, every, "abort")
        self.expire(planted.earliest)

    def producer(self, **config: object) -> confluent_kafka.Producer:
        return confluent_kafka.Producer(
            {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, **config}
        )

    def send(
        self,
        producer: confluent_kafka.Producer,
        topic: str,
        partition: int,
        headers: Headers,
        key: bytes | None = None,
    ) -> None:
        while True:
            try:
                producer.produce(topic, b"value", key=key, partition=partition, headers=headers)
                return
            except BufferError:
                producer.poll(0.1)

    def seal(
        self,
        producer: confluent_kafka.Producer,
        intervals: Iterable[tuple[bytes, int, int, int]],
        time_ms: int | None = None,
    ) -> None:
        rows = list(intervals)
        maker = rows[0][0]
        told = tuple(Interval(self.topic, *row[1:]) for row in rows)
        sealed_at_ms = time_ms or time.time_ns() // 1_000_000
        seal = Seal(maker[9:].decode(), maker[1:9], sealed_at_ms, "interval", told, {})
        producer.produce(self.ledger, seal.to_bytes(), key=seal.key())

    def expire(self, earliest: dict[int, int]) -> None:
        places = [TopicPartition(self.topic, each, offset) for each, offset in earliest.items()]
        if places:
            for answer in self.admin.delete_records(places).values():
                answer.result(30)

    def audit(self) -> Report:
        return audit(self.spark, self.bootstrap, self.topic, ledger=self.ledger)


def headers_of(maker: bytes, sequence: int) -> Headers:
    return [(SOURCE_HEADER, maker), (SEQUENCE_HEADER, sequence_header(sequence))]


@pytest.fixture
def bench(spark: SparkSession, bootstrap: str) -> Bench:
    return Bench(spark, bootstrap)


@pytest.mark.parametrize("seed", range(3))
def test_hundreds_of_planted_faults_are_named_one_by_one(bench: Bench, seed: int) -> None:
    random = Random(seed)
    planted = plant(clean(random, 40, 3, 20_000), random, 3, ["drop source"])
    plant(planted, random, 700, [*["drop", "repeat", "swap"] * 5, *sorted(EDITS.keys() - {"drop source"})])
    bench.fill(planted)
    report = bench.audit()
    (hop,) = report.hops
    assert named(hop) == planted.expected
    assert hop.counts.promised == len(planted.promised)
    assert hop.counts.unpromised == planted.unpromised
    assert report.verdict is Verdict.FINDINGS
    assert sum(sum(found.values()) for found in planted.expected.values()) > 700


@pytest.mark.parametrize("seed", range(2))
def test_a_clean_topic_is_clean(bench: Bench, seed: int) -> None:
    random = Random(seed)
    planted = plant(clean(random, 20, 3, 5000), random, 30, HARMLESS)
    bench.fill(planted)
    report = bench.audit()
    assert (report.verdict, report.hops[0].findings, report.hops[0].doubts) == (Verdict.CLEAN, [], [])
    assert report.hops[0].counts.expired > 0


@pytest.mark.parametrize("semantics", ["at-least-once", "exactly-once"])
def test_what_a_producer_sends_is_clean_and_what_waits_is_pending(
    bench: Bench, semantics: str, tmp_path: Path
) -> None:
    bench.make(bench.topic, 2)
    with Producer(bench.bootstrap, f"app-{bench.topic}", semantics, spool=tmp_path / "spool") as producer:
        for number in range(1000):
            producer.send(bench.topic, b"%d" % number, key=b"%d" % (number % 7))
    bench.ledger = "gapless.ledger"
    report = bench.audit()
    (hop,) = report.hops
    assert report.verdict is Verdict.CLEAN
    assert (hop.counts.promised, hop.counts.present, hop.counts.unpromised) == (1000, 1000, 0)


def test_aborted_records_are_not_there_and_markers_are_no_gap(bench: Bench) -> None:
    bench.make(bench.topic)
    bench.make(bench.ledger)
    producer = bench.producer(**{"transactional.id": bench.topic})
    producer.init_transactions(30)
    # The second transaction is aborted; the third sends its records once more.
    for first, end in ((0, "commit"), (10, "abort"), (10, "commit")):
        producer.begin_transaction()
        for sequence in range(first, first + 10):
            bench.send(producer, bench.topic, 0, headers_of(A, sequence))
        producer.flush()
        getattr(producer, f"{end}_transaction")(30)
    sealer = bench.producer()
    bench.seal(sealer, [(A, 0, 0, 19)])
    sealer.flush()
    report = bench.audit()
    assert report.verdict is Verdict.CLEAN
    assert report.hops[0].counts.present == 20


def transact(bench: Bench, records: Iterable[tuple[bytes, int, int]], end: str) -> None:
    """Maker, partition and sequence of each, in one transaction that is committed or aborted."""
    producer = bench.producer(**{"transactional.id": bench.topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for maker, partition, sequence in records:
        bench.send(producer, bench.topic, partition, headers_of(maker, sequence), b"%d" % sequence)
    producer.flush()
    getattr(producer, f"{end}_transaction")(30)


def test_what_was_promised_and_aborted_in_one_partition_is_torn(bench: Bench) -> None:
    """Committed for its producer, and in partition 0; in partition 1 it ended the other way, but for two
    records that were lost on top of it."""
    bench.make(bench.topic, 2)
    bench.make(bench.ledger)
    transact(bench, [(A, each, n) for each in (0, 1) for n in range(5)], "commit")
    transact(bench, [(A, 0, n) for n in range(5, 10)], "commit")
    transact(bench, [(A, 1, n) for n in (5, 6, 8)], "abort")
    transact(bench, [(A, 1, 10), (B, 1, 0)], "commit")
    transact(bench, [(B, 1, 1)], "abort")  # nobody promised it
    sealer = bench.producer()
    bench.seal(sealer, [(A, 0, 0, 9), (A, 1, 0, 10)])
    bench.seal(sealer, [(B, 1, 0, 0)])
    sealer.flush()
    report = bench.audit()
    (hop,) = report.hops
    assert report.verdict is Verdict.FINDINGS
    assert {(each.fault, each.partition, each.which, each.first_offset) for each in hop.findings} == {
        (Fault.TORN, 1, "5 to 6", 6),  # five records and the marker before them
        (Fault.TORN, 1, "8", 8),
        (Fault.LOST, 1, "7", 4),
        (Fault.LOST, 1, "9", 4),
    }
    assert (hop.counts.torn, hop.counts.lost, hop.counts.present) == (3, 2, 17)
    torn = next(each for each in hop.findings if each.which == "5 to 6")
    assert torn.first_ms is not None
    assert f"torn: a (61616161) {bench.topic}-1 5 to 6, aborted at offsets 6 to 7, " in str(torn)


def test_an_attempt_that_was_aborted_does_not_make_a_loss_of_what_came_again(bench: Bench) -> None:
    """Beside a real loss: only what nobody can read is torn."""
    bench.make(bench.topic)
    bench.make(bench.ledger)
    transact(bench, [(A, 0, n) for n in range(10)], "abort")
    transact(bench, [(A, 0, n) for n in range(9)], "commit")
    transact(bench, [(A, 0, 11)], "commit")
    sealer = bench.producer()
    bench.seal(sealer, [(A, 0, 0, 11)])
    sealer.flush()
    (hop,) = bench.audit().hops
    assert {(each.fault, each.which) for each in hop.findings} == {(Fault.TORN, "9"), (Fault.LOST, "10")}


def test_what_is_behind_an_open_transaction_is_neither_lost_nor_clean(bench: Bench) -> None:
    bench.make(bench.topic)
    bench.make(bench.ledger)
    producer = bench.producer()
    bench.send(producer, bench.topic, 0, headers_of(A, 0))
    producer.flush()
    holding = bench.producer(**{"transactional.id": bench.topic})
    holding.init_transactions(30)
    holding.begin_transaction()
    bench.send(holding, bench.topic, 0, headers_of(B, 0))
    holding.flush()
    bench.send(producer, bench.topic, 0, headers_of(A, 1))
    bench.seal(producer, [(A, 0, 0, 1)])
    producer.flush()
    report = bench.audit()
    assert report.verdict is Verdict.UNKNOWN
    assert (report.hops[0].counts.hidden, report.hops[0].counts.lost) == (1, 0)
    holding.abort_transaction(30)
    assert bench.audit().verdict is Verdict.CLEAN


def test_without_a_ledger_or_with_seals_of_another_version_nobody_can_tell(bench: Bench) -> None:
    bench.make(bench.topic)
    report = bench.audit()
    assert report.verdict is Verdict.UNKNOWN
    assert "there is no ledger" in report.hops[0].doubts[0]
    bench.make(bench.ledger)
    producer = bench.producer()
    bench.send(producer, bench.topic, 0, headers_of(A, 0))
    bench.seal(producer, [(A, 0, 0, 0)])
    for strange in (b'{"version": 2}', b"not JSON", b"\xff", b"[]", b'{"version": 1, "source": "a"}'):
        producer.produce(bench.ledger, strange)
    producer.flush()
    report = bench.audit()
    assert report.verdict is Verdict.UNKNOWN
    assert report.hops[0].doubts == ["5 records of the ledger cannot be read as seals"]


def test_records_without_identity_are_counted(bench: Bench) -> None:
    planted = Planted({0: [(A, 0)]}, [[(A, 0, 0, 0)]])
    bench.fill(planted)
    producer = bench.producer()
    strange: list[Headers] = [[], [(SOURCE_HEADER, A)], headers_of(b"\x02" + A[1:], 0)]
    for headers in strange:
        bench.send(producer, bench.topic, 0, headers)
    producer.flush()
    report = bench.audit()
    assert report.verdict is Verdict.CLEAN
    assert report.hops[0].without_identity == 3


def test_where_no_record_has_an_identity_the_way_out_is_said(bench: Bench) -> None:
    bench.make(bench.topic)
    bench.make(bench.ledger)
    producer = bench.producer()
    bench.send(producer, bench.topic, 0, [])
    producer.flush()
    (hop,) = bench.audit().hops
    (doubt,) = hop.doubts
    assert doubt == (
        f"no seal of the ledger promises a record of {bench.topic}: "
        "see --foreign, for records without an identity"
    )


def test_compaction_is_no_loss(bench: Bench) -> None:
    bench.make(
        bench.topic,
        1,
        cleanup_policy="compact",
        segment_bytes="20000",
        min_cleanable_dirty_ratio="0.01",
    )
    bench.make(bench.ledger)
    producer = bench.producer()
    for sequence in range(3000):
        bench.send(producer, bench.topic, 0, headers_of(A, sequence), key=b"%d" % (sequence % 50))
        if sequence % 300 == 0:
            producer.flush()  # a batch for each segment: the last one is never compacted
    bench.seal(producer, [(A, 0, 0, 2999)])
    producer.flush()
    deadline_s = time.monotonic() + 60
    while (report := bench.audit()).hops[0].counts.present == 3000 and time.monotonic() < deadline_s:
        time.sleep(1)
    assert report.verdict is Verdict.CLEAN
    assert report.hops[0].counts.compacted + report.hops[0].counts.present == 3000
    assert report.hops[0].counts.compacted > 0


def test_the_ends_of_transactions_excuse_no_loss_in_a_compacted_topic(bench: Bench) -> None:
    bench.make(bench.topic, cleanup_policy="compact")
    bench.make(bench.ledger)
    sealer = bench.producer()
    for number in range(4):
        if number != 2:
            transact(bench, [(A, 0, number)], "commit")
    bench.seal(sealer, [(A, 0, 0, 1)])
    sealer.flush()
    assert bench.audit().hops[0].counts.compacted == 0
    assert bench.audit().verdict is Verdict.CLEAN
    bench.seal(sealer, [(A, 0, 2, 3)])
    sealer.flush()
    report = bench.audit()
    assert (report.verdict, report.hops[0].counts.compacted) == (Verdict.UNKNOWN, 1)
    assert "1 records are missing" in report.hops[0].doubts[0]


def test_a_cluster_that_dies_while_it_is_read_is_unreachable(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever watches goes on when it is back."""
    bench.fill(Planted({0: [(A, 0)]}, [[(A, 0, 0, 0)]]))
    auditor = Auditor(bench.spark, bench.bootstrap, bench.topic, ledger=bench.ledger)
    with monkeypatch.context() as patched:
        patched.setattr(auditor.reader, "held", fail)
        with pytest.raises(Unreachable, match=f"cannot read {bench.topic} at"):
            auditor.look()
    assert auditor.look().verdict is Verdict.CLEAN


def fail(*_: object) -> None:
    raise PySparkException("the broker is gone")


def test_a_topic_that_does_not_exist_is_refused(bench: Bench) -> None:
    with pytest.raises(UsageError, match="there is no topic"):
        bench.audit()


def test_lost_records_are_named_with_their_fault(bench: Bench) -> None:
    bench.fill(Planted({0: [(A, 0), (A, 3)], 1: [(B, 0), (B, 0)]}, [[(A, 0, 0, 3)], [(B, 1, 0, 0)]]))
    found = {(each.fault, each.source, each.partition, each.which) for each in bench.audit().hops[0].findings}
    assert found == {(Fault.LOST, "a", 0, "1 to 2"), (Fault.DUPLICATED, "b", 1, "0")}


def test_records_are_told_by_time(bench: Bench) -> None:
    bench.fill(
        Planted({0: [(A, 0), (A, 1), (B, 0)], 1: [(A, 0)]}, [[(A, 0, 0, 1), (A, 1, 0, 0)], [(B, 0, 0, 0)]])
    )
    (hop,) = bench.audit().hops
    told = hop.timeline
    assert {source: sum(slots.values()) for source, slots in told.promised.items()} == {"a": 3, "b": 1}
    assert {source: sum(slots.values()) for source, slots in told.present.items()} == {"a": 3, "b": 1}
    now_ms = time.time_ns() // 1_000_000
    for slots in (*told.promised.values(), *told.present.values()):
        assert all(begins % told.width_ms == 0 and 0 <= now_ms - begins < 60_000 for begins in slots)
    assert hop.offsets == {0: (0, 3), 1: (0, 1)}


def test_a_second_look_reads_only_what_is_new(bench: Bench) -> None:
    bench.make(bench.topic)
    bench.make(bench.ledger)
    auditor = Auditor(bench.spark, bench.bootstrap, bench.topic, ledger=bench.ledger)
    producer = bench.producer()
    for sequence in range(10):
        bench.send(producer, bench.topic, 0, headers_of(A, sequence))
    bench.seal(producer, [(A, 0, 0, 9)])
    producer.flush()
    assert auditor.look().verdict is Verdict.CLEAN
    # 10 is lost, 9 comes again.
    for sequence in (11, 9, 12):
        bench.send(producer, bench.topic, 0, headers_of(A, sequence))
    bench.seal(producer, [(A, 0, 10, 12)])
    producer.flush()
    (hop,) = auditor.look().hops
    assert [(each.fault, each.which, each.first_offset) for each in hop.findings] == [
        (Fault.LOST, "10", 9),
        (Fault.DUPLICATED, "9", 11),
    ]
    assert hop.counts == bench.audit().hops[0].counts
    # Retention may take what was seen: it was there.
    bench.expire({0: 5})
    assert auditor.look().hops[0].counts == hop.counts
    assert auditor.look().hops[0].counts.expired == 0


def test_a_topic_that_is_made_anew_has_lost_what_was_seen_in_it(bench: Bench) -> None:
    planted = Planted({0: [(A, n) for n in range(10)]}, [[(A, 0, 0, 9)]])
    bench.fill(planted)
    auditor = Auditor(bench.spark, bench.bootstrap, bench.topic, ledger=bench.ledger)
    assert auditor.look().verdict is Verdict.CLEAN
    bench.admin.delete_topics([bench.topic])[bench.topic].result(30)
    bench.make(bench.topic)
    assert auditor.look().hops[0].counts.lost == 10


def test_promises_of_a_ledger_with_strange_numbers_are_refused_one_by_one(bench: Bench) -> None:
    bench.fill(Planted({0: [(A, 0)]}, [[(A, 0, 0, 0)]]))
    producer = bench.producer()
    whole = {
        "version": 1,
        "source": "a",
        "incarnation": "61" * 8,
        "sealed_at_ms": 1,
        "reason": "",
        "counts": {},
    }
    strange: list[object] = [
        ["x", "y", 0, 1],
        ["x", 0, -1, 1],
        ["x", 0, 5, 4],
        ["x", 0, 0, 2**62],
        ["x", 0, 0],
        "x",
    ]
    for interval in strange:
        producer.produce(bench.ledger, json.dumps({**whole, "intervals": [interval]}).encode())
    producer.flush()
    assert bench.audit().hops[0].doubts == ["6 records of the ledger cannot be read as seals"]


def test_a_transaction_that_ends_soon_is_waited_for(bench: Bench) -> None:
    """On a topic with several exactly-once producers one is nearly always open."""
    bench.make(bench.topic)
    bench.make(bench.ledger)
    holding = bench.producer(**{"transactional.id": bench.topic})
    holding.init_transactions(30)
    holding.begin_transaction()
    bench.send(holding, bench.topic, 0, headers_of(B, 0))
    holding.flush()
    producer = bench.producer()
    bench.send(producer, bench.topic, 0, headers_of(A, 0))
    bench.seal(producer, [(A, 0, 0, 0)])
    producer.flush()
    cluster = Cluster(bench.bootstrap, {"bootstrap.servers": bench.bootstrap})
    assert cluster.settled_ends(bench.topic, patience_s=0.1)[0][:3] == (0, 0, 2)
    ended = threading.Timer(0.5, holding.commit_transaction, (30,))
    ended.start()
    end = cluster.settled_ends(bench.topic, patience_s=30)[0]
    ended.join()
    assert end.end >= 2
    assert end.high == end.end
    assert bench.audit().verdict is Verdict.CLEAN
