"""What happens to one micro-batch: duplicates out, values read, transformed, into every sink, then told.

Every step gives the same for the same batch number, so that Spark may repeat a batch after a crash at any
point: sinks find what they have already, and the rest is done again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from gapless.pipeline.loss import RecordsLost, missing_ranges
from gapless.pipeline.notes import ends_of, ranges_of
from gapless.pipeline.plans import refuse_unrepeatable
from gapless.pipeline.poison import judge_records
from gapless.pipeline.progress import Progress
from gapless.pipeline.sinks.making import fit
from gapless.pipeline.sinks.port import Batch, Sink, Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from gapless.pipeline.dedup import IntervalDedup
    from gapless.pipeline.folder import CheckpointFolder
    from gapless.pipeline.lag import SourceGroup
    from gapless.pipeline.ranges import Range
    from gapless.pipeline.sections import SinkSettings, Source
    from gapless.pipeline.staging import Staging
    from gapless.pipeline.transform import Transform

_logger = logging.getLogger("gapless.pipeline")


class DefinedSink(NamedTuple):
    """A sink, and its section of the definition."""

    settings: SinkSettings
    sink: Sink

    def write(self, number: int, rows: DataFrame, transform: Transform | None = None) -> Written:
        transformed = transform is not None and transform.is_given
        version = "" if transform is None else transform.version
        return self.sink.write(Batch(number, fit(rows, self.settings, transformed=transformed), version))


class BatchRunner(NamedTuple):
    """The steps of a pipeline, ready for batches."""

    source: Source
    folder: CheckpointFolder
    dedup: IntervalDedup | None
    transform: Transform
    staging: Staging | None
    sinks: Sequence[DefinedSink]
    dead_letters: DefinedSink | None
    group: SourceGroup

    def run(self, rows: DataFrame, number: int) -> Progress:
        """The whole way of a batch. When it returns, the batch is in all sinks for good."""
        began_s = time.monotonic()
        rows.sparkSession.conf.set("spark.sql.adaptive.enabled", "false")
        ranges = ranges_of(self.folder, number)
        self._look_for_loss(ranges)
        sifting = None if self.dedup is None else self.dedup.sift(rows, number)
        with _kept(rows if sifting is None else sifting.rows, self.dead_letters is not None) as kept:
            strict = self.dead_letters is None
            good, bad = judge_records(kept, self.source.value, self.source.schema, strict=strict)
            dead = self._bury(bad, number)
            written = self._write(good, number)
        duplicates = 0 if sifting is None else sifting.settle()
        self.group.commit(ends_of(self.folder, number))
        return Progress(
            batch=number,
            rows_in=sum(each.end - each.start for each in ranges),
            duplicates=duplicates,
            dead_letters=dead.rows,
            written={name: each.rows for name, each in written.items()},
            repeated=any(each.repeated for each in (dead, *written.values())),
            seconds=time.monotonic() - began_s,
            lag=self.group.lag(),
        )

    def _look_for_loss(self, ranges: Sequence[Range]) -> None:
        """What is gone already. What goes while the batch reads, Spark notices."""
        earliest = {where: edges.earliest for where, edges in self.group.edges().items()}
        lost = missing_ranges(ranges, earliest)
        if not lost:
            return
        if self.source.on_loss == "stop":
            raise RecordsLost(lost)
        for each in lost:
            _logger.warning("deleted by retention before it was read, and skipped: %s", each)

    def _bury(self, bad: DataFrame | None, number: int) -> Written:
        if self.dead_letters is None or bad is None:
            return Written(0, repeated=False)
        return self.dead_letters.write(number, bad)

    def _write(self, good: DataFrame, number: int) -> dict[str, Written]:
        result = self.transform.apply(good)
        if self.staging is not None:
            result = self.staging.freeze(result, number)
        else:
            refuse_unrepeatable(result, good)
        with _kept(result, len(self.sinks) > 1) as rows:
            return {each.settings.name: each.write(number, rows, self.transform) for each in self.sinks}


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
