"""A pipeline in a process of its own, which dies where it is told to, with all that it has started.

    python -m tests.pipeline.driver FILE [POINT [BATCH]]

Points: `begin`, `dedup`, `SINK:before`, `SINK:after` (of the sink of that name), `end` (before Spark hears
that the batch is done). Without a point it carries all that is there, and ends.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from gapless.pipeline import run as running
from gapless.pipeline.batches import BatchRunner
from gapless.pipeline.definition import Definition
from gapless.pipeline.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from gapless.pipeline.sinks.port import Batch, Sink, Written


class Doom:
    """Where and in which batch to die."""

    def __init__(self, point: str, batch: int) -> None:
        self._point = point
        self._batch = batch

    def meet(self, point: str, batch: int) -> None:
        if (point, batch) == (self._point, self._batch):
            os.killpg(0, signal.SIGKILL)


class DyingSink:
    """A sink that dies before or after it writes."""

    def __init__(self, name: str, sink: Sink, doom: Doom) -> None:
        self._name = name
        self._sink = sink
        self._doom = doom

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def write(self, batch: Batch) -> Written:
        self._doom.meet(f"{self._name}:before", batch.number)
        written = self._sink.write(batch)
        self._doom.meet(f"{self._name}:after", batch.number)
        return written


class DyingDedup:
    """A dedup that dies before or after its table is written."""

    def __init__(self, dedup: Any, doom: Doom) -> None:
        self._dedup = dedup
        self._doom = doom

    def sift(self, rows: DataFrame, number: int) -> DyingSifting:
        return DyingSifting(self._dedup.sift(rows, number), number, self._doom)


class DyingSifting:
    def __init__(self, sifting: Any, number: int, doom: Doom) -> None:
        self.rows = sifting.rows
        self._sifting = sifting
        self._number = number
        self._doom = doom

    def settle(self) -> int:
        self._doom.meet("dedup:before", self._number)
        dropped: int = self._sifting.settle()
        self._doom.meet("dedup:after", self._number)
        return dropped


def doomed(runner: BatchRunner, doom: Doom) -> BatchRunner:
    def mortal(named: Any) -> Any:
        if named is None:
            return None
        return named._replace(sink=DyingSink(named.settings.name, named.sink, doom))

    return runner._replace(
        dedup=None if runner.dedup is None else DyingDedup(runner.dedup, doom),  # type: ignore[arg-type]
        sinks=[mortal(each) for each in runner.sinks],
        dead_letters=mortal(runner.dead_letters),
    )


def main(file: str, point: str = "", batch: str = "0") -> None:
    doom = Doom(point, int(batch))
    run = BatchRunner.run

    def dying(runner: BatchRunner, rows: DataFrame, number: int) -> Progress:
        doom.meet("begin", number)
        progress = run(doomed(runner, doom), rows, number)
        doom.meet("end", number)
        return progress

    BatchRunner.run = dying  # type: ignore[method-assign,assignment]
    running.Pipeline(Definition.load(file)).run(once=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
