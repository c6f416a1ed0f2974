"""What Spark reads for an audit: the ledger's promises, and what a topic holds, as few rows as can be.

The ledger is read first, and a topic's ends are asked afterwards: whatever a seal promises was acknowledged
before, so it must be in front of those ends. Only committed records count.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gapless.audit.carried import ALWAYS_MS
from gapless.audit.cluster import Ends
from gapless.audit.judging import Held, Promised, Slot, Streams, Whole
from gapless.audit.sealing import Sealed, nothing_sealed, sealed_too
from gapless.audit.stretches import HIGHEST, Spots, Stretches, as_set, either
from gapless.audit.tally import AGAIN, BEYOND, HELD, LATE, SCHEMA, WHEN, WHOLE, Before, Tally
from gapless.audit.times import History
from gapless.client.formats import SEAL_VERSION
from gapless.pipeline.dedup.makers import Makers
from gapless.pipeline.dedup.runs import Ints, Runs, floor, no_runs
from gapless.pipeline.dedup.seen import Seen
from gapless.pipeline.identity import SOURCE_PATTERN, VERSION, made_by, sequence_bytes
from gapless.pipeline.source import reading_options

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import Column, DataFrame, SparkSession

    from gapless.pipeline.properties import ClientProperties

_TALLIED = "partition int, kind string, maker binary, " + ", ".join(
    f"{name} long" for name in SCHEMA.names[2:]
)
_SEAL = (
    "version INT, source STRING, incarnation STRING, sealed_at_ms LONG, reason STRING, "
    "intervals ARRAY<ARRAY<STRING>>, counts MAP<STRING, LONG>"
)
REPAIRED, COUNTED, UNREADABLE, SEALED, TIMELY = "repaired", "counted", "unreadable", "sealed", "timely"
"""Kinds of rows of the ledger, beside those of topics."""
# The very first offsets may be markers of transactions, or of aborted records.
_FIRST_OFFSETS = 1000
_PROMISED = "kind string, maker binary, partition int, first long, last long, width long"


class Reader:
    """Reads topics of one cluster."""

    def __init__(self, spark: SparkSession, bootstrap: str, properties: ClientProperties) -> None:
        self._spark = spark
        self._options = reading_options(bootstrap, properties)

    def records(
        self,
        topic: str,
        ends: Mapping[int, Ends],
        starts: Mapping[int, int] | None = None,
        *,
        aborted: bool = False,
    ) -> DataFrame:
        """The committed records of a topic in front of these ends. A task reads a partition, in order.

        Partitions of which `starts` says nothing are read from their beginning. With `aborted`, records of
        aborted transactions are among them.
        """
        known = starts or {}
        starting = {
            topic: {str(each): min(max(known.get(each, 0), at.earliest), at.end) for each, at in ends.items()}
        }
        ending = {topic: {str(each): at.end for each, at in ends.items()}}
        options = {
            **self._options,
            "subscribe": topic,
            "startingOffsets": json.dumps(starting),
            "endingOffsets": json.dumps(ending),
            # What retention takes meanwhile is noticed by asking for the beginnings once more.
            "failOnDataLoss": "false",
        }
        if aborted:
            options["kafka.isolation.level"] = "read_uncommitted"
        return self._spark.read.format("kafka").options(**options).load()

    def begins_ms(self, topic: str, ends: Mapping[int, Ends]) -> int | None:
        """Up to when retention has taken records of a topic, by the first that are left; None: of none."""
        from pyspark.sql import functions as sf

        cut = {
            partition: at._replace(end=min(at.earliest + _FIRST_OFFSETS, at.end))
            for partition, at in ends.items()
            if at.earliest > 0
        }
        if not cut:
            return None
        beside = {each: at._replace(end=at.earliest) for each, at in ends.items() if each not in cut}
        first = (
            self.records(topic, {**beside, **cut}).groupBy("partition").agg(sf.min("timestamp").alias("at"))
        )
        found = first.agg(sf.unix_millis(sf.max("at")), sf.count("*")).collect()[0]
        # A partition of which nothing is left may have had anything.
        return ALWAYS_MS if found[1] < len(cut) else int(found[0])

    def empty(self, topic: str, ends: Mapping[int, Ends], starts: Mapping[int, int] | None = None) -> int:
        """How many offsets hold nothing, be it of an aborted transaction."""
        known = starts or {}
        offsets = (at.end - max(at.earliest, known.get(each, 0)) for each, at in ends.items())
        return max(sum(offsets) - self.records(topic, ends, starts, aborted=True).count(), 0)

    def held(
        self,
        topic: str,
        ends: Mapping[int, Ends],
        streams: Streams,
        before: Mapping[int, Before] | None = None,
    ) -> Held:
        """What a topic holds, or what has come to it since what was read `before`."""
        known = dict(before or {})
        starts = {partition: each.end for partition, each in known.items()}
        rows = self._mapped(self.records(topic, ends, starts), _tallying, known)
        return gathered(rows, ends, streams)

    def find(
        self,
        topic: str,
        ends: Mapping[int, Ends],
        streams: Streams,
        wanted: Mapping[int, Seen],
        starts: Mapping[int, int] | None = None,
        *,
        aborted: bool = False,
    ) -> Stretches:
        """Where sequences are that somebody looks for. Only partitions of which some are wanted are read."""
        within = {each: at if each in wanted else at._replace(end=at.earliest) for each, at in ends.items()}
        read = self.records(topic, within, starts, aborted=aborted)
        rows = self._mapped(read, _picking, dict(wanted))
        return gathered(rows, within, streams).held

    def _mapped(
        self,
        records: DataFrame,
        by: Callable[[Broadcast[Any]], Callable[[Iterator[Any]], Iterator[Any]]],
        known: dict[int, Any],
    ) -> Any:
        """What tallies of records tell, given what is known of each partition."""
        from pyspark.sql import functions as sf

        columns = records.select(
            "partition",
            "offset",
            sf.unix_millis("timestamp").alias("ms"),
            made_by().alias("maker"),
            sequence_bytes().alias("sequence"),
        )
        shared = self._spark.sparkContext.broadcast(known)
        try:
            return columns.mapInArrow(by(shared), _TALLIED).toArrow()
        finally:
            shared.destroy()

    def promised(
        self,
        ledger: str,
        ends: Mapping[int, Ends],
        topic: str,
        streams: Streams,
        starts: Mapping[int, int] | None = None,
    ) -> Promised:
        """What the ledger promises of a topic, from some offsets on. One pass, whatever is asked of it."""
        from pyspark.sql import functions as sf

        read = self.records(ledger, ends, starts).select(
            sf.from_json(sf.col("value").cast("string"), _SEAL).alias("seal")
        )
        told = sf.expr("filter(seal.intervals, each -> each[0] = topic)")
        # A row at least for each, be it readable or not.
        rows = (
            read.select(
                "seal", _is_seal().alias("readable"), _maker().alias("maker"), sf.lit(topic).alias("topic")
            )
            .select("*", sf.explode_outer(sf.when(sf.col("readable"), told)).alias("each"))
            .selectExpr(
                "readable",
                "maker",
                "TRY_CAST(each[1] AS INT) AS partition",
                "TRY_CAST(each[2] AS LONG) AS first",
                "TRY_CAST(each[3] AS LONG) AS last",
                # What is promised once more was promised, or at least acknowledged, before.
                "IF(seal.reason IN ('recovered', 'repaired'), -1, seal.sealed_at_ms) AS ms",
                "seal.reason = 'repaired' AS repaired",
                "seal.counts[topic] AS count",
            )
            .mapInArrow(_united, _PROMISED)
            .toArrow()
        )
        counts: dict[bytes, int] = {}
        counted = _of_kind(rows, COUNTED)
        for maker, count in zip(counted["maker"].to_pylist(), counted["last"].to_pylist(), strict=True):
            counts[maker] = max(count, counts.get(maker, 0))
        return Promised(
            as_set(_runs(_of_kind(rows, HELD), streams)),
            counts,
            sum(_of_kind(rows, UNREADABLE)["last"].to_pylist()),
            _slots(_of_kind(rows, WHEN), "first", "width"),
            as_set(_runs(_of_kind(rows, REPAIRED), streams)),
            sealed_too(nothing_sealed(), Sealed(*_runs(_of_kind(rows, SEALED), streams))),
            as_set(_runs(_of_kind(rows, TIMELY), streams)),
        )


def _is_seal() -> Column:
    """Whether a value can be read as `formats.Seal.from_bytes` would, with numbers that can be."""
    from pyspark.sql import functions as sf

    bad = (
        "each -> size(each) <> 4 OR each[0] IS NULL OR coalesce(TRY_CAST(each[1] AS INT), -1) < 0 "
        "OR coalesce(TRY_CAST(each[2] AS LONG), -1) < 0 "
        f"OR NOT coalesce(TRY_CAST(each[3] AS LONG), -1) BETWEEN TRY_CAST(each[2] AS LONG) AND {HIGHEST - 1}"
    )
    told = (
        f"seal.version = {SEAL_VERSION} AND seal.source RLIKE '^{SOURCE_PATTERN}$' "
        "AND seal.incarnation RLIKE '^[0-9a-f]{16}$' AND seal.sealed_at_ms IS NOT NULL "
        f"AND seal.intervals IS NOT NULL AND NOT exists(seal.intervals, {bad})"
    )
    return sf.coalesce(sf.expr(told), sf.lit(False))


def _maker() -> Column:
    """The bytes of the header by which records name their maker."""
    from pyspark.sql import functions as sf

    return sf.concat(sf.lit(VERSION), sf.unhex("seal.incarnation"), sf.encode("seal.source", "utf-8"))


def _tallying(shared: Broadcast[dict[int, Before]]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Tallies a partition, by what was read of it before."""

    def tallied(batches: Iterator[Any]) -> Iterator[Any]:
        tally = partition = None
        for batch in batches:
            if not batch.num_rows:
                continue
            if tally is None:
                partition = batch["partition"][0].as_py()
                tally = Tally(shared.value.get(partition))
            tally.add(batch["maker"], batch["sequence"], batch["offset"], batch["ms"])
        if tally is not None:
            yield _of_partition(tally, partition)

    return tallied


