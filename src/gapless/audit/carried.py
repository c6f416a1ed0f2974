"""The hop from a topic to a sink: is each record that the topic holds in the sink, once?

Rows of a sink tell which record they are of: by its offset, by its identity (in the headers that they kept),
or by what they contain. It is a join in Spark; records that do not fit are made intervals there, too.
A record that the topic holds twice is one record: a sink without duplicates has it once, by either offset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from gapless.audit.findings import Counts, Fault, Finding, Hop
from gapless.audit.judging import MOST_FINDINGS, unnamed
from gapless.errors import UsageError
from gapless.pipeline.failures import cause_of
from gapless.pipeline.identity import identity

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from gapless.audit.cluster import Ends

OFFSET, IDENTITY, KEY, HASH = "offset", "identity", "key", "hash"
NOBODY = "(no identity)"
"""What stands for the source of records that have none. Their numbers are offsets."""
_NAME = ("source", "incarnation", "partition", "number")
_COUNTED = ("present", "lost", "pending", "duplicated", "expired")
_SUMMED = ("promised", *_COUNTED, "unknown", "offsets_there")
_KEY = "CAST(key AS BINARY)"
_VALUE = "CAST(value AS BINARY)"
# With the lengths before them, so that it is known where the key ends, and null is not empty.
_LENGTHS = f"concat_ws(':', coalesce(octet_length({_KEY}), -1), coalesce(octet_length({_VALUE}), -1), '')"
SAME_BY = {
    KEY: _KEY,
    HASH: f"sha2(concat(CAST({_LENGTHS} AS BINARY), coalesce({_KEY}, X''), coalesce({_VALUE}, X'')), 256)",
}
"""What the words stand for, in SQL."""


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


def judge_sink(
    name: str, topic: Topic, rows: DataFrame, matching: Matching, *, begins_ms: int | None = None
) -> Hop:
    """Compare a sink's rows with a topic's records.

    `begins_ms`: retention has taken what the sink had from before that time.
    """
    from pyspark.errors import PySparkException

    by = matching.by or _what_rows_tell(name, rows)
    try:
        told = _told(topic, matching)
        if by == OFFSET:
            compared, within = _by_offset(told, rows, topic), _within(rows, topic)
        else:
            compared, within = _by_key(told, rows, by, matching), None
        return _judged(name, topic, _without_expired(compared, begins_ms), within)
    except PySparkException as error:
        raise UsageError(f"cannot compare {topic.name} with {name}: {cause_of(error)}") from None


def _what_rows_tell(name: str, rows: DataFrame) -> str:
    columns = set(rows.columns)
    if {"partition", "offset"} <= columns:
        return OFFSET
    if "headers" in columns:
        return IDENTITY
    raise UsageError(
        f"{name} does not tell of which records its rows are (its columns: {', '.join(rows.columns)}): keep "
        "`partition` and `offset`, or `headers`, of the records in it, or say how to compare with --by"
    )


def _told(topic: Topic, matching: Matching) -> DataFrame:
    """Records that the sink should have, with a name for each: source, incarnation, partition and number."""
    from pyspark.sql import functions as sf

    named = topic.records.withColumns({"id": identity("headers"), "due": is_due(topic)})
    asked = named if matching.where is None else named.filter(matching.where)
    return asked.withColumns(
        {
            "source": sf.coalesce("id.source", sf.lit(NOBODY)),
            "incarnation": sf.coalesce("id.incarnation", sf.lit(b"")),
            "number": sf.coalesce("id.sequence", "offset"),
            "ms": sf.unix_millis("timestamp"),
        }
    )


def is_due(topic: Topic) -> Column:
    """Whether a record must have come to the sinks."""
    from pyspark.sql import functions as sf

    if topic.carried_to is None:
        return sf.lit(True)
    due = sf.lit(False)
    for partition, end in topic.carried_to.items():
        due = due | ((sf.col("partition") == partition) & (sf.col("offset") < end))
    return due


def _without_expired(compared: DataFrame, begins_ms: int | None) -> DataFrame:
    """With a column of how many the sink may have had, and has no more: they are not due."""
    from pyspark.sql import functions as sf

    if begins_ms is None:
        return compared.withColumn("expired", sf.lit(0))
    # A sink's record is written after the topic's, so it is never older.
    gone = sf.when(sf.col("ms") <= begins_ms, sf.greatest(sf.col("due") - sf.col("there"), sf.lit(0)))
    expired = sf.coalesce(gone, sf.lit(0))
    return compared.withColumns({"expired": expired, "due": sf.col("due") - expired})


def _by_offset(told: DataFrame, rows: DataFrame, topic: Topic) -> DataFrame:
    from pyspark.sql import functions as sf

    there = _offsets(rows, topic).groupBy("partition", "offset").agg(sf.count("*").alias("rows"))
    joined = told.join(there, ["partition", "offset"], "left")
    return (
        joined.groupBy(*_NAME)
        .agg(
            sf.sum(sf.coalesce("rows", sf.lit(0))).alias("there"),
            sf.count("rows").alias("offsets_there"),
            sf.min("offset").alias("offset"),
            sf.min("ms").alias("ms"),
            sf.max("due").cast("int").alias("due"),
        )
        .withColumn("expected", sf.lit(1))
    )


def _offsets(rows: DataFrame, topic: Topic) -> DataFrame:
    """Partition and offset of the sink's rows of this topic."""
    from pyspark.sql import functions as sf

    own = rows.filter(sf.col("topic") == topic.name) if "topic" in rows.columns else rows
    return own.select(sf.col("partition").cast("int"), sf.col("offset").cast("long"))


