"""One audit, from asking the cluster to the report."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gapless.audit.carried import Matching, Topic, judge_sink
from gapless.audit.cluster import Cluster, Ends
from gapless.audit.findings import Hop, Report
from gapless.audit.foreign import judge_repeats, judge_windows
from gapless.audit.growing import before_of, held_too, promised_too, without_partition
from gapless.audit.judging import Held, Promised, Streams, judge_topic
from gapless.audit.reading import Reader
from gapless.audit.stretches import as_set
from gapless.audit.tables import SinkSpec, rows_of
from gapless.client.formats import LEDGER_TOPIC, Interval, source_header
from gapless.pipeline.dedup.runs import Runs
from gapless.pipeline.properties import ClientProperties, client_properties

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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

    With `foreign` nobody has promised anything: records are compared with sinks, or with each other, only.
    Records that the consumer group `group` has not come to are not due in the sinks; without one, all are.
    Raises `Unreachable` if the cluster does not answer and `UsageError` if there is no such topic.
    """
    began_s = time.monotonic()
    auditor = Auditor(spark, bootstrap, topic, ledger=ledger, properties=properties)
    report = auditor.glance() if foreign else auditor.look(pending)
    report.hops += auditor.look_into(sinks, matching or Matching(), group)
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
        self._spark = spark
        self._bootstrap = bootstrap
        self._topic = topic
        self._ledger = ledger
        self._cluster = Cluster(bootstrap, properties.for_librdkafka(bootstrap))
        self._reader = Reader(spark, bootstrap, properties)
        self._streams = Streams()
        self._promised = Promised()
        self._promised_to: dict[int, Ends] = {}
        self._held = Held()
        self._held_to: dict[int, Ends] = {}

    def look(self, pending: Iterable[Pending] = ()) -> Report:
        """The hop from producers to the topic, as it is now."""
        began_s, at_ms = time.monotonic(), time.time_ns() // 1_000_000
        self._cluster.ends(self._topic)  # raises before anything is read
        has_ledger = self._cluster.has(self._ledger)
        if has_ledger:
            self._read_ledger()
        self._read_topic()
        hop = judge_topic(
            self._topic,
            self._streams,
            self._promised,
            self._held,
            pending=_pending_runs(self._topic, list(pending), self._streams),
            compacted=self._cluster.is_compacted(self._topic),
        )
        if not has_ledger:
            where = f"{self._ledger} at {self._bootstrap}"
            hop.doubts = [f"there is no ledger {where}, so nothing is known to be promised"]
        return Report(self._topic, self._bootstrap, at_ms, [hop], time.monotonic() - began_s)

    def glance(self) -> Report:
        """No hop at all: only how far the topic goes now."""
        at_ms = time.time_ns() // 1_000_000
        self._held_to = self._cluster.ends(self._topic)
        return Report(self._topic, self._bootstrap, at_ms, [])

    def look_into(self, sinks: Sequence[SinkSpec], matching: Matching, group: str | None) -> list[Hop]:
        """The hops from the topic, as far as it was read, to sinks; without any, records that are equal."""
        if not sinks and matching.by is None:
            return []
        # First, how far a group has come: what it has come to is in the sinks by then.
        ends = self._held_to
        carried_to = None if group is None else self._cluster.committed(group, self._topic, ends)
        records = self._reader.records(self._topic, ends)
        compacted = self._cluster.is_compacted(self._topic)
        topic = Topic(self._topic, records, ends, carried_to, compacted, self._beginnings)
        if not sinks:
            return [judge_repeats(topic, str(matching.by))]
        return [self._judge(sink, topic, matching) for sink in sinks]

    def _judge(self, sink: SinkSpec, topic: Topic, matching: Matching) -> Hop:
        rows = rows_of(sink, self._spark, self._cluster, self._reader)
        if matching.window is not None and matching.sink_time is not None:
            return judge_windows(str(sink), topic, rows, matching.window, matching.sink_time)
        begins_ms = None
        if sink.kind == "kafka":
            begins_ms = self._reader.begins_ms(sink.where, self._cluster.ends(sink.where))
        return judge_sink(str(sink), topic, rows, matching, begins_ms=begins_ms)

    def _beginnings(self) -> dict[int, int]:
        return {each: ends.earliest for each, ends in self._cluster.ends(self._topic).items()}

    def _read_ledger(self) -> None:
        ends = self._cluster.ends(self._ledger)
        if any(_may_have_lost(before, ends.get(each)) for each, before in self._promised_to.items()):
            # It is read again. What was promised once stays so.
            self._promised = Promised(self._promised.runs, repaired=self._promised.repaired)
            self._promised_to = {}
        starts = {each: at.end for each, at in self._promised_to.items()}
        news = self._reader.promised(self._ledger, ends, self._topic, self._streams, starts)
        self._promised = promised_too(self._promised, news)
        self._promised_to = ends

    def _read_topic(self) -> None:
        ends = self._cluster.settled_ends(self._topic)
        for partition, last in self._held_to.items():
            if _may_have_lost(last, ends.get(partition)):
                self._held = without_partition(self._held, partition, self._streams)
        known = {each: at.end for each, at in self._held_to.items() if each in self._held.partitions}
        before = before_of(self._held, known, self._streams)
        self._held = held_too(self._held, self._reader.held(self._topic, ends, self._streams, before))
        self._held_to = ends
        # What retention took while it was read is gone, too.
        for partition, now in self._cluster.ends(self._topic).items():
            if partition in self._held.partitions:
                whole = self._held.partitions[partition]
                self._held.partitions[partition] = whole._replace(earliest=now.earliest)


def _may_have_lost(before: Ends, now: Ends | None) -> bool:
    """Whether a log may have been cut since: another leader may have less, and a new topic has nothing."""
    return now is None or now.end < before.end or now.epoch != before.epoch


def _pending_runs(topic: str, pending: list[Pending], streams: Streams) -> Runs:
    rows = [
        (streams.key(source_header(source, incarnation), each.partition), each.first, each.last)
        for source, incarnation, each in pending
        if each.topic == topic
    ]
    columns = np.array(rows, np.int64).reshape(len(rows), 3).T
    return as_set(Runs(*columns))
