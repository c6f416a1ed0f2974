"""What happens to one micro-batch: duplicates out, values read, transformed, into every sink, then told.

Every step gives the same for the same batch number, so that Spark may repeat a batch after a crash at any
point: sinks find what they have already, and the rest is done again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from gapless.pipeline.loss import LossWatch
from gapless.pipeline.plans import refuse_unrepeatable
from gapless.pipeline.poison import judge_records
from gapless.pipeline.progress import Progress
from gapless.pipeline.ranges import Range, source_ranges
from gapless.pipeline.sinks.port import Batch, Sink, Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from gapless.pipeline.dedup import IntervalDedup
    from gapless.pipeline.lag import SourceGroup
    from gapless.pipeline.sections import Source
    from gapless.pipeline.staging import Staging
    from gapless.pipeline.transform import Transform


class NamedSink(NamedTuple):
    """A sink, and what the pipeline calls it."""

    name: str
    sink: Sink


class BatchRunner(NamedTuple):
    """The steps of a pipeline, ready for batches."""

    source: Source
    dedup: IntervalDedup | None
    transform: Transform
    staging: Staging | None
    sinks: Sequence[NamedSink]
    dead_letters: NamedSink | None
    group: SourceGroup
    losses: LossWatch

    def run(self, rows: DataFrame, number: int) -> Progress:
        """The whole way of a batch. When it returns, the batch is in all sinks for good."""
        began_s = time.monotonic()
        rows.sparkSession.conf.set("spark.sql.adaptive.enabled", "false")
        ranges = source_ranges(rows) or []
        self.losses.look(ranges)
        duplicates = 0
        if self.dedup is not None:
            rows, duplicates = self.dedup.keep_new(rows, number)
        with _kept(rows, self.dead_letters is not None) as kept:
            good, bad = judge_records(kept, self.source.value, self.source.schema)
            dead = self._bury(bad, number)
            written = self._write(good, number)
        self._tell_group(ranges)
        everything = [*written.values(), *([dead] if dead is not None else [])]
        return Progress(
            batch=number,
            rows_in=sum(each.end - each.start for each in ranges),
            duplicates=duplicates,
            dead_letters=dead.rows if dead is not None else 0,
            written={name: each.rows for name, each in written.items()},
            repeated=any(each.repeated for each in everything),
            seconds=time.monotonic() - began_s,
            lag=self.group.lag(),
        )

    def _bury(self, bad: DataFrame, number: int) -> Written | None:
        if self.dead_letters is None:
            return None
        return self.dead_letters.sink.write(Batch(number, bad))

    def _write(self, good: DataFrame, number: int) -> dict[str, Written]:
        result = self.transform.apply(good)
        if self.staging is not None:
            result = self.staging.freeze(result, number)
        else:
            refuse_unrepeatable(result, good)
        with _kept(result, len(self.sinks) > 1) as rows:
            batch = Batch(number, rows, self.transform.version)
            return {name: sink.write(batch) for name, sink in self.sinks}

    def _tell_group(self, ranges: Sequence[Range]) -> None:
        self.group.commit({(each.topic, each.partition): each.end for each in ranges})


@contextmanager
def _kept(rows: DataFrame, several_readers: bool) -> Iterator[DataFrame]:
    """The rows, read and made once if several will read them."""
    if not several_readers:
        yield rows
        return
    rows = rows.persist()
    try:
        yield rows
    finally:
        rows.unpersist()
