"""A pipeline as a running Spark query: start, watch, stop between two batches.

    definition = Definition.load("orders.toml")
    Pipeline(definition).run(once=True)

`run` returns when it was told to stop or, with `once`, when all that was there at the start is carried. A
failure is one `GaplessError`; what was written stays, and the next run goes on there.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from typing import TYPE_CHECKING, NoReturn

from gapless.errors import GaplessError, InvariantViolated, Unreachable
from gapless.pipeline.alone import alone
from gapless.pipeline.batches import BatchRunner, DefinedSink
from gapless.pipeline.belonging import claim, cluster_of
from gapless.pipeline.complaints import unsaid
from gapless.pipeline.dedup import IntervalDedup, bring_up_to_date, drop_within
from gapless.pipeline.failures import explain
from gapless.pipeline.folder import CheckpointFolder
from gapless.pipeline.lag import SourceGroup
from gapless.pipeline.loss import explain_loss
from gapless.pipeline.progress import OnProgress, Progress
from gapless.pipeline.properties import client_properties
from gapless.pipeline.session import spark_session
from gapless.pipeline.sinks.making import make_sink
from gapless.pipeline.sinks.port import SinkContext
from gapless.pipeline.source import read_source
from gapless.pipeline.staging import Staging
from gapless.pipeline.transform import Transform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from gapless.pipeline.definition import Definition

_logger = logging.getLogger("gapless.pipeline")
_LOOK_S = 0.1
_IDLE_EVERY_S = 60.0
_LET_SPARK_COMMIT_S = 10.0
_TASK_ATTEMPTS = 4
_LOCAL_MASTER = re.compile(r"local(?:\[([^,\]]+)\])?")

_BUGS = (InvariantViolated, AttributeError, LookupError, NameError, TypeError)

# Where a batch is repeated by other tasks than before, or read otherwise, nothing could be promised.
_FIXED = {
    "spark.sql.adaptive.enabled": "false",
    "spark.python.worker.reuse": "true",
}


class _Stopped(Exception):
    """A batch came after the pipeline was told to stop: nothing of it was begun."""


class _BatchFailed(Exception):
    """What Spark is told of a batch that failed; the failure itself is raised from `run`."""


class Pipeline:
    """One definition, made to run once in this process."""

    def __init__(self, definition: Definition, *, spark: SparkSession | None = None) -> None:
        self._definition = definition
        self._spark = spark
        self._stop = threading.Event()
        self._batch_lock = threading.Lock()
        self._failure: BaseException | None = None
        self._last_batch = -1
        self._work: tuple[BatchRunner, OnProgress] | None = None
        """What a batch needs, while a query runs."""

    def stop(self) -> None:
        """End the run when the batch that is under way is done. From any thread, or a signal's handler."""
        self._stop.set()

    def run(self, *, once: bool | None = None, on_progress: OnProgress | None = None) -> None:
        """Carry records until told to stop; with `once`, until all that is there now is carried."""
        once = self._definition.trigger.once if once is None else once
        self._failure, self._last_batch = None, -1
        try:
            with unsaid():
                self._run(once, on_progress or (lambda progress: None))
        except GaplessError:
            raise
        except (BrokenPipeError, *_BUGS):  # our reader has had enough; a bug keeps its traceback
            raise
        except Exception as error:
            raise explain(error) from error

    def _run(self, once: bool, on_progress: OnProgress) -> None:
        definition = self._definition
        spark = self._spark or session_for(definition)
        folder = CheckpointFolder(spark, definition.checkpoint)
        with alone(folder, definition.checkpoint):
            self._run_alone(spark, folder, once, on_progress)

    def _run_alone(
        self, spark: SparkSession, folder: CheckpointFolder, once: bool, on_progress: OnProgress
    ) -> None:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        definition = self._definition
        properties = client_properties(definition.kafka)
        sinks = [(each, make_sink(definition, each)) for _, each in definition.all_sinks()]
        reading = properties.for_librdkafka(definition.source.bootstrap)
        claim(folder, definition, cluster_of(reading, list(definition.source.topics)))
        group = SourceGroup(reading, definition.group, definition.source.topics)
        try:
            for settings, sink in sinks:
                sink.open(SinkContext(definition.name, settings.name, folder, spark))
            named = [DefinedSink(settings, sink) for settings, sink in sinks]
            runner = BatchRunner(
                source=definition.source,
                folder=folder,
                dedup=IntervalDedup(folder) if _by_identity(definition) else None,
                transform=Transform(definition),
                staging=Staging(folder) if definition.transform.stage else None,
                sinks=named[: len(definition.sinks)],
                dead_letters=named[-1] if definition.dead_letters is not None else None,
                group=group,
            )
            try:
                self._work = runner, on_progress
                self._watch(self._start(spark, once), runner)
            except (PySparkException, Py4JError) as error:  # what fails inside of a batch is the latter
                raise explain_loss(error, folder, definition.source, properties) or error from None
        finally:
            self._work = None
            for _, sink in sinks:
                sink.close()

    def _start(self, spark: SparkSession, once: bool) -> StreamingQuery:
        definition = self._definition
        rows = read_source(spark, definition.source, client_properties(definition.kafka))
        if definition.dedup is not None and _within_a_while(definition):
            rows = drop_within(rows, definition.dedup.by, f"{definition.dedup.watermark_s} seconds")
        writer = (
            rows.writeStream.foreachBatch(self._batch)
            .queryName(definition.name)
            .option("checkpointLocation", definition.checkpoint)
        )
        if once:
            writer = writer.trigger(availableNow=True)
        elif definition.trigger.every is not None:
            writer = writer.trigger(processingTime=f"{definition.trigger.every_s} seconds")
        return writer.start()

    def _batch(self, rows: DataFrame, number: int) -> None:
        """Called by Spark.

        PySpark keeps this function, and the last exception that it raised, until Java collects its own side
        of them, which may take minutes. So they must not lead to the clients of the run, nor to variables of
        its caller, as the traceback of the failure does: `_work` is forgotten when the run has ended, and
        Spark gets another exception.
        """
        failure = self._try_batch(rows, number)
        if failure is not None:
            raise _BatchFailed(failure)

    def _try_batch(self, rows: DataFrame, number: int) -> str | None:
        """Run a batch. Keep its failure, which Spark would return as text, and return that text."""
        try:
            with self._batch_lock:
                if self._stop.is_set() or self._work is None:
                    raise _Stopped
                runner, on_progress = self._work
                progress: Progress = runner.run(rows, number)
                unread = progress.repeated or progress.rows_in == 0 or runner.staging is not None
                if unread and _within_a_while(self._definition):
                    bring_up_to_date(rows)
                self._last_batch = number
            on_progress(progress)
        except BaseException as error:  # noqa: BLE001  # it is raised from `run`
            self._failure = error
            return f"{type(error).__name__}: {error}"
        return None

    def _watch(self, query: StreamingQuery, runner: BatchRunner) -> None:
        idle_s = time.monotonic()
        try:
            while not self._ended(query):
                if self._stop.is_set():
                    self._finish(query)
                    if self._failure is not None and not isinstance(self._failure, _Stopped):
                        self._raise(self._failure)
                    return
                if time.monotonic() - idle_s > _IDLE_EVERY_S and self._batch_lock.acquire(blocking=False):
                    try:
                        _idle(runner)
                    finally:
                        self._batch_lock.release()
                    idle_s = time.monotonic()
        finally:
            query.stop()

    def _ended(self, query: StreamingQuery) -> bool:
        """Waits a moment. Raises what ended the query, unless it was us."""
        from pyspark.errors import StreamingQueryException

        try:
            return bool(query.awaitTermination(_LOOK_S))  # type: ignore[arg-type]
        except StreamingQueryException as error:
            if isinstance(self._failure, _Stopped):
                return True
            self._raise(self._failure or error)

    def _raise(self, failure: BaseException) -> NoReturn:
        """Raise a failure, and forget it."""
        self._failure = None
        try:
            raise failure from None
        finally:
            del failure  # else this frame and the traceback of the failure refer to each other

    def _finish(self, query: StreamingQuery) -> None:
        """Let the batch end, and Spark write down that it has: else it would be offered again for nothing."""
        with self._batch_lock:
            done = self._last_batch
        deadline_s = time.monotonic() + _LET_SPARK_COMMIT_S
        while query.isActive and time.monotonic() < deadline_s:
            progress = query.lastProgress
            if progress is None and done < 0:
                return
            if progress is not None and progress["batchId"] >= done:
                return
            time.sleep(_LOOK_S)


def _idle(runner: BatchRunner) -> None:
    """Who has nothing to write need not stop because a sink is away: the next batch will tell."""
    for each in [*runner.sinks, *filter(None, [runner.dead_letters])]:
        try:
            each.sink.idle()
        except Unreachable as error:
            _logger.warning("sink %s cannot keep its markers alive now: %s", each.settings.name, error)


def session_for(definition: Definition) -> SparkSession:
    """The Spark session that a definition asks for."""
    return spark_session(
        definition.name,
        master=_with_retries(definition.spark.master),
        config={**definition.spark.settings, **_FIXED},
    )


def _with_retries(master: str) -> str:
    """On this machine alone Spark gives up a job at the first failed task, unless told otherwise."""
    found = _LOCAL_MASTER.fullmatch(master)
    return master if found is None else f"local[{found[1] or 1},{_TASK_ATTEMPTS}]"


def _within_a_while(definition: Definition) -> bool:
    """Whether Spark itself remembers what it has seen."""
    return definition.dedup is not None and not _by_identity(definition)


def _by_identity(definition: Definition) -> bool:
    return definition.dedup is not None and definition.dedup.by == "identity"
