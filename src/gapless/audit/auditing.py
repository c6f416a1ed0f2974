"""One audit, from asking the cluster to the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from gapless.audit.carried import Matching, Topic, judge_sink
from gapless.audit.cluster import Cluster, Ends, may_have_lost
from gapless.audit.failing import spark_errors
from gapless.audit.findings import Fault, Finding, Hop, Report
from gapless.audit.foreign import judge_offsets, judge_repeats, judge_windows
from gapless.audit.growing import before_of, held_too, promised_too, still_fresh, without_partition
from gapless.audit.judging import Held, Promised, Streams, judge_topic
from gapless.audit.reading import Reader
from gapless.audit.stretches import Stretches, as_set, no_stretches
from gapless.audit.tables import SinkSpec, sink_of
from gapless.client.formats import LEDGER_TOPIC, Interval, source_header
from gapless.pipeline.dedup.runs import Runs
from gapless.pipeline.dedup.seen import Seen
from gapless.pipeline.properties import ClientProperties, client_properties

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Known(NamedTuple):
    """What an auditor knows of its topic."""

    streams: Streams
    held: Held
    promised: Runs
    ends: dict[int, Ends]


Pending = tuple[str, bytes, Interval]
"""Source, incarnation, and what of it is in a spool and has not been sent."""


def audit(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    *,
    ledger: str = LEDGER_TOPIC,
    properties: ClientProperties | None = None,
    pending: Iterable[Pending] = (),
    sinks: Sequence[SinkSpec] = (),
    matching: Matching | None = None,
    group: str | None = None,
    foreign: bool = False,
) -> Report:
    """Compare what producers promise of a topic with what it holds, and that with what sinks hold.

    With `foreign` nobody has promised anything: records are compared with sinks, or with each other, only;
    without either, each offset must hold one.
    Records that the consumer group `group` has not come to are not due in the sinks; without one, all are.
    Raises `Unreachable` if the cluster does not answer and `UsageError` if there is no such topic.
    """
    began_s = time.monotonic()
    auditor = Auditor(spark, bootstrap, topic, ledger=ledger, properties=properties)
    report = auditor.glance() if foreign else auditor.look(pending)
    report.hops += auditor.look_into(sinks, matching or Matching(), group)
    if not report.hops:
        report.hops.append(auditor.look_for_holes())
    report.seconds = time.monotonic() - began_s
    return report


class Auditor:
    """Audits one topic, as often as it is asked to. Each time it reads only what has come since the last."""

    def __init__(
        self,
        spark: SparkSession,
        bootstrap: str,
        topic: str,
        *,
        ledger: str = LEDGER_TOPIC,
        properties: ClientProperties | None = None,
    ) -> None:
        properties = properties or client_properties()
        self.spark = spark
        self.topic = topic
        self.cluster = Cluster(bootstrap, properties.for_librdkafka(bootstrap))
        self.reader = Reader(spark, bootstrap, properties)
        self._bootstrap = bootstrap
        self._ledger = ledger
        self._streams = Streams()
        self._promised = Promised()
        self._promised_to: dict[int, Ends] = {}
        self._held = Held()
        self._held_to: dict[int, Ends] = {}
        self._aborted: tuple[list[Finding], Stretches] = ([], no_stretches())
        """What was lost when it was looked for in aborted transactions, and what of it is there."""

    def look(self, pending: Iterable[Pending] = ()) -> Report:
        """The hop from producers to the topic, as it is now."""
        began_s, at_ms = time.monotonic(), time.time_ns() // 1_000_000
        self.cluster.ends(self.topic)  # raises before anything is read
        has_ledger = self.cluster.has(self._ledger)
        with spark_errors(self._where):
            if has_ledger:
                self._read_ledger()
            self._read_topic()
            hop = self._judge_topic(_pending_runs(self.topic, list(pending), self._streams))
        if not has_ledger:
            where = f"{self._ledger} at {self._bootstrap}"
            hop.doubts = [f"there is no ledger {where}, so nothing is known to be promised"]
        return Report(self.topic, self._bootstrap, at_ms, [hop], time.monotonic() - began_s)

    @property
    def _where(self) -> str:
        return f"{self.topic} at {self._bootstrap}"

    @property
    def known(self) -> Known:
        """What is known of the topic since the last look."""
        return Known(self._streams, self._held, self._promised.runs, self._held_to)

    def glance(self) -> Report:
        """No hop at all: only how far the topic goes now."""
        at_ms = time.time_ns() // 1_000_000
        self._held_to = self.cluster.ends(self.topic)
        return Report(self.topic, self._bootstrap, at_ms, [])

    def look_into(self, sinks: Sequence[SinkSpec], matching: Matching, group: str | None) -> list[Hop]:
        """The hops from the topic, as far as it was read, to sinks; without any, records that are equal."""
        if not sinks and matching.by is None:
            return []
        topic = self.as_topic(group)._replace(slots=_slots(self._held))
        if not sinks:
            with spark_errors(self._where):
                return [judge_repeats(topic, str(matching.by))]
        return [self._judge(sink, topic, matching) for sink in sinks]

    def look_for_holes(self) -> Hop:
        """Whether each offset of the topic, as far as it was read, holds a record."""
        with spark_errors(self._where):
            return judge_offsets(self.as_topic())

    def as_topic(self, group: str | None = None) -> Topic:
        """What sinks are compared with: the topic, as far as it was read."""
        ends = self._held_to
        # First, how far a group has come: what it has come to is in the sinks by then.
        carried_to = None if group is None else self.cluster.committed(group, self.topic, ends)
        records = self.reader.records(self.topic, ends)
        compacted = self.cluster.is_compacted(self.topic)
        return Topic(
            self.topic,
            records,
            ends,
            carried_to,
            compacted,
            self._beginnings,
            self._with_aborted(),
            begins_ms=lambda: self.reader.begins_ms(self.topic, self.cluster.ends(self.topic)),
        )

    def _judge_topic(self, pending: Runs) -> Hop:
        judge = partial(
            judge_topic,
            self.topic,
            self._streams,
            self._promised,
            self._held,
            pending=pending,
            compacted=self.cluster.is_compacted(self.topic),
        )
        hop = judge()
        lost = [finding for finding in hop.findings if finding.fault is Fault.LOST]
        if not lost or self._with_aborted() is None:
            return hop
        if lost != self._aborted[0]:
            missing = {each.partition: _names(lost, each.partition) for each in lost}
            known = {each: at for each, at in self._held_to.items() if each in self._held.partitions}
            self._aborted = lost, self.reader.find(self.topic, known, self._streams, missing, aborted=True)
        return judge(aborted=self._aborted[1])

    def _judge(self, sink: SinkSpec, topic: Topic, matching: Matching) -> Hop:
        held = sink_of(sink, self.spark, self.cluster, self.reader)
        judge = judge_sink if matching.window is None else judge_windows
        with spark_errors(f"{self._where}, or {held.name}"):
            return judge(topic, held, matching)

    def _with_aborted(self) -> Callable[[], DataFrame] | None:
        """For who wants the records of aborted transactions, too; None if there are none.

        Where every offset holds a record there are none; where compaction took records nobody can tell.
        """
        wholes = self._held.partitions.values()
        if self.cluster.is_compacted(self.topic):
            return None
        if wholes and all(each.end - each.earliest == each.records for each in wholes):
            return None
        return partial(self.reader.records, self.topic, self._held_to, aborted=True)

    def _beginnings(self) -> dict[int, int]:
        return {each: ends.earliest for each, ends in self.cluster.ends(self.topic).items()}

    def _read_ledger(self) -> None:
        ends = self.cluster.ends(self._ledger)
        if any(may_have_lost(before, ends.get(each)) for each, before in self._promised_to.items()):
            # It is read again. What was promised once stays so.
            known = self._promised
            self._promised = Promised(
                known.runs, repaired=known.repaired, sealed=known.sealed, fresh=known.fresh
            )
            self._promised_to = {}
        starts = {each: at.end for each, at in self._promised_to.items()}
        news = self.reader.promised(self._ledger, ends, self.topic, self._streams, starts)
        self._promised = promised_too(self._promised, news)
        self._promised_to = ends

    def _read_topic(self) -> None:
        ends = self.cluster.settled_ends(self.topic)
        for partition, last in self._held_to.items():
            if may_have_lost(last, ends.get(partition)):
                self._held = without_partition(self._held, partition, self._streams)
        known = {each: at.end for each, at in self._held_to.items() if each in self._held.partitions}
        before = before_of(self._held, known, self._streams)
        self._held = held_too(self._held, self.reader.held(self.topic, ends, self._streams, before))
        self._held_to = ends
        # What retention took while it was read is gone, too.
        begins = self._beginnings()
        for partition, earliest in begins.items():
            whole = self._held.partitions.get(partition)
            if whole is not None and earliest > known.get(partition, ends[partition].earliest):
                now_ms = time.time_ns() // 1_000_000
                self._held.partitions[partition] = whole._replace(earliest=earliest, begins_ms=now_ms)
        without_hole = {each for each, end in known.items() if begins.get(each, end) <= end}
        self._promised.fresh = still_fresh(self._promised, without_hole, self._streams)


def _slots(held: Held) -> range | None:
    """Slots of time in which all was counted that was read of a topic."""
    if not held.slots:
        return None
    width_ms = max(each.width_ms for each in held.slots)
    first_ms = min(each.begins_ms for each in held.slots) // width_ms * width_ms
    return range(first_ms, max(each.begins_ms + each.width_ms for each in held.slots), width_ms)


def _names(findings: Iterable[Finding], partition: int) -> Seen:
    """The sequences that findings name in a partition."""
    rows = sorted(
        (source_header(each.source, bytes.fromhex(each.incarnation)), each.first, each.last)
        for each in findings
        if each.partition == partition
    )
    makers, firsts, lasts = zip(*rows, strict=True)
    return Seen(pa.array(makers, pa.binary()), np.array(firsts, np.int64), np.array(lasts, np.int64))


def _pending_runs(topic: str, pending: list[Pending], streams: Streams) -> Runs:
    rows = [
        (streams.key(source_header(source, incarnation), each.partition), each.first, each.last)
        for source, incarnation, each in pending
        if each.topic == topic
    ]
    columns = np.array(rows, np.int64).reshape(len(rows), 3).T
    return as_set(Runs(*columns))
