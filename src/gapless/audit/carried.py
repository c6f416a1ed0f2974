"""The hop from a topic to a sink: is each record that the topic holds in the sink, once?

Rows of a sink tell which record they are of: by its offset, by its identity (in the headers that they kept),
or by what they contain. It is a join in Spark; what the join says of records, `naming.py` makes a hop of.
A record that the topic holds twice is one record: a sink without duplicates has it once, by either offset.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from gapless.audit.failing import mistakes
from gapless.audit.findings import Hop
from gapless.audit.naming import NAME, NOBODY, Taken, hop_of, not_to_tell
from gapless.errors import UsageError
from gapless.pipeline.identity import identity

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from gapless.audit.cluster import Ends

OFFSET, IDENTITY, KEY, HASH = "offset", "identity", "key", "hash"
_KEY = "CAST(key AS BINARY)"
_VALUE = "CAST(value AS BINARY)"
# With the lengths before them, so that it is known where the key ends, and null is not empty.
_LENGTHS = f"concat_ws(':', coalesce(octet_length({_KEY}), -1), coalesce(octet_length({_VALUE}), -1), '')"
SAME_BY = {
    KEY: _KEY,
    HASH: f"sha2(concat(CAST({_LENGTHS} AS BINARY), coalesce({_KEY}, X''), coalesce({_VALUE}, X'')), 256)",
}
"""What the words stand for, in SQL."""
ALWAYS_MS = 2**62


class Matching(NamedTuple):
    """How rows of a sink are told to be of a record."""

    by: str | None = None
    """`offset`, `identity`, `key`, `hash`, or SQL over a record's columns. None: as the sink allows."""
    sink_by: str | None = None
    """The same over the sink's columns, where that is another expression."""
    where: str | None = None
    """Which records the sink should have, in SQL over a record's columns. None: all."""
    one_per_key: bool = False
    """Whether the sink keeps one row of all records that are equal by `by`."""
    window: str | None = None
    """Instead of one by one, records and rows are counted in windows of this length, e.g. `5 minutes`."""
    sink_time: str | None = None
    """The sink's column of the records' time, for windows."""
    kept_s: float | None = None
    """How long the sink keeps rows: what is older, and not there, has expired."""


class Sink(NamedTuple):
    """What a sink holds, and what may keep it from showing more."""

    name: str
    rows: DataFrame
    begins_ms: int | None = None
    """Its retention has taken rows from before this time. None: it is not known to have taken any."""
    is_deleted_from: bool = False
    """Somebody has deleted rows: what is older than the oldest that is left may be among them."""
    taken: Taken | None = None
    """How much those two have taken. None: they have not."""
    is_open: bool = False
    """A topic, in which a transaction has not ended: what is missing may be behind it."""
    with_aborted: Callable[[], DataFrame] | None = None
    """A topic's rows, with those of aborted transactions among them."""
    empty: Callable[[], int] | None = None
    """Asks how many of a topic's offsets hold nothing, since compaction may have taken it; 0 if it is not
    compacted."""


class Old(NamedTuple):
    """Up to when records have expired that a sink lacks."""

    begins_ms: int | None = None
    """None: none have."""
    kept_from_ms: int | None = None
    """By what somebody says of how long it keeps rows; None: nobody says it."""


class Topic(NamedTuple):
    """What the sink is compared with."""

    name: str
    records: DataFrame
    ends: Mapping[int, Ends]
    carried_to: Mapping[int, int] | None = None
    """Records from these offsets on are not due yet. None: all are."""
    compacted: bool = False
    earliest_now: Callable[[], Mapping[int, int]] | None = None
    """Asks where partitions begin: retention may have gone on since `ends` were asked."""
    with_aborted: Callable[[], DataFrame] | None = None
    """Its records, with those of aborted transactions among them. None: there are no such."""
    slots: range | None = None
    """Where slots of time begin in which its records can be counted: not too many. None: it is not known."""
    begins_ms: Callable[[], int | None] | None = None
    """Asks up to when retention has taken its records by now. None: it has taken none."""

    @property
    def is_any_due(self) -> bool:
        to = self.carried_to
        return to is None or any(to.get(each, 0) > ends.earliest for each, ends in self.ends.items())


def judge_sink(topic: Topic, sink: Sink, matching: Matching) -> Hop:
    """Compare a sink's rows with a topic's records."""
    by = matching.by or what_rows_tell(sink.name, sink.rows.columns)
    judge = _judge_by_offset if by == OFFSET else _judge_by_key
    with mistakes(f"cannot compare {topic.name} with {sink.name}"):
        return judge(topic, sink, matching, by)


