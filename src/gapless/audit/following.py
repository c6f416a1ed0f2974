"""Sinks that are watched: each look reads what has come to them since the last, and what has become due.

    with Follower(auditor, [SinkSpec.parse("kafka:clean")], Matching(), group="carriers") as follower:
        follower.look()             # a report of all hops

A record is due in a sink when the consumer group has come past it, or some time after it was in the topic.
What is kept follows sources and gaps, not records: the names of what was due, and how often each is there.
So only identities will do. Rows that tell offsets are given the identities that are there in the topic.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa

from gapless.audit.auditing import Auditor, Known, Pending
from gapless.audit.carried import ALWAYS_MS, IDENTITY, OFFSET, Matching, kept_from, named, what_rows_tell
from gapless.audit.cluster import Ends, may_have_lost
from gapless.audit.counting import Counted, Layers, counted, counted_by_spark, from_arrow, layers, plus
from gapless.audit.failing import mistakes, spark_errors
from gapless.audit.feeds import Changed, Due, Feed, feed_of
from gapless.audit.findings import Counts, Fault, Finding, Hop, Report
from gapless.audit.growing import before_of, held_too
from gapless.audit.judging import MOST_FINDINGS, Held, Streams, name_of, unnamed
from gapless.audit.naming import aborted_in, add_aborted, not_to_tell, too_many
from gapless.audit.places import ANY, Place, places_of
from gapless.audit.stretches import Stretches, concatenated, no_stretches
from gapless.audit.tables import SinkSpec
from gapless.errors import UsageError
from gapless.pipeline.dedup.runs import Ints, Runs, no_runs
from gapless.pipeline.dedup.seen import Seen
from gapless.pipeline.identity import identity, made_by

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_DUE, _POSSIBLE = 0, 2
"""Where among the layers is what was due, and what there can be."""
_WRONG_WHERE = "--where does not say of each record whether sinks should have it"
_BESIDE = ("strange", "taken")
"""States that are no counts of a hop."""
_REMEMBERED = 60
"""Ends of the topic that are remembered, for those who give records time: so many in that time."""


class Follower:
    """Audits a topic and its sinks, as often as it is asked to."""

    def __init__(
        self,
        auditor: Auditor,
        sinks: Sequence[SinkSpec],
        matching: Matching,
        *,
        group: str | None = None,
        grace_s: float = 60.0,
    ) -> None:
        self._auditor = auditor
        self._group = group
        self._grace_s = grace_s
        self._sinks = [FollowedSink(auditor, spec, matching) for spec in sinks]
        if sinks and matching.where is not None:
            # What cannot be is said now, and not at the first record that is due.
            with spark_errors(auditor.topic), mistakes(_WRONG_WHERE):
                none = auditor.reader.records(auditor.topic, auditor.cluster.ends(auditor.topic))
                none.filter(_unwanted(matching.where))
        self._due: dict[int, int] = {}
        self._ends: deque[tuple[float, dict[int, int]]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for sink in self._sinks:
            sink.close()

    def look(self, pending: Iterable[Pending] = ()) -> Report:
        """All hops, as they are now."""
        began_s = time.monotonic()
        # In this order: what is due is in the sinks by then, and what is in the sinks is in the topic.
        self._due = self._due_now()
        with spark_errors(f"{self._auditor.topic} and its sinks"):
            for sink in self._sinks:
                sink.read(self._due)
            report = self._auditor.look(pending)
            self._remember({each: at.end for each, at in self._auditor.known.ends.items()})
            report.hops += [sink.judge(self._due) for sink in self._sinks]
        report.seconds = time.monotonic() - began_s
        return report

    def _due_now(self) -> dict[int, int]:
        if self._group is not None:
            partitions = self._auditor.cluster.ends(self._auditor.topic)
            now = self._auditor.cluster.committed(self._group, self._auditor.topic, partitions)
        else:
            long_ago_s = time.monotonic() - self._grace_s
            while len(self._ends) > 1 and self._ends[1][0] <= long_ago_s:
                self._ends.popleft()
            now = self._ends[0][1] if self._ends and self._ends[0][0] <= long_ago_s else {}
        # A group that goes back has carried what it carried.
        return {each: max(now.get(each, 0), self._due.get(each, 0)) for each in now.keys() | self._due.keys()}

    def _remember(self, ends: dict[int, int]) -> None:
        now_s = time.monotonic()
        if not self._ends or now_s - self._ends[-1][0] >= self._grace_s / _REMEMBERED:
            self._ends.append((now_s, ends))


class FollowedSink:
    """One sink, and what is known of it."""

    def __init__(self, auditor: Auditor, spec: SinkSpec, matching: Matching) -> None:
        self._auditor = auditor
        self._spec = spec
        self._matching = matching
        self._feed: Feed = self._new_feed()
        by = matching.by or what_rows_tell(str(spec), self._feed.columns)
        if by not in (OFFSET, IDENTITY):
            raise UsageError(
                f"--watch compares by offset or identity, and not by {by}: what was seen of those is a few "
                "intervals, of keys it would be all of them"
            )
        self._by = by
        self._has_partition = by == OFFSET or "partition" in self._feed.columns
        self._forget()

    def _new_feed(self) -> Feed:
        auditor = self._auditor
        return feed_of(self._spec, auditor.topic, auditor.spark, auditor.cluster, auditor.reader)

    def _forget(self) -> None:
        self._is_spoilt = False
        self._names = Streams()
        self._there = counted(no_runs())
        self._old = counted(no_runs())
        self._kept = counted(no_runs())
        """What of that somebody says the sink does not keep so long."""
        self._excused: dict[str, int] = {}
        self._due = Held()
        self._due_at: dict[int, Ends] = {}
        self._due_before: dict[int, int] = {}
        self._is_new = True
        self._found: tuple[Runs, Stretches] = no_runs(), no_stretches()
        self._aborted: list[Finding] = []

    def read(self, due: Due) -> None:
        """What has come to the sink; all of it, if it is not what it was."""
        with self._all_or_nothing():
            if self._is_spoilt:
                self._begin_anew()
            try:
                self._feed.read(due, self._count)
            except Changed:
                self._begin_anew()
                self._feed.read(due, self._count)

    def close(self) -> None:
        self._feed.close()

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Where reading fails in the middle, nobody knows what was counted: all is read next time."""
        try:
            yield
        except BaseException:
            self._is_spoilt = True
            raise

    def _begin_anew(self) -> None:
        self._feed.close()
        self._feed = self._new_feed()
        self._forget()

    # ---------------------------------------------------------------------------------- what is there

    def _count(self, rows: DataFrame) -> None:
        names = self._named_by_offset(rows) if self._by == OFFSET else self._named(rows)
        if names is not None:
            self._add(names)

    def _add(self, names: DataFrame) -> dict[str, int]:
        """Count names as there. How many, by source."""
        more = from_arrow(counted_by_spark(names), self._names.key)
        self._there = plus(self._there, more)
        known, added = self._names.known(), dict[str, int]()
        for key, size in zip(
            more.keys.tolist(), ((more.lasts - more.firsts + 1) * more.times).tolist(), strict=True
        ):
            source = name_of(known[key][0])[0]
            added[source] = added.get(source, 0) + size
        return added

    def _named(self, records: DataFrame) -> DataFrame:
        """Maker, partition and number of rows with headers."""
        from pyspark.sql import functions as sf

        partition = sf.col("partition").cast("int") if self._has_partition else sf.lit(ANY)
        return (
            records.select(made_by().alias("maker"), partition.alias("partition"), identity().alias("id"))
            .filter("id IS NOT NULL")
            .select("maker", "partition", sf.col("id.sequence").alias("number"))
        )

    def _named_by_offset(self, rows: DataFrame) -> DataFrame | None:
        """The same of rows that tell partition and offset: by the records that the topic has there."""
        from pyspark.sql import functions as sf

        topic, auditor = self._auditor.topic, self._auditor
        own = rows.filter(sf.col("topic") == topic) if "topic" in rows.columns else rows
        offsets = own.select(sf.col("partition").cast("int"), sf.col("offset").cast("long")).persist()
        try:
            spans = offsets.groupBy("partition").agg(sf.min("offset"), sf.max("offset")).collect()
            told = {partition: (first, last) for partition, first, last in spans}
            now = auditor.cluster.ends(topic)  # who wrote the rows has read up to here at most
            ends = {
                each: at._replace(end=min(told[each][1] + 1, at.end) if each in told else at.earliest)
                for each, at in now.items()
            }
            if not any(each in told for each in ends):
                return None
            starts = {each: first for each, (first, _) in told.items()}
            records = auditor.reader.records(topic, ends, starts)
            self._note_aborted(offsets, records, ends, starts)
            return self._named(records.join(offsets, ["partition", "offset"])).localCheckpoint()
        finally:
            offsets.unpersist()

    def _note_aborted(
        self, offsets: DataFrame, records: DataFrame, ends: Mapping[int, Ends], starts: Mapping[int, int]
    ) -> None:
        """Rows at offsets at which readers of committed records find nothing."""
        if self._auditor.cluster.is_compacted(self._auditor.topic):
            return
        was_read = _within({each: (at.earliest, at.end) for each, at in ends.items()})
        places = ["partition", "offset"]
        strays = offsets.filter(was_read).distinct().join(records.select(*places), places, "left_anti")
        if strays.isEmpty():
            return
        every = named(self._auditor.reader.records(self._auditor.topic, ends, starts, aborted=True))
        begins = {each: at.earliest for each, at in self._auditor.cluster.ends(self._auditor.topic).items()}
        found = aborted_in(self._auditor.topic, strays.join(every, places, "left"), begins)
        self._aborted = [*self._aborted, *found][:MOST_FINDINGS]

    # ------------------------------------------------------------------------------------ what is due

    def _read_due(self, due: Due, known: Known) -> None:
        """Names of what has become due; those that the sink need not have count as there."""
        ends = {each: at._replace(end=min(due.get(each, 0), at.end)) for each, at in known.ends.items()}
        ends = {each: at._replace(end=max(at.end, at.earliest)) for each, at in ends.items()}
        before = {each: at.end for each, at in self._due_at.items()}
        reader, topic = self._auditor.reader, self._auditor.topic
        self._due_before = before
        if any(at.end > before.get(each, at.earliest) for each, at in ends.items()):
            past = before_of(self._due, before, known.streams)
            self._due = held_too(self._due, reader.held(topic, ends, known.streams, past))
            self._excuse(reader.records(topic, ends, before), known)
        self._due_at = ends

    def _excuse(self, records: DataFrame, known: Known) -> None:
        if self._matching.where is not None:
            with mistakes(_WRONG_WHERE):
                added = self._add(self._named(records.filter(_unwanted(self._matching.where))))
            for source, count in added.items():
                self._excused[source] = self._excused.get(source, 0) + count
        if not self._is_new:
            return
        self._is_new = False
        lowest = self._lowest()
        kept = kept_from(self._matching)
        begins = [*kept, self._feed.begins_ms()]
        if self._feed.is_deleted_from:
            begins.append(self._before_oldest_ms(lowest, known))
        begins_ms = max((each for each in begins if each is not None), default=None)
        if begins_ms is not None:
            self._old = self._until(begins_ms, records)
        if kept:
            self._kept = self._until(max(kept), records)
        if self._feed.is_deleted_from:
            # Whatever their times are: in each partition what is before the first that is left.
            begun = Runs(lowest.keys, np.zeros(len(lowest.keys), np.int64), lowest.firsts - 1)
            every = np.full(len(lowest.keys), len(known.ends), np.int64)
            self._old = plus(self._old, counted(begun, every))

    def _until(self, time_ms: int, records: DataFrame) -> Counted:
        from pyspark.sql import functions as sf

        old = records.filter(sf.unix_millis("timestamp") <= time_ms)
        return from_arrow(counted_by_spark(self._named(old)), self._names.key)

    def _lowest(self) -> Runs:
        """The first number of each name that is there."""
        keys, firsts = self._there.keys, self._there.firsts
        begins = np.ones(len(keys), np.bool_)
        begins[1:] = keys[1:] != keys[:-1]
        return Runs(keys[begins], firsts[begins], firsts[begins])

    def _before_oldest_ms(self, lowest: Runs, known: Known) -> int:
        """Up to when nothing is left of what was there, by the times of records in the topic."""
        wanted = self._wanted(lowest, known)
        if not wanted:
            return ALWAYS_MS
        found = self._auditor.reader.find(self._auditor.topic, known.ends, known.streams, wanted)
        return int(found.begins.times_ms.min()) - 1 if len(found.keys) else ALWAYS_MS

    # ----------------------------------------------------------------------------------- the judgement

    def judge(self, due: Due) -> Hop:
        known = self._auditor.known
        # Another leader may have other records at the offsets that were read.
        if any(may_have_lost(at, known.ends.get(each)) for each, at in self._due_at.items()):
            self._is_spoilt = True
            self.read(due)
        with self._all_or_nothing():
            self._read_due(due, known)
        laid = layers(
            self._of(self._due.held.runs, known),
            self._of(known.held.held.runs, known),
            self._of(
                Runs(*map(np.concatenate, zip(known.held.held.runs, known.promised, strict=True))), known
            ),
            self._there,
            self._old,
            self._kept,
        )
        hop = Hop(f"{self._auditor.topic} → {self._spec}")
        hop.offsets = {each: (at.earliest, at.end) for each, at in sorted(known.ends.items())}
        states = _states(laid, is_open=self._feed.is_open, is_compacted=self._feed.empty > 0)
        self._add_counts(hop, laid, states)
        where = self._located(laid, states, known)
        for fault in (Fault.LOST, Fault.DUPLICATED):
            hop.findings += self._findings(fault, laid, states[fault.value], where)
        hop.findings = hop.findings[:MOST_FINDINGS]
        add_aborted(hop, self._aborted)
        hop.unnamed_findings = unnamed(hop)
        self._add_remarks(hop, states, laid)
        return hop

    def _of(self, runs: Runs, known: Known) -> Counted:
        """Runs of the topic's streams under our names; twice in one stream is once."""
        if not len(runs.keys):
            return counted(runs)
        once = counted(runs)
        own = [
            self._names.key(maker, each if self._has_partition else ANY)
            for maker, each in known.streams.known()
        ]
        keys = np.array(own, np.int64)[once.keys]
        return counted(Runs(keys, once.firsts, once.lasts))

    def _add_counts(self, hop: Hop, laid: Layers, states: Mapping[str, Ints]) -> None:
        streams = self._names.known()
        tallies = {
            name: laid.summed(times, len(streams)) for name, times in states.items() if name not in _BESIDE
        }
        for key, (maker, _) in enumerate(streams):
            counts = Counts(**{name: int(column[key]) for name, column in tallies.items()})
            if counts.promised:
                hop.sources.setdefault(name_of(maker)[0], Counts()).__iadd__(counts)
        for source, count in self._excused.items():
            if source in hop.sources:
                hop.sources[source].promised -= count
                hop.sources[source].present -= count

    def _add_remarks(self, hop: Hop, states: Mapping[str, Ints], laid: Layers) -> None:
        without = sum(whole.without_identity for whole in self._due.partitions.values())
        if without:
            hop.doubts.append(f"{without:,} records of {self._auditor.topic} have nothing to be compared by")
        if hop.counts.hidden:
            hop.doubts.append(
                f"{hop.counts.hidden:,} records may be behind an open transaction in {self._spec}"
            )
        if not laid.times[_DUE].any():
            hop.doubts.append(f"no record of {self._auditor.topic} is due in {self._spec} yet")
        elif hop.counts.promised == hop.counts.expired:
            hop.doubts.append(f"nothing is left in {self._spec} of what {self._auditor.topic} holds")
        taken = int((states["taken"] * laid.sizes).sum())
        hop.doubts += too_many(taken, self._feed.taken, str(self._spec))
        if hop.counts.compacted:
            hop.doubts.append(not_to_tell(hop, str(self._spec), self._feed.empty))
        strange = int((states["strange"] * laid.sizes).sum())
        if strange:
            hop.notes.append(f"{strange:,} rows are of records that nobody knows in {self._auditor.topic}")

    # ------------------------------------------------------------------------------------------ naming

    def _located(self, laid: Layers, states: Mapping[str, Ints], known: Known) -> Stretches:
        """Where in the topic the records with a fault are. Looked for once, as long as they are the same."""
        faulty = laid.where((states["lost"] > 0) | (states["duplicated"] > 0))
        if _same(faulty, self._found[0]):
            return self._found[1]
        # Those that touch would be found as one stretch, of which only the ends tell where they are.
        follows = (faulty.keys[1:] == faulty.keys[:-1]) & (faulty.firsts[1:] - faulty.lasts[:-1] == 1)
        parts = [faulty] if not follows.any() else [Runs(*(each[at::2] for each in faulty)) for at in (0, 1)]
        found = concatenated([self._find(each, known) for each in parts])
        self._found = faulty, found.at(np.lexsort((found.firsts, found.keys)))
        return self._found[1]

    def _find(self, numbers: Runs, known: Known) -> Stretches:
        reader, topic = self._auditor.reader, self._auditor.topic
        wanted = self._wanted(numbers, known)
        # What is new is among what has just become due, as a rule; else it is anywhere.
        found = reader.find(topic, known.ends, known.streams, wanted, self._due_before)
        if found.sizes.sum() < (numbers.lasts - numbers.firsts + 1).sum():
            found = reader.find(topic, known.ends, known.streams, wanted)
        return found

    def _wanted(self, faulty: Runs, known: Known) -> dict[int, Seen]:
        names = self._names.known()
        rows: dict[int, list[tuple[bytes, int, int]]] = {}
        for key, first, last in zip(*(column[:MOST_FINDINGS].tolist() for column in faulty), strict=True):
            maker, partition = names[key]
            for each in known.ends if partition == ANY else [partition]:
                rows.setdefault(each, []).append((maker, first, last))
        found = {}
        for partition, names_here in rows.items():
            makers, firsts, lasts = zip(*sorted(names_here), strict=True)
            found[partition] = Seen(pa.array(makers, pa.binary()), np.array(firsts), np.array(lasts))
        return found

    def _findings(self, fault: Fault, laid: Layers, records: Ints, where: Stretches) -> list[Finding]:
        names, found = self._names.known(), []
        streams: dict[bytes, list[tuple[int, int]]] = {}
        for key, (maker, each) in enumerate(self._auditor.known.streams.known()):
            streams.setdefault(maker, []).append((key, each))
        for at in np.flatnonzero(records)[:MOST_FINDINGS].tolist():
            maker, partition = names[int(laid.keys[at])]
            first, last = int(laid.firsts[at]), int(laid.lasts[at])
            places = places_of(maker, partition, (first, last), where, streams)
            times, possible = int(records[at]), int(laid.times[_POSSIBLE][at])
            if len(places) == 1 and possible <= 1:
                told = [(places[0], times)]
            elif fault is Fault.LOST and times == possible == len(places):
                told = [(place, 1) for place in places]
            else:
                # In one of several partitions, or in none since retention has taken it: nobody can say where.
                told = [(Place(partition), times)]
            for place, count in told:
                name = (*name_of(maker), self._auditor.topic, place.partition, first, last)
                finding = Finding(fault, *name, count * (last - first + 1), *place[1:], in_sink=True)
                found.append(finding)
        return found


