"""Records that come again are taken out by identity, for ever, and rows stay aligned with their source.

Claims C6 (a restart of the producer: the broker takes the same record again), E6 (who reads must know what it
has seen) and F2 (what that costs).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from gapless.client.formats import identity_of
from gapless.errors import InvariantViolated, UsageError
from gapless.pipeline.dedup import IntervalDedup, by_identity
from gapless.pipeline.dedup.judging import Found
from gapless.pipeline.dedup.seen import SeenLost
from gapless.pipeline.folder import CheckpointFolder
from gapless.pipeline.ranges import source_ranges
from gapless.pipeline.sections import Source
from tests.pipeline.dedup.batches import Sent, identity, run_batches, send
from tests.pipeline.dedup.test_seen import seen

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


class Kept(NamedTuple):
    """A record that came out."""

    batch: int
    partition: int
    offset: int
    value: bytes


def kept_by(rows: DataFrame, number: int) -> list[Kept]:
    return [
        Kept(number, row.partition, row.offset, bytes(row.value))
        for row in rows.select("partition", "offset", "value").collect()
    ]


def first_copies(records: list[Sent]) -> set[tuple[int, int]]:
    """The places that must come out, by the definition: (partition, offset)."""
    ends: dict[int, int] = {}
    seen: set[object] = set()
    expected = set()
    for each in records:
        offset = ends.get(each.partition, 0)
        ends[each.partition] = offset + 1
        who = identity_of(each.headers)
        if who is None or (each.partition, who) not in seen:
            expected.add((each.partition, offset))
        if who is not None:
            seen.add((each.partition, who))
    return expected


def muddle(seed: int, count: int) -> Iterator[Sent]:
    """Two sources and two incarnations; copies early and late; records without, and with half an identity."""
    chance = random.Random(seed)
    for number in range(count):
        value = b"%d" % number
        partition = chance.randrange(2)
        if chance.random() < 0.2:
            odd = [("gs", b"\x02x"), ("gn", b"\0" * 7), ("other", None)]
            yield Sent(partition, value, chance.choice([[], odd, [("gn", b"\0" * 8)]]))
            continue
        sequence = max(0, number // 4 - (chance.randrange(30) if chance.random() < 0.4 else 0))
        source, incarnation = chance.choice(["shop", "till"]), chance.choice([b"incarnat", b"another!"])
        more = [("note", b"x")] if chance.random() < 0.3 else []
        yield Sent(partition, value, [*more, *identity(source, sequence, incarnation)])


def test_of_each_identity_the_first_record_in_the_log_comes_out(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """Across batches and restarts, within a batch, with and without identities; C6, E6."""
    records = list(muddle(seed=7, count=600))
    came: list[Kept] = []
    dropped = 0

    for part in (records[:400], records[400:]):
        send(bootstrap, topic, part)
        dedup = IntervalDedup(CheckpointFolder(spark, tmp_path))

        def batch(rows: DataFrame, number: int, dedup: IntervalDedup = dedup) -> None:
            nonlocal dropped
            sifting = dedup.sift(rows, number)
            assert sifting.rows.columns == rows.columns
            assert source_ranges(sifting.rows) == source_ranges(rows) is not None
            came.extend(kept_by(sifting.rows, number))
            dropped += sifting.settle()

        run_batches(spark, Source(bootstrap, [topic], max_records_per_batch=150), tmp_path, batch)

    expected = first_copies(records)
    assert len(came) == len(expected) == len(records) - dropped
    assert {(each.partition, each.offset) for each in came} == expected
    assert 50 < dropped < 500
    assert len({each.batch for each in came}) >= 4
    values = {record.value for record in records}
    assert {each.value for each in came} <= values


def test_a_repeated_batch_gives_the_same_rows_and_the_same_table(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    records = list(muddle(seed=11, count=300))
    send(bootstrap, topic, records)
    folder = CheckpointFolder(spark, tmp_path)
    dedup = IntervalDedup(folder)

    def batch(rows: DataFrame, number: int) -> None:
        first = dedup.sift(rows, number)
        came, dropped = kept_by(first.rows, number), first.settle()
        table = folder.read(f"dedup/{number}.parquet")
        for again in (dedup, IntervalDedup(folder)):
            repeated = again.sift(rows, number)
            assert kept_by(repeated.rows, number) == came
            assert repeated.settle() == dropped
            assert folder.read(f"dedup/{number}.parquet") == table

    run_batches(spark, Source(bootstrap, [topic], max_records_per_batch=200), tmp_path, batch)
    folder.delete("dedup/0.parquet")
    with pytest.raises(SeenLost):
        IntervalDedup(folder).sift(spark.range(1).toDF("offset"), 1)


def read_nothing(_: DataFrame) -> None: ...


def read_a_little(rows: DataFrame) -> None:
    rows.limit(1).collect()


def read_one_partition(rows: DataFrame) -> None:
    """As where the sink had the other one already."""
    rows.sparkSession.sparkContext.runJob(rows.rdd, lambda part: [sum(1 for _ in part)], [1])


def read_in_one_task(rows: DataFrame) -> None:
    """Which is then no task of the source: Spark numbers it otherwise."""
    rows.coalesce(1).foreach(lambda _: None)


def read_twice(rows: DataFrame) -> None:
    rows.count()
    rows.filter("value is null").count()


def read_kept(rows: DataFrame) -> None:
    """Whoever fails after Spark has kept the rows, and is tried again, reads them from there."""
    kept = rows.persist()

    def fail(part: Iterator[object]) -> None:
        for _ in part:
            pass
        raise OSError("the sink is away")

    with pytest.raises(Exception, match="the sink is away"):
        kept.foreachPartition(fail)
    kept.count()


@pytest.mark.parametrize(
    "read", [read_nothing, read_a_little, read_one_partition, read_in_one_task, read_twice, read_kept]
)
def test_however_rows_are_read_the_same_is_written_down(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path, read: Callable[[DataFrame], None]
) -> None:
    send(bootstrap, topic, list(muddle(seed=3, count=300)))
    folders = [CheckpointFolder(spark, tmp_path / name) for name in ("expected", "found")]
    expected, found = map(IntervalDedup, folders)

    def batch(rows: DataFrame, number: int) -> None:
        usual, other = expected.sift(rows, number), found.sift(rows, number)
        usual.rows.count()
        read(other.rows)
        assert other.settle() == usual.settle() > 0
        other.rows.unpersist()
        tables = [folder.read(f"dedup/{number}.parquet") for folder in folders]
        assert tables[0] == tables[1] is not None

    assert len(run_batches(spark, Source(bootstrap, [topic], max_records_per_batch=150), tmp_path, batch)) > 1


def test_a_report_that_is_lost_is_an_error_and_never_nothing(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark only logs it when an accumulator cannot take what a task adds."""
    send(bootstrap, topic, [Sent(0, b"x", identity("shop", 0))])
    folder = CheckpointFolder(spark, tmp_path)
    dedup = IntervalDedup(folder)
    monkeypatch.setattr(by_identity._Gathering, "addInPlace", lambda _, some, more: some)

    def batch(rows: DataFrame, number: int) -> None:
        sifting = dedup.sift(rows, number)
        assert sifting.rows.count() == 1
        with pytest.raises(InvariantViolated, match=f"{topic}-0 was judged, but not reported"):
            sifting.settle()
        assert folder.read("dedup/0.parquet") is None

    assert run_batches(spark, Source(bootstrap, [topic]), tmp_path, batch) == [0]


