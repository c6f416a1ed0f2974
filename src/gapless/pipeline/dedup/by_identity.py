"""Take out records whose identity was seen: exact, for ever, without a shuffle.

    dedup = IntervalDedup(folder)
    rows, dropped = dedup.keep_new(rows, batch_number)

A resend of a record is in the partition of the first copy, so each task of the source can judge alone: one
pass over offset and identity tells the runs of sequences and the offsets that come again, of which the first
in the log is kept. Mostly there are none, and the rows pass untouched; else those offsets are filtered out.
Either way the rows stay aligned with their source partitions. Records without an identity pass.

Call it for every batch, on the rows as the source gives them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from gapless.errors import InvariantViolated, UsageError
from gapless.pipeline.identity import SEQUENCE_BYTES, made_by, sequence_bytes
from gapless.pipeline.ranges import Range, source_ranges

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark import Broadcast
    from pyspark.sql import Column, DataFrame

    from gapless.pipeline.dedup.runs import Ints
    from gapless.pipeline.dedup.seen import Place, Seen, Table
    from gapless.pipeline.folder import CheckpointFolder

_ANSWER = "task int, makers binary, firsts binary, lasts binary, duplicates binary"
_FEW_RANGES = 64
"""Up to so many ranges of offsets are compared with each row; more are looked up in a table."""


class Kept(NamedTuple):
    """A batch without what was seen before, and how many rows that was."""

    rows: DataFrame
    dropped: int


class Found(NamedTuple):
    """What one task found: sequences that are new, and offsets of records that are not, in their order."""

    new: Seen
    duplicates: Ints


class IntervalDedup:
    """Knows the identities that came in one checkpoint. For the driver only."""

    def __init__(self, folder: CheckpointFolder) -> None:
        from gapless.pipeline.dedup.seen import Versions

        self._versions = Versions(folder)

    def keep_new(self, rows: DataFrame, number: int) -> Kept:
        """The rows of batch `number` that are new. The same batch again gives the same answer."""
        from gapless.pipeline.dedup.seen import Seen

        seen, nothing = self._versions.before(number), Seen.nothing()
        found = _search(rows, seen)
        known = {
            place: seen.get(place, nothing).with_also(each.new)
            for place, each in found.items()
            if len(each.new.firsts)
        }
        self._versions.write(number, {**seen, **known})
        duplicates = {place: each.duplicates for place, each in found.items() if len(each.duplicates)}
        dropped = sum(map(len, duplicates.values()))
        return Kept(_without(rows, duplicates) if dropped else rows, dropped)


def _search(rows: DataFrame, seen: Table) -> dict[Place, Found]:
    """One pass over the batch, one task for each source partition."""
    from pyspark.sql import functions as sf

    sequence = sequence_bytes()
    narrow = rows.select(
        "offset",
        made_by().alias("made_by"),
        sf.when(sf.octet_length(sequence) == SEQUENCE_BYTES, sequence).alias("sequence"),
    )
    ranges = source_ranges(narrow)
    if ranges is None:
        raise UsageError("dedup by identity works on rows as the source gives them, before any shuffle")
    if not ranges:
        return {}
    places = [(each.topic, each.partition) for each in ranges]
    context = rows.sparkSession.sparkContext
    shared = context.broadcast([seen.get(place) for place in places])
    try:
        answers = narrow.mapInArrow(_in_task(shared), _ANSWER).collect()
    finally:
        shared.destroy()
    if sorted(answer.task for answer in answers) != list(range(len(places))):
        raise InvariantViolated(f"{len(places)} tasks were to look for duplicates, {len(answers)} answered")
    return {places[answer.task]: _unpacked(answer) for answer in answers}


def _in_task(shared: Broadcast[list[Seen | None]]) -> Any:
    def look(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        from gapless.pipeline.dedup.seen import Seen

        context = TaskContext.get()
        if context is None:
            raise InvariantViolated("a task of dedup runs outside of Spark")
        task = context.partitionId()
        found = find(batches, shared.value[task] or Seen.nothing())
        makers = pa.RecordBatch.from_arrays([found.new.makers], ["makers"])
        answer = {
            "task": pa.array([task], pa.int32()),
            "makers": [makers.serialize().to_pybytes()],
            "firsts": [found.new.firsts.tobytes()],
            "lasts": [found.new.lasts.tobytes()],
            "duplicates": [found.duplicates.tobytes()],
        }
        yield pa.RecordBatch.from_pydict(answer)

    return look


def _unpacked(answer: Any) -> Found:
    import numpy as np
    import pyarrow as pa

    from gapless.pipeline.dedup.seen import Seen

    [makers] = pa.ipc.read_record_batch(answer.makers, pa.schema([("makers", pa.binary())])).columns
    firsts, lasts, duplicates = (
        np.frombuffer(data, np.int64) for data in (answer.firsts, answer.lasts, answer.duplicates)
    )
    return Found(Seen(makers, firsts, lasts), duplicates)


def find(batches: Iterator[RecordBatch], seen: Seen) -> Found:
    """Look through the rows (offset, made_by, sequence) of one place, in the order of the log."""
    import numpy as np
    import pyarrow as pa

    from gapless.pipeline.dedup.runs import sift
    from gapless.pipeline.dedup.seen import Seen

    offsets, makers, numbers = [], [], []
    for batch in batches:
        told = batch.filter(_both_valid(batch))
        if told.num_rows:
            offsets.append(told.column("offset").to_numpy())
            makers.append(told.column("made_by").cast(pa.binary()))
            numbers.append(_big_endian(told.column("sequence").cast(pa.binary())))
    if not offsets:
        return Found(Seen.nothing(), np.empty(0, np.int64))
    encoded = pa.concat_arrays(makers).dictionary_encode()
    keys = encoded.indices.to_numpy().astype(np.int64)
    sequences, places = np.concatenate(numbers), np.concatenate(offsets)
    genuine = _genuine(encoded.dictionary)[keys] & (sequences >= 0)
    if not genuine.all():
        keys, sequences, places = keys[genuine], sequences[genuine], places[genuine]
    is_new, runs = sift(keys, sequences, seen.runs_of(encoded.dictionary))
    new = Seen(encoded.dictionary.take(pa.array(runs.keys)), runs.firsts, runs.lasts)
    return Found(new, places[~is_new])


def _both_valid(batch: RecordBatch) -> Any:
    import pyarrow.compute as pc

    return pc.and_(batch.column("made_by").is_valid(), batch.column("sequence").is_valid())


def _big_endian(values: Any) -> Ints:
    """The numbers of an array of eight bytes each; from 2^63 on they come out negative."""
    import numpy as np

    data = values.buffers()[2]
    start = values.offset and int(np.frombuffer(values.buffers()[1], np.int32)[values.offset])
    return np.frombuffer(data, ">i8", len(values), start).astype(np.int64)


def _genuine(makers: Any) -> Any:
    """Which of the headers name a source and an incarnation. There are few, so Python may look at each."""
    import numpy as np

    from gapless.client.formats import SEQUENCE_HEADER, SOURCE_HEADER, identity_of

    any_number = (SEQUENCE_HEADER, bytes(SEQUENCE_BYTES))
    judged = [identity_of([(SOURCE_HEADER, maker), any_number]) is not None for maker in makers.to_pylist()]
    return np.array(judged, np.bool_)


def _without(rows: DataFrame, duplicates: Mapping[Place, Ints]) -> DataFrame:
    """The rows at other offsets."""
    import numpy as np

    breaks = {place: np.flatnonzero(np.diff(offsets) != 1) + 1 for place, offsets in duplicates.items()}
    if sum(map(len, breaks.values())) + len(breaks) > _FEW_RANGES:
        return _without_table(rows, duplicates)
    ranges = [
        Range(*place, int(part[0]), int(part[-1]) + 1)
        for place, offsets in sorted(duplicates.items())
        for part in np.split(offsets, breaks[place])
    ]
    return rows.filter(~reduce(lambda one, other: one | other, map(_lies_in, ranges)))


def _without_table(rows: DataFrame, duplicates: Mapping[Place, Ints]) -> DataFrame:
    """The same, for many: every task gets them as a table. The rows stay in their partitions."""
    import numpy as np
    import pyarrow as pa
    from pyspark.sql import functions as sf

    counts = [len(offsets) for offsets in duplicates.values()]
    table = pa.table(
        {
            "topic": pa.array(np.repeat([topic for topic, _ in duplicates], counts), pa.string()),
            "partition": np.repeat(np.array([number for _, number in duplicates], np.int32), counts),
            "offset": np.concatenate(list(duplicates.values())),
        }
    )
    spoilt = sf.broadcast(rows.sparkSession.createDataFrame(table))
    return rows.join(spoilt, ["topic", "partition", "offset"], "left_anti").select(*rows.columns)


def _lies_in(found: Range) -> Column:
    from pyspark.sql import functions as sf

    return (
        (sf.col("topic") == found.topic)
        & (sf.col("partition") == found.partition)
        & sf.col("offset").between(found.start, found.end - 1)
    )