def what_rows_tell(name: str, columns: Sequence[str]) -> str:
    if {"partition", "offset"} <= set(columns):
        return OFFSET
    if "headers" in columns:
        return IDENTITY
    raise UsageError(
        f"{name} does not tell of which records its rows are (its columns: {', '.join(columns)}): keep "
        "`partition` and `offset`, or `headers`, of the records in it, or say how to compare with --by"
    )


def _judge_by_offset(topic: Topic, sink: Sink, matching: Matching, _: str) -> Hop:
    rows, places = _offsets(sink.rows, topic), ["partition", "offset"]
    told = _told(topic, matching)
    compared = _by_offset(told, rows, _old_in(_by_offset(told, rows, Old()), sink, matching))

    def aborted() -> DataFrame | None:
        """Offsets of rows at which readers of committed records find nothing."""
        if topic.compacted:
            return None
        visible = topic.records.select(*places)
        strays = rows.filter(_was_read(topic)).distinct().join(visible, places, "left_anti")
        every = named(topic.records if topic.with_aborted is None else topic.with_aborted())
        return strays.join(every, places, "left")

    return hop_of(topic, sink, _states(compared, sink), aborted)


def _judge_by_key(topic: Topic, sink: Sink, matching: Matching, by: str) -> Hop:
    of_record, of_row = _keys(by, matching, sink.rows)
    told = _told(topic, matching).withColumn("same_by", of_record)
    spare = _spare(told, topic) if by == IDENTITY and "partition" not in sink.rows.columns else None
    compare = partial(_by_key, told, sink.rows.select(of_row.alias("same_by")), matching, spare)
    limits = _old_in(compare(Old()), sink, matching)
    compared = compare(limits)

    def aborted() -> DataFrame | None:
        """Records of aborted transactions, of which there are rows."""
        if by != IDENTITY or topic.with_aborted is None:
            return None
        rows = compared.filter("strange > 0").select("same_by")
        every = named(topic.with_aborted()).withColumn("same_by", of_record)
        return every.join(rows, "same_by").dropDuplicates(["same_by"])

    def missing() -> DataFrame:
        """Records that are not there, where none that is equal to them is."""
        return _once(told, limits).filter("due = 1 AND old = 0")

    states = _states(compared, sink)
    hop = hop_of(topic, sink, states, aborted, missing)
    empty = sink.empty() if hop.counts.lost and sink.empty is not None else 0
    if empty:
        states = _with_compacted(states)
        hop = hop_of(topic, sink, states, aborted, missing)
        if hop.counts.compacted and not matching.one_per_key:
            hop.doubts.append(not_to_tell(hop, sink.name, empty))
    if hop.counts.lost and sink.with_aborted is not None:
        written = sink.with_aborted().select(of_row.alias("same_by")).distinct()
        hop = hop_of(topic, sink, _with_torn(states, written), aborted, missing)
    return hop


def named(records: DataFrame) -> DataFrame:
    """With a name for each: source, incarnation, partition and number; and its time."""
    from pyspark.sql import functions as sf

    return records.withColumn("id", identity("headers")).withColumns(
        {
            "source": sf.coalesce("id.source", sf.lit(NOBODY)),
            "incarnation": sf.coalesce("id.incarnation", sf.lit(b"")),
            "number": sf.coalesce("id.sequence", "offset"),
            "ms": sf.unix_millis("timestamp"),
        }
    )


def _told(topic: Topic, matching: Matching) -> DataFrame:
    """Records that the sink should have, and whether they must have come there."""
    due = topic.records.withColumn("due", is_due(topic))
    return named(due if matching.where is None else due.filter(matching.where))


def is_due(topic: Topic) -> Column:
    """Whether a record must have come to the sinks."""
    from pyspark.sql import functions as sf

    if topic.carried_to is None:
        return sf.lit(True)
    due = sf.lit(False)
    for partition, end in topic.carried_to.items():
        due = due | ((sf.col("partition") == partition) & (sf.col("offset") < end))
    return due


