"""From what a comparison in Spark says of each record to a hop: counts by source, and findings that name.

Records are compared by the million, so Spark counts them, and makes intervals of those with a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from gapless.audit.findings import Counts, Fault, Finding, Hop, Timeline
from gapless.audit.judging import MOST_FINDINGS, unnamed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from gapless.audit.carried import Sink, Topic

NOBODY = "(no identity)"
"""What stands for the source of records that have none. Their numbers are offsets."""
NAME = ("source", "incarnation", "partition", "number")
_TAKEN = "taken"
"""Of those that expired: not because somebody says how long the sink keeps rows."""
_COUNTED = ("present", "lost", "pending", "duplicated", "expired", "torn", "hidden", "compacted")
_SUMMED = ("promised", *_COUNTED, "unknown", "strange", _TAKEN)
_FAULTS = (Fault.LOST, Fault.DUPLICATED, Fault.TORN)


class Taken(NamedTuple):
    """Rows that a sink's retention has taken at most: more than those cannot have expired."""

    rows: int
    is_all: bool = True
    """Whether that is known of each time that some were taken."""


def hop_of(
    topic: Topic,
    sink: Sink,
    states: DataFrame,
    aborted: Callable[[], DataFrame | None],
    missing: Callable[[], DataFrame] | None = None,
) -> Hop:
    """A hop from the states of all records, which have a name, an offset and a time.

    `aborted` gives records that are in the sink, and in the topic only in aborted transactions. It is asked
    if there are rows of which no record is known. `missing` gives those that are not there, by what makes
    several of them equal. It is asked if some states are of records that are missing `together`.
    """
    from pyspark.sql import functions as sf

    hop = Hop(f"{topic.name} → {sink.name}")
    hop.offsets = {each: (ends.earliest, ends.end) for each, ends in sorted(topic.ends.items())}
    sums = dict.fromkeys(_SUMMED, 0)
    condensed = _condensed(states, topic.slots).persist()
    try:
        by_source = condensed.groupBy("source").agg(*(sf.sum(each).alias(each) for each in _SUMMED))
        for row in by_source.collect():
            if row.promised or row.strange == 0:
                hop.sources[row.source] = Counts(**{each: row[each] for each in ("promised", *_COUNTED)})
            sums = {each: sums[each] + row[each] for each in _SUMMED}
        if topic.slots is not None:
            hop.timeline = _timeline(condensed, topic.slots.step)
        faulty = condensed.filter("named IS NOT NULL").select("source", "named.*", *_COUNTED)
        if missing is not None and not faulty.filter("together IS NOT NULL").isEmpty():
            faulty = _apart(faulty, missing())
        for fault in _FAULTS:
            if sums[fault.value]:
                hop.findings += _findings(fault, topic.name, faulty)
    finally:
        condensed.unpersist()
    records = aborted() if sums["strange"] else None
    if records is not None:
        begins = topic.earliest_now() if topic.earliest_now is not None else {}
        add_aborted(hop, aborted_in(topic.name, records, begins))
    add_doubts(hop, topic, sink.name, unknown=sums["unknown"])
    hop.doubts += too_many(sums[_TAKEN], sink.taken, sink.name)
    strange = sums["strange"] - hop.counts.aborted
    if strange > 0:
        hop.notes.append(
            f"{strange:,} rows are of records that {topic.name} does not hold any more, or that are left out"
        )
    hop.unnamed_findings = unnamed(hop)
    return hop


def add_doubts(hop: Hop, topic: Topic, sink: str, *, unknown: int = 0) -> None:
    """Why a hop to a sink cannot be called clean."""
    counts = hop.counts
    if unknown:
        hop.doubts.append(f"{unknown:,} records of {topic.name} have nothing to be compared by")
    if counts.hidden:
        hop.doubts.append(
            f"{counts.hidden:,} records may be behind a transaction in {sink} that has not ended: "
            "audit again when it has"
        )
    if not counts.promised:
        hop.doubts.append(f"{topic.name} holds no record that should be in {sink}")
    elif not topic.is_any_due:
        hop.doubts.append(f"no record of {topic.name} is due in {sink} yet: the --group has come to none")
    elif counts.promised == counts.expired:
        hop.doubts.append(f"nothing is left in {sink} of what {topic.name} holds")


