"""What can be said of records that nobody promised: the same one twice, offsets that hold nothing, and counts
that do not agree.

All work on records of any producer. None can tell what was never there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from gapless.audit.carried import ALWAYS_MS, HASH, KEY, SAME_BY, Matching, Sink, Topic, is_due, kept_from
from gapless.audit.failing import mistakes
from gapless.audit.findings import Counts, Fault, Finding, Hop, Timeline
from gapless.audit.judging import MOST_FINDINGS, unnamed
from gapless.audit.naming import NOBODY, add_doubts, not_to_tell, too_many
from gapless.audit.stretches import as_set, overlay
from gapless.pipeline.dedup.runs import Runs, joined

_SHOWN_HOLES = 5


def judge_offsets(topic: Topic) -> Hop:
    """Does each offset of a topic hold a record, be it of an aborted transaction?

    One that does not may be the end of a transaction, which takes an offset of its own: so it is a doubt.
    """
    read = topic.records if topic.with_aborted is None else topic.with_aborted()
    rows = read.select("partition", "offset").mapInArrow(_offset_runs, "key long, first long, last long")
    columns = rows.toArrow()
    held = as_set(
        Runs(*(np.asarray(columns[name].to_numpy(), np.int64) for name in ("key", "first", "last")))
    )
    spans = [(each, at.earliest, at.end - 1) for each, at in topic.ends.items() if at.end > at.earliest]
    laid = overlay(Runs(*np.array(spans, np.int64).reshape(len(spans), 3).T), held)
    holes = laid.where(laid.inside[0] & ~laid.inside[1])
    hop = Hop(f"{topic.name} by offsets")
    hop.offsets = {each: (at.earliest, at.end) for each, at in sorted(topic.ends.items())}
    hop.sources[NOBODY] = Counts(present=int((held.lasts - held.firsts + 1).sum()))
    if not hop.counts.present:
        hop.doubts.append(f"{topic.name} holds no record")
    if len(holes.keys):
        count = int((holes.lasts - holes.firsts + 1).sum())
        others = ", or compaction took them" if topic.compacted else ""
        named = [
            f"{topic.name}-{partition} {first}" + (f" to {last}" if last > first else "")
            for partition, first, last in zip(
                *(column[:_SHOWN_HOLES].tolist() for column in holes), strict=True
            )
        ]
        more = ", …" if len(holes.keys) > _SHOWN_HOLES else ""
        hop.doubts.append(
            f"{count:,} offsets hold no record: transactions end there{others}, or records are gone "
            f"({', '.join(named)}{more})"
        )
    return hop


def _offset_runs(batches: Iterator[Any]) -> Iterator[Any]:
    """Of one partition, in order."""
    for batch in batches:
        if batch.num_rows:
            offsets = batch["offset"].to_numpy()
            partitions = batch["partition"].to_numpy().astype(np.int64)
            runs = joined(partitions, offsets, offsets)
            yield pa.RecordBatch.from_arrays(
                [pa.array(each) for each in runs], names=["key", "first", "last"]
            )


def judge_repeats(topic: Topic, by: str) -> Hop:
    """Records of a topic that are equal by their key, by key and value (`hash`), or by an SQL expression."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    hop = Hop(f"{topic.name} by {by if by in (KEY, HASH) else 'expression'}")
    with mistakes(f"cannot compare records of {topic.name} by {by}"):
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


class _Window(NamedTuple):
    """Some time, and how much of it there is on both sides."""

    start_ms: int
    end_ms: int
    records: int
    due: int
    """Records that must have come to the sink."""
    rows: int