def _within(rows: DataFrame, topic: Topic) -> DataFrame | None:
    """The different offsets of the sink's rows, as far as the topic was read. None: they tell nothing."""
    from pyspark.sql import functions as sf

    if topic.compacted:
        return None
    within = sf.lit(False)
    for partition, ends in topic.ends.items():
        # What retention took is older, and what came since this audit began is newer.
        read = (sf.col("offset") >= ends.earliest) & (sf.col("offset") < ends.end)
        within = within | ((sf.col("partition") == partition) & read)
    return _offsets(rows, topic).filter(within).distinct()


def _by_key(told: DataFrame, rows: DataFrame, by: str, matching: Matching) -> DataFrame:
    from pyspark.sql import functions as sf

    of_record, of_row = _keys(by, matching, rows)
    # What is equal goes to one task at once: all that follows happens there.
    together = told.withColumn("same_by", of_record).repartition("same_by")
    once = together.groupBy("same_by", *_NAME).agg(
        sf.min("offset").alias("offset"), sf.min("ms").alias("ms"), sf.max("due").cast("int").alias("due")
    )
    first = [sf.min_by(name, "offset").alias(name) for name in (*_NAME, "ms")]
    counted = (sf.count("*"), sf.sum("due")) if not matching.one_per_key else (sf.lit(1), sf.max("due"))
    records = once.groupBy("same_by").agg(
        *first, sf.min("offset").alias("offset"), counted[0].alias("expected"), counted[1].alias("due")
    )
    there = rows.select(of_row.alias("same_by")).groupBy("same_by").agg(sf.count("*").alias("there"))
    # Null is equal to nothing: a record that has no such key is not compared.
    return records.join(there, "same_by", "left").withColumns(
        {
            "there": sf.when(sf.col("same_by").isNull(), None).otherwise(sf.coalesce("there", sf.lit(0))),
            # Which of several equal ones is missing, nobody can say.
            "partition": sf.expr("IF(expected > 1 AND there BETWEEN 1 AND expected - 1, -1, partition)"),
            "offsets_there": sf.lit(0),
        }
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


def _judged(name: str, topic: Topic, compared: DataFrame, within: DataFrame | None) -> Hop:
    from pyspark.sql import functions as sf

    states = compared.withColumns(
        {
            "lost": sf.greatest(sf.col("due") - sf.col("there"), sf.lit(0)),
            "pending": sf.expr("greatest(expected - expired - greatest(there, due), 0)"),
            "duplicated": sf.greatest(sf.col("there") - sf.col("expected"), sf.lit(0)),
            "present": sf.least(sf.coalesce("there", sf.lit(0)), "expected"),
        }
    )
    hop = Hop(f"{topic.name} → {name}")
    condensed = _condensed(states).persist()
    try:
        by_source = condensed.groupBy("source").agg(*(sf.sum(each).alias(each) for each in _SUMMED))
        unknown = offsets_there = 0
        for row in by_source.collect():
            hop.sources[row.source] = Counts(**{each: row[each] for each in ("promised", *_COUNTED)})
            unknown += row.unknown
            offsets_there += row.offsets_there
        faulty = condensed.filter("named IS NOT NULL").select("source", "named.*", *_COUNTED)
        for fault in (Fault.LOST, Fault.DUPLICATED):
            if getattr(hop.counts, fault.value):
                hop.findings += _findings(fault, topic.name, faulty, fault.value)
    finally:
        condensed.unpersist()
    # Offsets of rows at which readers of committed records find nothing, if there are any.
    if within is not None and within.count() != offsets_there:
        _add_aborted(hop, topic, within)
    if unknown:
        hop.doubts.append(f"{unknown:,} records of {topic.name} have nothing to be compared by")
    if not hop.counts.promised:
        hop.doubts.append(f"{topic.name} holds no record that should be in {name}")
    hop.unnamed_findings = unnamed(hop)
    return hop


def _condensed(states: DataFrame) -> DataFrame:
    """A row for each source, and one for each record with a fault: all that is needed, in one pass."""
    from pyspark.sql import functions as sf

    is_faulty = (sf.col("lost") > 0) | (sf.col("duplicated") > 0)
    told = states.withColumns(
        {
            "named": sf.when(is_faulty, sf.struct("incarnation", "partition", "number", "offset", "ms")),
            "promised": sf.col("expected"),
            "unknown": sf.when(sf.col("there").isNull(), sf.col("expected")),
        }
    )
    sums = (sf.sum(sf.coalesce(each, sf.lit(0))).alias(each) for each in _SUMMED)
    return told.groupBy("source", "named").agg(*sums)


def _findings(fault: Fault, topic: str, states: DataFrame, column: str) -> list[Finding]:
    """Records with this fault, those that follow each other as one."""
    rows = _islands(states.filter(f"{column} > 0").withColumn("records", states[column]))
    return [
        Finding(
            fault,
            row.source,
            bytes(row.incarnation).hex(),
            topic,
            row.partition,
            row.first,
            row.last,
            row.records,
            row.first_offset,
            row.last_offset,
            row.first_ms,
            row.last_ms,
        )
        for row in rows
    ]


def _islands(faulty: DataFrame) -> list[Any]:
    """Rows that follow each other have the same difference between their number and their place."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    stream = ("source", "incarnation", "partition")
    place = sf.row_number().over(Window.partitionBy(*stream).orderBy("number"))
    ends = [
        end(name).alias(f"{word}_{name}" if name != "number" else word)
        for name in ("number", "offset", "ms")
        for word, end in (("first", sf.min), ("last", sf.max))
    ]
    return (
        faulty.withColumn("island", sf.col("number") - place)
        .groupBy(*stream, "island")
        .agg(*ends, sf.sum("records").alias("records"))
        .orderBy(*stream, "first")
        .limit(MOST_FINDINGS)
        .collect()
    )


def _add_aborted(hop: Hop, topic: Topic, within: DataFrame) -> None:
    from pyspark.sql import functions as sf

    visible = topic.records.select("partition", "offset")
    rows = within.join(visible, ["partition", "offset"], "left_anti").select(
        sf.lit(NOBODY).alias("source"),
        sf.lit(b"").alias("incarnation"),
        "partition",
        sf.col("offset").alias("number"),
        "offset",
        sf.lit(None).cast("long").alias("ms"),
        sf.lit(1).alias("records"),
    )
    islands = _islands(rows)
    # Records that retention took while this audit read are gone, and were not aborted.
    begins = topic.earliest_now() if islands and topic.earliest_now is not None else {}
    for row in islands:
        first = max(row.first, begins.get(row.partition, 0))
        if first <= row.last:
            count = row.last - first + 1
            where = (row.partition, first, row.last, count, first, row.last)
            hop.findings.append(Finding(Fault.ABORTED, NOBODY, "", topic.name, *where, None, None))
            hop.sources.setdefault(NOBODY, Counts()).aborted += count