def too_many(expired: int, taken: Taken | None, sink: str) -> list[str]:
    """A doubt, if more should have expired than can have been taken."""
    if taken is None or expired <= taken.rows:
        return []
    known = (
        "were taken at most" if taken.is_all else "are known to have been deleted; of others nobody can say"
    )
    missing = f"{expired:,} records are missing that are older than what is left in {sink}"
    return [f"{missing}, of which {taken.rows:,} rows {known}"]


def not_to_tell(hop: Hop, sink: str, empty: int) -> str:
    """The doubt of a compacted sink: what it may have taken may be lost as well."""
    return (
        f"{hop.counts.compacted:,} records are missing in {sink}, which is compacted and has {empty:,} "
        "offsets without a record: it may have taken them. Compare --by key --one-per-key"
    )


def _condensed(states: DataFrame, slots: range | None) -> DataFrame:
    """A row for each source and slot of time, and for each record with a fault: all in one pass."""
    from pyspark.sql import functions as sf

    is_faulty = (sf.col("lost") > 0) | (sf.col("duplicated") > 0) | (sf.col("torn") > 0)
    told = states.withColumns(
        {
            "named": sf.when(
                is_faulty, sf.struct("incarnation", "partition", "number", "offset", "ms", "together")
            ),
            "promised": sf.col("expected"),
            "unknown": sf.when(sf.col("there").isNull(), sf.col("expected")),
            "copies": sf.col("there") - sf.col("strange"),
            "slot": sf.lit(None).cast("long") if slots is None else _slot(slots),
        }
    )
    sums = (sf.sum(sf.coalesce(each, sf.lit(0))).alias(each) for each in (*_SUMMED, "copies"))
    return told.groupBy("source", "slot", "named").agg(*sums)


def _slot(slots: range) -> Column:
    """Where a record's slot begins; null if its time is none of those that are counted."""
    from pyspark.sql import functions as sf

    ms = sf.col("ms")
    return sf.when((ms >= slots.start) & (ms < slots.stop), ms - ms % slots.step)


def _timeline(condensed: DataFrame, width_ms: int) -> Timeline:
    from pyspark.sql import functions as sf

    told = Timeline(width_ms, is_sealed=False)
    slots = condensed.filter("slot IS NOT NULL").groupBy("source", "slot")
    for source, slot, promised, copies in slots.agg(sf.sum("promised"), sf.sum("copies")).collect():
        for count, by_source in ((promised, told.promised), (copies, told.present)):
            if count:
                by_source.setdefault(source, {})[slot] = count
    return told


def _apart(faulty: DataFrame, missing: DataFrame) -> DataFrame:
    """A row for each record of those that are missing together."""
    from pyspark.sql import functions as sf

    alone, together = faulty.filter("together IS NULL"), faulty.filter("together IS NOT NULL")
    names = missing.select(*NAME, "offset", "ms", sf.col("same_by").alias("together"))
    told = together.select("together", *((sf.col(each) > 0).cast("long").alias(each) for each in _COUNTED))
    return alone.unionByName(names.join(told, "together"))


def _findings(fault: Fault, topic: str, states: DataFrame) -> list[Finding]:
    """Records with this fault, those that follow each other as one."""
    rows = _islands(states.filter(f"{fault} > 0").withColumn("records", states[fault.value]))
    return [_finding(fault, topic, row) for row in rows]


def _finding(fault: Fault, topic: str, row: Any) -> Finding:
    return Finding(
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
        in_sink=True,
    )


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


def aborted_in(topic: str, records: DataFrame, begins: Mapping[int, int]) -> list[Finding]:
    """Name records of aborted transactions. Of an offset that holds nothing nobody can say whose it was.

    Records before `begins` were taken by retention while others were read, and were not aborted.
    """
    from pyspark.sql import functions as sf

    gone = sf.lit(False)
    for partition, earliest in begins.items():
        gone = gone | ((sf.col("partition") == partition) & (sf.col("offset") < earliest))
    left = records.filter(~gone).select(
        sf.coalesce("source", sf.lit(NOBODY)).alias("source"),
        sf.coalesce("incarnation", sf.lit(b"")).alias("incarnation"),
        "partition",
        sf.coalesce("number", "offset").alias("number"),
        "offset",
        "ms",
        sf.lit(1).alias("records"),
    )
    return [_finding(Fault.ABORTED, topic, row) for row in _islands(left)]


def add_aborted(hop: Hop, found: Iterable[Finding]) -> None:
    for finding in found:
        hop.findings.append(finding)
        hop.sources.setdefault(finding.source, Counts()).aborted += finding.records