def _by_offset(told: DataFrame, rows: DataFrame, limits: Old) -> DataFrame:
    from pyspark.sql import functions as sf

    there = rows.groupBy("partition", "offset").agg(sf.count("*").alias("rows"))
    joined = told.join(there, ["partition", "offset"], "full")
    return (
        joined.groupBy(*NAME)
        .agg(
            sf.sum(sf.coalesce("rows", sf.lit(0))).alias("there"),
            sf.min("offset").alias("offset"),
            sf.min("ms").alias("ms"),
            sf.coalesce(sf.max("due").cast("int"), sf.lit(0)).alias("due"),
        )
        .withColumns(
            {
                "old": sf.coalesce(_is_old(limits.begins_ms), sf.lit(0)),
                "kept": sf.coalesce(_is_old(limits.kept_from_ms), sf.lit(0)),
                "together": sf.lit(None).cast("int"),
                "expected": sf.expr("IF(source IS NULL, 0, 1)"),
                "strange": sf.expr("IF(source IS NULL, there, 0)"),
                "source": sf.coalesce("source", sf.lit(NOBODY)),
                "spare": sf.lit(0),
            }
        )
    )


def _offsets(rows: DataFrame, topic: Topic) -> DataFrame:
    """Partition and offset of the sink's rows of this topic."""
    from pyspark.sql import functions as sf

    own = rows.filter(sf.col("topic") == topic.name) if "topic" in rows.columns else rows
    return own.select(sf.col("partition").cast("int"), sf.col("offset").cast("long"))


def _was_read(topic: Topic) -> Column:
    """Whether a row's offset is one that was read: what retention took is older, what came since newer."""
    from pyspark.sql import functions as sf

    within = sf.lit(False)
    for partition, ends in topic.ends.items():
        read = (sf.col("offset") >= ends.earliest) & (sf.col("offset") < ends.end)
        within = within | ((sf.col("partition") == partition) & read)
    return within


def _once(told: DataFrame, limits: Old) -> DataFrame:
    """Each record once, as often as the topic may hold it. What is equal goes to one task at once."""
    from pyspark.sql import functions as sf

    return (
        told.repartition("same_by")
        .groupBy("same_by", *NAME)
        .agg(
            sf.min("offset").alias("offset"),
            sf.min("ms").alias("ms"),
            sf.max("due").cast("int").alias("due"),
            sf.max(sf.col("value").isNull()).alias("without_value"),
        )
        .withColumns(
            {
                "last": sf.struct("ms", "offset"),
                "old": _is_old(limits.begins_ms),
                "kept": _is_old(limits.kept_from_ms),
            }
        )
    )


def _is_old(begins_ms: int | None) -> Column:
    """1 for a record that has expired, if it is missing. A sink's is written after the topic's."""
    from pyspark.sql import functions as sf

    return sf.lit(0) if begins_ms is None else (sf.col("ms") <= begins_ms).cast("int")


def _by_key(
    told: DataFrame, rows: DataFrame, matching: Matching, spare: DataFrame | None, limits: Old
) -> DataFrame:
    from pyspark.sql import functions as sf

    # Of several that are equal the first stands for all.
    first = sf.min(sf.struct("ms", "partition", "offset", "source", "incarnation", "number")).alias("first")
    counted = {"expected": sf.count("*"), "due": sf.sum("due")}
    counted["removable"] = sf.count("*")
    counted |= {each: sf.sum(sf.col(each) * sf.col("due")) for each in ("old", "kept")}
    if matching.one_per_key:
        counted = {"expected": sf.lit(1), "due": sf.max("due"), "old": sf.min("old"), "kept": sf.min("kept")}
        # Compaction takes a key as a whole if its last record has no value: there, it should be gone.
        counted["removable"] = sf.max_by(sf.col("without_value").cast("int"), "last")
    sums = (column.alias(name) for name, column in counted.items())
    records = _once(told, limits).groupBy("same_by").agg(first, *sums).select("*", "first.*").drop("first")
    if spare is not None:
        records = records.join(sf.broadcast(spare), ["source", "incarnation"], "left")
    there = rows.filter("same_by IS NOT NULL").groupBy("same_by").agg(sf.count("*").alias("there"))
    spared = "coalesce(cut - size(filter(lows, low -> low <= number)), cut)" if spare is not None else "0"
    # Null is equal to nothing: a record that has no such key is not compared.
    joined = records.join(there, "same_by", "full").withColumn(
        "there", sf.when(sf.col("same_by").isNull(), None).otherwise(sf.coalesce("there", sf.lit(0)))
    )
    return joined.withColumns(
        {
            "strange": sf.expr("IF(expected IS NULL, there, 0)"),
            "expected": sf.coalesce("expected", sf.lit(0)),
            "due": sf.coalesce("due", sf.lit(0)),
            "old": sf.coalesce("old", sf.lit(0)),
            "kept": sf.coalesce("kept", sf.lit(0)),
            # Where none of several equal ones is there each can be named. Else nobody can say which it is.
            "together": sf.expr("IF(expected > 1 AND there = 0, same_by, NULL)"),
            "partition": sf.expr("IF(expected > 1 AND there > 0, -1, partition)"),
            "offset": sf.expr("IF(expected > 1 AND there > 0, NULL, offset)"),
            "source": sf.coalesce("source", sf.lit(NOBODY)),
            "spare": sf.expr(spared),
        }
    )