def _picking(shared: Broadcast[dict[int, Seen]]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Tallies those records of a partition that are looked for."""

    def picked(batches: Iterator[Any]) -> Iterator[Any]:
        tally, makers, partition = Tally(), Makers(), None
        wanted = Seen.nothing()
        for batch in batches:
            if not batch.num_rows:
                continue
            if partition is None:
                partition = batch["partition"][0].as_py()
                wanted = shared.value[partition]
            told = makers.read(batch["maker"], batch["sequence"])
            runs = wanted.runs_of(pa.array(makers.known, pa.binary()))
            at = floor(runs, told.keys, told.sequences)
            found = at >= 0
            found[found] = runs.lasts[at[found]] >= told.sequences[found]
            part = batch.take(pa.array(told.places[found]))
            tally.add(part["maker"], part["sequence"], part["offset"], part["ms"])
        if partition is not None:
            yield _of_partition(tally, partition)

    return picked


def _of_partition(tally: Tally, partition: int | None) -> Any:
    rows = tally.rows()
    numbers = pa.array(np.full(rows.num_rows, partition, np.int32))
    return pa.RecordBatch.from_arrays([numbers, *rows.columns], names=["partition", *rows.schema.names])


def _united(batches: Iterator[Any]) -> Iterator[Any]:
    """Intervals of seals, as few as can be: they are promised one after the other."""
    streams, when = Streams(), History()
    makers: dict[bytes, int] = {}
    counts: dict[bytes, int] = {}
    held = repaired = timely = no_runs()
    sealed, unreadable = nothing_sealed(), 0
    for batch in batches:
        seals = batch.filter(batch["readable"])
        unreadable += batch.num_rows - seals.num_rows
        for maker, count in _highest(seals):
            counts[maker] = max(count, counts.get(maker, 0))
        told = seals.filter(seals["partition"].is_valid())
        more = _runs(told, streams)
        held = either(held, more)
        repaired = either(repaired, _runs(told.filter(told["repaired"]), streams))
        soon = told.filter(np.greater_equal(_ints(told, "ms"), 0))
        in_time = _runs(soon, streams)
        timely = either(timely, in_time)
        sealed = sealed_too(sealed, Sealed(in_time.keys, in_time.lasts, _ints(soon, "ms")))
        keys = [makers.setdefault(each, len(makers)) for each in told["maker"].to_pylist()]
        when.add(np.array(keys, np.int64), _ints(told, "ms"), more.lasts - more.firsts + 1)
    known, named = streams.known(), list(makers)
    table = [
        (UNREADABLE, None, -1, 0, unreadable, 0),
        *((HELD, *known[key], first, last, 0) for key, first, last in zip(*held, strict=True)),
        *((REPAIRED, *known[key], first, last, 0) for key, first, last in zip(*repaired, strict=True)),
        *((TIMELY, *known[key], first, last, 0) for key, first, last in zip(*timely, strict=True)),
        *((SEALED, *known[key], last, ms, 0) for key, last, ms in zip(*sealed, strict=True)),
        *((WHEN, named[key], -1, begins, count, when.width_ms) for key, begins, count in when.cells()),
        *((COUNTED, maker, -1, 0, count, 0) for maker, count in counts.items()),
    ]
    kinds = (pa.string(), pa.binary(), pa.int32(), pa.int64(), pa.int64(), pa.int64())
    yield pa.RecordBatch.from_arrays(
        [pa.array(column, kind) for column, kind in zip(zip(*table, strict=True), kinds, strict=True)],
        names=["kind", "maker", "partition", "first", "last", "width"],
    )


def _highest(seals: Any) -> Iterator[tuple[bytes, int]]:
    """By maker: the highest count of its seals."""
    table = pa.table({"maker": seals["maker"], "count": seals["count"]}).drop_null()
    found = table.group_by("maker").aggregate([("count", "max")])
    yield from zip(found["maker"].to_pylist(), found["count_max"].to_pylist(), strict=True)


def _of_kind(rows: Any, kind: str) -> Any:
    import pyarrow.compute as pc

    return rows.filter(pc.equal(rows["kind"], kind))


def _slots(rows: Any, begins: str, width: str) -> list[Slot]:
    columns = (rows[name].to_pylist() for name in ("maker", "partition", begins, width, "last"))
    return [Slot(*row) for row in zip(*columns, strict=True)]


def _runs(rows: Any, streams: Streams) -> Runs:
    return Runs(_keys(rows, streams), _ints(rows, "first"), _ints(rows, "last"))


def _keys(rows: Any, streams: Streams) -> Ints:
    pairs = zip(rows["maker"].to_pylist(), rows["partition"].to_pylist(), strict=True)
    return np.array([streams.key(maker, partition) for maker, partition in pairs], np.int64)


def _ints(rows: Any, name: str) -> Ints:
    return np.asarray(rows[name].to_numpy(), np.int64)


def gathered(rows: Any, ends: Mapping[int, Ends], streams: Streams) -> Held:
    """What the tasks found, with streams of the whole topic."""
    parts = {kind: _of_kind(rows, kind) for kind in (HELD, AGAIN, LATE, WHOLE, BEYOND, WHEN)}
    held = _stretches(parts[HELD], streams)
    found = Held(
        held.at(np.lexsort((held.firsts, held.keys))),
        _stretches(parts[AGAIN], streams),
        _stretches(parts[LATE], streams),
        slots=_slots(parts[WHEN], "first_ms", "first"),
    )
    beyond = parts[BEYOND]
    for key, again, late in zip(
        _keys(beyond, streams).tolist(), beyond["first"].to_pylist(), beyond["last"].to_pylist(), strict=True
    ):
        found.beyond[key] = (again, late)
    now_ms = time.time_ns() // 1_000_000
    found.partitions = {
        each: Whole(at.earliest, at.end, at.high, begins_ms=now_ms) for each, at in ends.items()
    }
    names = ("partition", "first", "last", "last_offset", "first_ms")
    columns = (parts[WHOLE][name].to_pylist() for name in names)
    for partition, without, records, last, ms in zip(*columns, strict=True):
        found.partitions[partition] = found.partitions[partition]._replace(
            records=records, without_identity=without, last=last, begins_ms=ms if ms >= 0 else now_ms
        )
    return found


def _stretches(rows: Any, streams: Streams) -> Stretches:
    begins, ends = (
        Spots(*(_ints(rows, f"{end}_{name}") for name in ("offset", "ms", "row")))
        for end in ("first", "last")
    )
    return Stretches(*_runs(rows, streams), begins, ends)
