"""What can be said of records that nobody promised: the same one twice, and counts that do not agree.

Both work on records of any producer. Neither can tell what was never there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gapless.audit.carried import HASH, KEY, NOBODY, SAME_BY, Topic, is_due
from gapless.audit.findings import Counts, Fault, Finding, Hop
from gapless.audit.judging import MOST_FINDINGS, unnamed
from gapless.errors import UsageError
from gapless.pipeline.failures import cause_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def judge_repeats(topic: Topic, by: str) -> Hop:
    """Records of a topic that are equal by their key, by key and value (`hash`), or by an SQL expression."""
    from pyspark.errors import PySparkException
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    hop = Hop(f"{topic.name} by {by if by in (KEY, HASH) else 'expression'}")
    try:
        keyed = topic.records.select(
            "partition",
            "offset",
            sf.unix_millis("timestamp").alias("ms"),
            sf.expr(SAME_BY.get(by, by)).alias("same_by"),
        )
        in_order = Window.partitionBy("same_by").orderBy("ms", "partition", "offset")
        placed = keyed.filter("same_by IS NOT NULL").withColumn("place", sf.row_number().over(in_order))
        every, again = placed.agg(sf.count("*"), sf.count_if(sf.col("place") > 1)).collect()[0]
        rows = placed.filter("place > 1").orderBy("partition", "offset").limit(MOST_FINDINGS).collect()
        without = keyed.filter("same_by IS NULL").count()
    except PySparkException as error:
        raise UsageError(f"cannot compare records of {topic.name} by {by}: {cause_of(error)}") from None
    hop.sources[NOBODY] = Counts(present=every - again, duplicated=again)
    hop.findings = [_finding(Fault.DUPLICATED, topic.name, row) for row in rows]
    hop.unnamed_findings = unnamed(hop)
    if without:
        hop.notes.append(f"{without:,} records have nothing to be compared by")
    if not every:
        hop.doubts.append(f"{topic.name} holds no record that can be compared")
    return hop


def _finding(fault: Fault, topic: str, row: Any) -> Finding:
    where = (row.partition, row.offset, row.offset, 1, row.offset, row.offset, row.ms, row.ms)
    return Finding(fault, NOBODY, "", topic, *where)


def judge_windows(name: str, topic: Topic, rows: DataFrame, window: str, time_column: str) -> Hop:
    """As many rows in a sink as records in the topic, in each window of time (`5 minutes`)?

    The first window of a topic that retention has cut, and the last of all, are left out: neither is whole.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as sf

    hop = Hop(f"{topic.name} → {name} by windows of {window}")
    try:
        due = topic.records.filter(is_due(topic))
        records = due.groupBy(sf.window("timestamp", window).alias("at")).agg(sf.count("*").alias("records"))
        times = rows.select(sf.col(time_column).cast("timestamp").alias("time"))
        there = times.groupBy(sf.window("time", window).alias("at")).agg(sf.count("*").alias("rows"))
        joined = records.join(there, "at", "full").select(
            sf.unix_millis("at.start").alias("start"),
            sf.unix_millis("at.end").alias("end"),
            sf.coalesce("records", sf.lit(0)).alias("records"),
            sf.coalesce("rows", sf.lit(0)).alias("rows"),
        )
        windows = joined.orderBy("start").collect()
    except PySparkException as error:
        raise UsageError(f"cannot count {name} by {time_column} and {window}: {cause_of(error)}") from None
    known = [each for each in windows if each.start is not None]
    cut = any(ends.earliest > 0 for ends in topic.ends.values())
    whole = known[1 if cut else 0 : -1]
    every = hop.sources.setdefault(NOBODY, Counts())
    for each in whole:
        counts = Counts(
            promised=each.records,
            present=min(each.records, each.rows),
            lost=max(each.records - each.rows, 0),
            duplicated=max(each.rows - each.records, 0),
        )
        every += counts
        for fault, count in ((Fault.LOST, counts.lost), (Fault.DUPLICATED, counts.duplicated)):
            if count and len(hop.findings) < MOST_FINDINGS:
                times_ms = (each.start, each.end)
                hop.findings.append(
                    Finding(fault, NOBODY, "", topic.name, -1, 0, count - 1, count, None, None, *times_ms)
                )
    left_out = len(known) - len(whole)
    hop.notes.append(f"{len(whole):,} windows of {window} are compared, {left_out} are not whole")
    if not whole:
        hop.doubts.append(f"there is no whole window of {window} to be compared")
    hop.unnamed_findings = unnamed(hop)
    return hop
