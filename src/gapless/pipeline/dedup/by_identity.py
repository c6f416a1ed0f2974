"""Take out records whose identity was seen: exact, for ever, without a shuffle, in one pass.

    dedup = IntervalDedup(folder)
    sifting = dedup.sift(rows, batch_number)    # for every batch, on the rows as the source gives them
    ...                                         # write sifting.rows, which has only what is new
    dropped = sifting.settle()

A resend of a record is in the partition of the first copy, so each task of the source can judge alone, while
the rows pass: only the identities go to Python, as columns. When a task has seen all rows of its partition it
reports which sequences were new. What was seen is written down once the rows have been read; whoever reads
them again meanwhile, or repeats the batch after a crash, is told the same. Rows stay aligned with their
source partitions. Records without an identity pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from gapless.errors import InvariantViolated, UsageError
from gapless.pipeline.identity import made_by, sequence_bytes
from gapless.pipeline.ranges import source_ranges

if TYPE_CHECKING:
    from pyspark import Accumulator, Broadcast
    from pyspark.sql import Column, DataFrame

    from gapless.pipeline.dedup.judging import Found
    from gapless.pipeline.dedup.seen import Place, Seen, Table, Versions
    from gapless.pipeline.folder import CheckpointFolder

    Columns: TypeAlias = tuple[Any, Any, Any]
    """Arrow arrays: numbers of places, makers, sequences."""

Reports: TypeAlias = "dict[tuple[int, Place], Found]"
"""By batch and place."""
_PLACES_OF_A_TOPIC = 2**32


class IntervalDedup:
    """Knows the identities that came in one checkpoint. For the driver only, and one batch at a time."""

    def __init__(self, folder: CheckpointFolder) -> None:
        from gapless.pipeline.dedup.seen import Versions

        self._versions = Versions(folder)
        self._reports: Accumulator[Reports] | None = None

    def sift(self, rows: DataFrame, number: int) -> Sifting:
        """The rows of batch `number` that are new. The same batch again gives the same answer."""
        seen = self._versions.before(number)
        ranges = source_ranges(rows)
        if ranges is None:
            raise UsageError("dedup by identity works on rows as the source gives them, before any shuffle")
        if self._reports is None:
            # One for all batches: Spark never forgets an accumulator.
            self._reports = rows.sparkSession.sparkContext.accumulator({}, _Gathering())  # type: ignore[arg-type]
        self._reports.value = {}
        places = [(each.topic, each.partition) for each in ranges]
        return Sifting(rows, number, places, seen, self._versions, self._reports)


class Sifting:
    """One batch, whose records are judged as they are read."""

    def __init__(
        self,
        rows: DataFrame,
        number: int,
        places: Sequence[Place],
        seen: Table,
        versions: Versions,
        reports: Accumulator[Reports],
    ) -> None:
        from pyspark.sql import DataFrame
        from pyspark.sql.pandas.functions import arrow_udf

        self._number = number
        self._places = places
        self._seen = seen
        self._versions = versions
        self._reports = reports
        spark = rows.sparkSession
        self._shared = spark.sparkContext.broadcast({place: seen[place] for place in places if place in seen})
        topics = sorted({topic for topic, _ in places})
        judge = arrow_udf(_in_task(self._shared, number, topics, reports), "boolean")  # type: ignore[call-overload]
        is_new = judge(_number_of_place(topics), made_by(), sequence_bytes())
        self._judged = rows.select(is_new.alias("is_new"))
        new = (rows.filter(is_new) if topics else rows)._jdf
        # As a batch of its own: Spark's optimizer must not let any row pass the judge.
        batch = spark._jsparkSession.internalCreateDataFrame(
            new.queryExecution().toRdd(), new.schema(), False
        )
        self.rows = DataFrame(batch, spark)
        """Those that are new."""

    def settle(self) -> int:
        """Write down what was seen, once the rows have been read. Returns how many of them were not new."""
        from gapless.pipeline.dedup.seen import Seen

        # Nobody may have read all of a partition: its sink had the batch already, or wanted only some rows.
        unread = [at for at, place in enumerate(self._places) if place not in self._found()]
        judged = self._judge(unread) if unread else {}
        found = self._found()
        untold = [f"{topic}-{partition}" for topic, partition in judged if (topic, partition) not in found]
        if untold:
            raise InvariantViolated(f"what came from {', '.join(untold)} was judged, but not reported")
        self._shared.destroy()
        nothing = Seen.nothing()
        news = {
            place: self._seen.get(place, nothing).with_also(each.new)
            for place, each in found.items()
            if len(each.new.firsts)
        }
        self._versions.write(self._number, {**self._seen, **news})
        return sum(each.dropped for each in found.values())

    def _judge(self, partitions: Sequence[int]) -> dict[Place, int]:
        """Only that. How many records there were, for places that have any: some have only markers."""
        counted = self._judged.mapInArrow(_count, "records long")
        answers = counted.sparkSession.sparkContext.runJob(counted.rdd, list, partitions)
        counts = zip(partitions, (row.records for row in answers), strict=True)
        return {self._places[at]: count for at, count in counts if count}

    def _found(self) -> dict[Place, Found]:
        """What tasks of this batch reported: one that nobody waits for any more may be late."""
        return {place: each for (batch, place), each in self._reports.value.items() if batch == self._number}


class _Gathering:
    """How Spark gathers reports. A task that ran twice has reported the same twice.

    Unless compaction took records in between: then the first one knows more.
    """

    def zero(self, _: Reports) -> Reports:
        return {}

    def addInPlace(self, some: Reports, more: Reports) -> Reports:  # noqa: N802  # so Spark calls it
        better = {
            key: each for key, each in more.items() if key not in some or some[key].sequences < each.sequences
        }
        return {**some, **better}


def _count(batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa

    yield pa.RecordBatch.from_pydict({"records": pa.array([sum(map(len, batches))], pa.int64())})


def _number_of_place(topics: Sequence[str]) -> Column:
    """A number for topic and partition of a row, since Python reads numbers faster than names."""
    from pyspark.sql import functions as sf

    base = sf.lit(None)
    for number, topic in enumerate(topics):
        base = sf.when(sf.col("topic") == topic, sf.lit(number * _PLACES_OF_A_TOPIC)).otherwise(base)
    return base + sf.col("partition")


def _in_task(
    shared: Broadcast[dict[Place, Seen]], batch: int, topics: Sequence[str], reports: Accumulator[Reports]
) -> Callable[[Iterator[Columns]], Iterator[Any]]:
    def judged(columns: Iterator[Columns]) -> Iterator[Any]:
        import numpy as np
        import pyarrow as pa

        from gapless.pipeline.dedup.judging import Judge
        from gapless.pipeline.dedup.seen import Seen

        here, place, judge = None, ("", -1), Judge(Seen.nothing())
        for numbers, makers, sequences in columns:
            if here is None and len(numbers):
                here = numbers[0].as_py()
                topic, partition = divmod(here, _PLACES_OF_A_TOPIC)
                place = (topics[topic], partition)
                judge = Judge(shared.value.get(place, Seen.nothing()))
            if np.any(numbers.to_numpy() != here):
                raise InvariantViolated(f"a task of dedup got records of {place[0]}-{place[1]} and of others")
            yield pa.array(judge.are_new(makers, sequences))
        if here is not None:
            reports.add({(batch, place): judge.found()})

    # By these Spark knows what kind of function it is.
    import pyarrow as pa

    arrays = tuple[pa.Array, pa.Array, pa.Array]
    judged.__annotations__.update({"columns": Iterator[arrays], "return": Iterator[pa.Array]})
    return judged
