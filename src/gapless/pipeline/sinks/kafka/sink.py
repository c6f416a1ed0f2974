"""The exactly-once Kafka sink: rows of a batch become records of a topic, each once.

    sink = KafkaSink("127.0.0.1:9092", "clean-orders")

Every task of a batch is one transaction, with its records and its marker. Read the output with
isolation.level=read_committed: what a crash left undone stays in the log, but is not committed. With
`tasks=1` a whole batch is one transaction, and becomes visible at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gapless.errors import InvariantViolated, Unreachable
from gapless.pipeline.sinks.kafka.changes import change_marker
from gapless.pipeline.sinks.kafka.clients import Target
from gapless.pipeline.sinks.kafka.cluster import check_cluster, delete_markers, ensure_ledger, read_markers
from gapless.pipeline.sinks.kafka.markers import OWNER, Marker, marker_prefix, now_ms
from gapless.pipeline.sinks.kafka.rows import check_columns, written_columns
from gapless.pipeline.sinks.kafka.writer import KafkaWriter, refused_by
from gapless.pipeline.sinks.port import Batch, SinkContext, SinkRefused, Written
from gapless.pipeline.tasks import Done, run_tasks

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

log = logging.getLogger("gapless.pipeline")
TRANSACTION_TIMEOUT_MS = 300_000
"""Long enough for a task's share of a large batch; below the 15 minutes that brokers allow by default."""
KEEP_ALIVE_S = 86_400.0
_MIN_TRANSACTION_TIMEOUT_MS = 1_000
_LOOK_AGAIN_S = 60.0


class KafkaSink:
    """Records into one topic, or with a column `topic` into several.

    `properties` are librdkafka's, for every client of the output cluster. Without `tasks` there is a task for
    each source partition where nothing shuffles, else as many as spark.sql.shuffle.partitions.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str | None = None,
        *,
        tasks: int | None = None,
        properties: Mapping[str, Any] | None = None,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        if tasks is not None and tasks < 1:
            raise SinkRefused(f"tasks must be 1 or more, not {tasks}")
        if transaction_timeout_ms < _MIN_TRANSACTION_TIMEOUT_MS:
            raise SinkRefused(
                f"transaction_timeout_ms must be {_MIN_TRANSACTION_TIMEOUT_MS} or more, "
                f"not {transaction_timeout_ms}"
            )
        self._target = Target(bootstrap, transaction_timeout_ms, dict(properties or {}))
        self._topic = topic
        self._tasks = tasks
        self._keep_alive_s = keep_alive_s
        self._look_at = 0.0
        self._context: SinkContext | None = None

    def check(self, schema: StructType) -> None:
        """Raise `SinkRefused` or `Unreachable` if such rows cannot go there. Writes nothing."""
        check_columns(schema, self._topic)
        check_cluster(self._target, self._topic, self._keep_alive_s)

    def open(self, context: SinkContext) -> None:
        """Claim the sink for this checkpoint, once and for all; another one's is refused."""
        prefix, checkpoint = marker_prefix(context.pipeline, context.sink), context.folder.id
        ensure_ledger(self._target)

        def claim(found: Marker | None, instance: str) -> Marker | None:
            if found is None:
                return Marker(0, checkpoint, 0, instance, now_ms())
            if found.checkpoint != checkpoint:
                raise refused_by(found, prefix.removesuffix("."))
            return None

        change_marker(self._target, prefix + OWNER, claim)
        self._context = context

    def write(self, batch: Batch) -> Written:
        """Write the batch, or what an earlier attempt at it has left to write."""
        if self._context is None:
            raise InvariantViolated("a batch was written before the sink was opened")
        check_columns(batch.rows.schema, self._topic)
        rows = batch.rows.select(*written_columns(batch.rows.schema, self._topic))
        done = run_tasks(
            self._context,
            batch._replace(rows=rows),
            self._writer(self._context),
            tasks=self._tasks,
            share_by=[_share_by(rows)],
        )
        self._warn_of_slow(done)
        self.idle()
        return Written(sum(each.rows for each in done), any(each.skipped for each in done))

    def idle(self) -> None:
        """Commit again what was not committed for a day: clusters forget offsets after a week."""
        if self._context is None or time.monotonic() < self._look_at:
            return
        prefix = marker_prefix(self._context.pipeline, self._context.sink)
        try:
            self._renew(prefix)
            self._look_at = time.monotonic() + self._keep_alive_s / 2
        except Unreachable as error:  # there are days left for it
            self._look_at = time.monotonic() + _LOOK_AGAIN_S
            log.warning("the markers of %s could not be kept alive, and will be later: %s", prefix, error)

    def _renew(self, prefix: str) -> None:
        too_old_ms = now_ms() - int(self._keep_alive_s * 1000)

        def renewed(found: Marker | None, instance: str) -> Marker | None:
            # Another producer's name: whoever keeps one for this slot must see that it has been fenced.
            return None if found is None else found._replace(instance=instance, at_ms=now_ms())

        for slot, marker in read_markers(self._target, prefix).items():
            if marker.at_ms <= too_old_ms:
                change_marker(self._target, prefix + slot, renewed)

    def close(self) -> None:
        """Workers keep their producers until Spark ends them."""
        self._context = None

    def clean(self, context: SinkContext) -> list[str]:
        """Remove the markers of this pipeline's sink, whichever checkpoint wrote them, not its records."""
        return delete_markers(self._target, marker_prefix(context.pipeline, context.sink))

    def markers(self, context: SinkContext) -> dict[str, Marker]:
        """How far each slot is written."""
        found = read_markers(self._target, marker_prefix(context.pipeline, context.sink))
        return {slot: marker for slot, marker in found.items() if slot != OWNER}

    def restore_markers(self, context: SinkContext, positions: Mapping[str, int], batch: int) -> list[str]:
        """Set markers that are gone to where the checkpoint says that slots are, after this batch.

        Only the user can know that no batch was half-written then. Markers that are there stay as they are.
        Says which slots were set.
        """
        prefix, checkpoint = marker_prefix(context.pipeline, context.sink), context.folder.id
        ensure_ledger(self._target)
        restored: list[str] = []

        def restore(slot: str, found: Marker | None, instance: str) -> Marker | None:
            if found is not None:
                return None
            restored.append(slot)
            return Marker(positions[slot], checkpoint, batch, instance, now_ms())

        for slot in positions:
            change_marker(
                self._target,
                prefix + slot,
                lambda found, instance, slot=slot: restore(slot, found, instance),  # type: ignore[misc]
            )
        return restored

    def _writer(self, context: SinkContext) -> KafkaWriter:
        prefix = marker_prefix(context.pipeline, context.sink)
        return KafkaWriter(self._target, prefix, context.folder.id, self._topic)

    def _warn_of_slow(self, done: list[Done]) -> None:
        limit_s = self._target.transaction_timeout_ms / 1000
        slowest = max(done, key=lambda each: each.seconds, default=None)
        if slowest is not None and slowest.seconds > limit_s / 2:
            log.warning(
                "the transaction of %s was open for %.1f s; the cluster ends it after %g s, and then its "
                "batch is tried again: set more transaction_timeout_ms, or fewer records per batch",
                slowest.slot,
                slowest.seconds,
                limit_s,
            )


def _share_by(rows: DataFrame) -> Column:
    """Rows with the same key go to the same task, so that their order stays; those without one anywhere."""
    from pyspark.sql.functions import expr

    anywhere = f"xxhash64({', '.join(rows.columns)})"
    return expr(f"IF(key IS NULL, {anywhere}, xxhash64(key))" if "key" in rows.columns else anywhere)