def _spare(told: DataFrame, topic: Topic) -> DataFrame | None:
    """By maker: in how many partitions that retention has cut, and from which number on, it is still there.

    A number is given in each partition. Where rows do not tell theirs, one whose record has expired must not
    be taken for a second row of another's.
    """
    from pyspark.sql import functions as sf

    cut = [partition for partition, ends in topic.ends.items() if ends.earliest > 0]
    if not cut:
        return None
    lows = told.groupBy("source", "incarnation", "partition").agg(sf.min("number").alias("low"))
    is_cut = sf.col("partition").isin(cut)
    return (
        lows.groupBy("source", "incarnation")
        .agg(sf.collect_list(sf.when(is_cut, sf.col("low"))).alias("lows"))
        .withColumn("cut", sf.lit(len(cut)))
    )


def _keys(by: str, matching: Matching, rows: DataFrame) -> tuple[Column, Column]:
    """What is compared, of records and of rows."""
    from pyspark.sql import functions as sf

    if by == IDENTITY:
        names = [identity("headers"), sf.col("partition")]
        # The same number is given in each partition: without it, as many must be there as there are.
        known = names if "partition" in rows.columns else names[:1]
        whole = sf.when(known[0].isNotNull(), sf.struct(*known))
        return whole, sf.expr(matching.sink_by) if matching.sink_by else whole
    own = SAME_BY.get(by, by)
    return sf.expr(own), sf.expr(matching.sink_by or own)


def _states(compared: DataFrame, sink: Sink) -> DataFrame:
    """What is true of each record that was compared, as counts."""
    from pyspark.sql import functions as sf

    missing = "greatest(due - there, 0)"
    expired = {
        "expired": f"least({missing}, old)",
        "taken": f"least({missing}, old) - least({missing}, kept)",
    }
    left = compared.withColumns({name: sf.expr(each) for name, each in expired.items()}).withColumn(
        "due", sf.expr("due - expired")
    )
    return left.withColumns(
        {
            "lost": sf.lit(0) if sink.is_open else sf.expr(missing),
            "hidden": sf.expr(missing) if sink.is_open else sf.lit(0),
            "torn": sf.lit(0),
            "compacted": sf.lit(0),
            "pending": sf.expr("greatest(expected - expired - greatest(there, due), 0)"),
            "duplicated": sf.expr("greatest(there - strange - expected - spare, 0)"),
            "present": sf.least(sf.coalesce("there", sf.lit(0)), "expected"),
        }
    )


def _old_in(compared: DataFrame, sink: Sink, matching: Matching) -> Old:
    """Up to when what is missing has expired."""
    from pyspark.sql import functions as sf

    kept = kept_from(matching)
    begins = kept if sink.begins_ms is None else [sink.begins_ms, *kept]
    if sink.is_deleted_from:
        oldest = compared.filter("there > 0").agg(sf.min("ms")).collect()[0][0]
        begins = [*begins, ALWAYS_MS if oldest is None else oldest - 1]
    return Old(max(begins, default=None), max(kept, default=None))


def kept_from(matching: Matching) -> list[int]:
    """Since when a sink keeps rows, if that is known."""
    if matching.kept_s is None:
        return []
    return [time.time_ns() // 1_000_000 - round(matching.kept_s * 1000)]


def _with_compacted(states: DataFrame) -> DataFrame:
    """What is missing, and may have been there until compaction took it."""
    from pyspark.sql import functions as sf

    compacted = sf.expr("least(lost, removable)")
    return states.withColumn("compacted", compacted).withColumn("lost", sf.expr("lost - compacted"))


def _with_torn(states: DataFrame, written: DataFrame) -> DataFrame:
    """What is missing, and was written in a transaction that was aborted, is torn."""
    from pyspark.sql import functions as sf

    in_log = written.filter("same_by IS NOT NULL").withColumn("is_in_log", sf.lit(True))
    joined = states.join(in_log, "same_by", "left")
    # Where some of several equal ones are there, it may be those that are in the log.
    torn = sf.expr("IF(is_in_log AND there = 0, lost, 0)")
    return joined.withColumn("torn", torn).withColumn("lost", sf.expr("lost - torn"))