def judge_windows(topic: Topic, sink: Sink, matching: Matching) -> Hop:
    """As many rows in a sink as records in the topic, in each window of time (`5 minutes`)?

    Windows that are not whole are left out: those that begin before the first records of partitions that
    retention has cut, the one in which the sink's retention stands, and the last of all.
    """
    length = matching.window
    hop = Hop(f"{topic.name} → {sink.name} by windows of {length}")
    windows = _windows(topic, sink, matching)
    begins_ms = _begin_of_rows(windows, sink, matching)
    cut_ms = _cut_to(topic)
    whole = [
        each
        for each in windows[:-1]
        if each.start_ms > cut_ms and not each.start_ms <= begins_ms < each.end_ms
    ]
    empty = 0 if sink.empty is None else sink.empty()
    every, taken = hop.sources.setdefault(NOBODY, Counts()), 0
    kept_from_ms = max(kept_from(matching), default=-1)
    promised, present = dict[int, int](), dict[int, int]()
    if whole:
        width_ms = whole[0].end_ms - whole[0].start_ms
        hop.timeline = Timeline(width_ms, {NOBODY: promised}, {NOBODY: present}, is_sealed=False)
    for each in whole:
        missing = max(each.due - each.rows, 0)
        is_expired = each.end_ms <= begins_ms
        counts = Counts(
            promised=each.records,
            present=min(each.records, each.rows),
            lost=0 if is_expired or sink.is_open or empty else missing,
            hidden=missing if sink.is_open and not is_expired else 0,
            expired=missing if is_expired else 0,
            compacted=missing if empty and not is_expired and not sink.is_open else 0,
            pending=each.records - max(each.due, min(each.rows, each.records)),
            duplicated=max(each.rows - each.records, 0),
        )
        every += counts
        for count, by_start in ((each.records, promised), (each.rows, present)):
            if count:
                by_start[each.start_ms] = count
        taken += counts.expired if each.end_ms > kept_from_ms else 0
        for fault, count in ((Fault.LOST, counts.lost), (Fault.DUPLICATED, counts.duplicated)):
            if count and len(hop.findings) < MOST_FINDINGS:
                where = (-1, -1, -1, count, None, None, each.start_ms, each.end_ms)
                hop.findings.append(Finding(fault, NOBODY, "", topic.name, *where, in_sink=True))
    left_out = len(windows) - len(whole)
    hop.notes.append(f"{len(whole):,} windows of {length} are compared, {left_out} are not whole")
    older = sum(each.rows for each in windows if each.start_ms <= cut_ms)
    if older:
        hop.notes.append(
            f"{older:,} rows are not compared: retention has taken records of their time from {topic.name}"
        )
    if not whole:
        hop.doubts.append(f"there is no whole window of {length} to be compared")
    else:
        add_doubts(hop, topic, sink.name)
        hop.doubts += too_many(taken, sink.taken, sink.name)
        hop.doubts += [not_to_tell(hop, sink.name, empty)] if hop.counts.compacted else []
    hop.unnamed_findings = unnamed(hop)
    return hop


def _windows(topic: Topic, sink: Sink, matching: Matching) -> list[_Window]:
    """By time."""
    from pyspark.sql import functions as sf

    length, column = str(matching.window), str(matching.sink_time)
    with mistakes(f"cannot count {sink.name} by {column} and {length}"):
        told = topic.records if matching.where is None else topic.records.filter(matching.where)
        told = told.withColumn("due", is_due(topic))
        records = told.groupBy(sf.window("timestamp", length).alias("at")).agg(
            sf.count("*").alias("records"), sf.count_if("due").alias("due")
        )
        times = sink.rows.select(sf.col(column).cast("timestamp").alias("time"))
        there = times.groupBy(sf.window("time", length).alias("at")).agg(sf.count("*").alias("rows"))
        joined = records.join(there, "at", "full").select(
            sf.unix_millis("at.start").alias("start"),
            sf.unix_millis("at.end").alias("end"),
            sf.coalesce("records", sf.lit(0)).alias("records"),
            sf.coalesce("due", sf.lit(0)).alias("due"),
            sf.coalesce("rows", sf.lit(0)).alias("rows"),
        )
        found = joined.filter("start IS NOT NULL").orderBy("start").collect()
    return [_Window(*row) for row in found]


def _cut_to(topic: Topic) -> int:
    """Up to when retention has taken records of any partition; -1 if of none."""
    begins_ms = None if topic.begins_ms is None else topic.begins_ms()
    return -1 if begins_ms is None else begins_ms


def _begin_of_rows(windows: list[_Window], sink: Sink, matching: Matching) -> int:
    """Up to when rows of the sink have expired; -1 if none is known to have."""
    begins = [-1, *kept_from(matching)] if sink.begins_ms is None else [sink.begins_ms, *kept_from(matching)]
    if sink.is_deleted_from:
        begins.append(next((each.start_ms for each in windows if each.rows), ALWAYS_MS))
    return max(begins)