def _unwanted(where: str) -> str:
    return f"NOT coalesce({where}, false)"


def _states(laid: Layers, *, is_open: bool, is_compacted: bool) -> dict[str, Ints]:
    """What is true of each name, as how many of it."""
    due, held, possible, there, old, kept = laid.times
    promised = np.maximum(held, due)
    missing = np.clip(due - there, 0, None)
    expired = np.minimum(old, missing)
    taken = expired - np.minimum(kept, expired)
    missing -= expired
    none = np.zeros_like(missing)
    return {
        "promised": promised,
        "present": np.minimum(there, promised),
        "pending": np.clip(promised - np.maximum(due, there), 0, None),
        "expired": expired,
        "taken": taken,
        "lost": none if is_open or is_compacted else missing,
        "compacted": missing if is_compacted and not is_open else none,
        "hidden": missing if is_open else none,
        # A number is given in each partition: as often as that, it is no double.
        "duplicated": np.where(there > 1, np.clip(there - np.maximum(possible, 1), 0, None), 0),
        "strange": np.where(possible == 0, there, 0),
    }


def _same(one: Runs, other: Runs) -> bool:
    return all(np.array_equal(mine, yours) for mine, yours in zip(one, other, strict=True))


def _within(ranges: Mapping[int, tuple[int, int]]) -> Column:
    from pyspark.sql import functions as sf

    inside = sf.lit(False)
    for partition, (first, end) in ranges.items():
        inside = inside | (
            (sf.col("partition") == partition) & (sf.col("offset") >= first) & (sf.col("offset") < end)
        )
    return inside