def test_of_two_reports_the_one_that_knows_more_counts() -> None:
    """The second attempt of a task may find less: compaction took records in between."""
    more, less = (Found(seen(("shop", 0, last)), 0) for last in (9, 5))
    gathering = by_identity._Gathering()
    for first, second in ((more, less), (less, more)):
        assert gathering.addInPlace({(0, ("t", 0)): first}, {(0, ("t", 0)): second}) == {(0, ("t", 0)): more}


def test_several_topics_are_told_apart(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    other = f"{topic}-other"
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(other, 2, 1)])[other].result(30)
    for name in (topic, other):
        for value in (b"one", b"again"):
            send(bootstrap, name, [Sent(0, value, identity("shop", 0)), Sent(1, value, identity("shop", 0))])
    dedup = IntervalDedup(CheckpointFolder(spark, tmp_path))
    came: list[bytes] = []

    def batch(rows: DataFrame, number: int) -> None:
        sifting = dedup.sift(rows, number)
        came.extend(bytes(row.value) for row in sifting.rows.collect())
        assert sifting.settle() == 4

    run_batches(spark, Source(bootstrap, [topic, other]), tmp_path, batch)
    assert came == [b"one"] * 4


def test_partitions_that_are_added_and_markers_of_transactions_are_no_trouble(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """A task may have nothing to look at but an aborted transaction."""
    dedup = IntervalDedup(CheckpointFolder(spark, tmp_path))
    came: list[Kept] = []

    def batch(rows: DataFrame, number: int) -> None:
        sifting = dedup.sift(rows, number)
        came.extend(kept_by(sifting.rows, number))
        sifting.settle()

    def run() -> list[bytes]:
        came.clear()
        run_batches(spark, Source(bootstrap, [topic]), tmp_path, batch)
        return sorted(each.value for each in came)

    with_transactions = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": f"of-{topic}", "log_level": 0}
    )
    with_transactions.init_transactions(30)

    def transact(sequences: range, *, commit: bool) -> None:
        with_transactions.begin_transaction()
        for sequence in sequences:
            with_transactions.produce(
                topic, b"%d" % sequence, partition=0, headers=list(identity("shop", sequence))
            )
        with_transactions.flush(30)
        if commit:
            with_transactions.commit_transaction(30)
        else:
            with_transactions.abort_transaction(30)

    transact(range(3), commit=False)
    assert run() == []
    transact(range(3), commit=True)
    assert run() == [b"0", b"1", b"2"], "what was aborted was never seen"
    transact(range(1, 4), commit=True)
    assert run() == [b"3"]

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    send(bootstrap, topic, [Sent(2, b"new", identity("shop", 1)), Sent(2, b"copy", identity("shop", 1))])
    assert run() == [b"new"], "sequences are counted in each partition"


def test_rows_that_are_shuffled_are_refused(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    send(bootstrap, topic, [Sent(0, b"x", identity("shop", 0))])

    def batch(rows: DataFrame, number: int) -> None:
        IntervalDedup(CheckpointFolder(spark, tmp_path)).sift(rows.repartition(3), number)

    with pytest.raises(UsageError, match="before any shuffle"):
        run_batches(spark, Source(bootstrap, [topic]), tmp_path, batch)
