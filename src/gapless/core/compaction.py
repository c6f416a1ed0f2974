"""When logs of compacted topics are cleaned, and up to where; what a pass does is the log's own business.

One log at a time, the dirtiest first, in slices between which everybody else has a turn. As in Kafka a log is
due when enough of it is dirty (min.cleanable.dirty.ratio) or something dirty has waited for too long
(max.compaction.lag.ms). The active segment stays out of it, and so does every segment that reaches above the
last stable offset or holds a record younger than min.compaction.lag.ms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gapless.core.log import Cleaning, CleaningPlan, LogFailed
from gapless.core.partition import NEVER_MS, Partition

if TYPE_CHECKING:
    from gapless.core.node import Node

SLICE_PAUSE_MS = 10
KEY_BYTES = 200
"""What a key costs in memory while its last record is looked for, whatever its length."""


class Dirt(NamedTuple):
    """What of a log could be cleaned."""

    end_offset: int
    ratio: float
    is_overdue: bool


def is_compacted(partition: Partition) -> bool:
    """Whether the partition's topic keeps the last record of each key."""
    return "compact" in partition.config.cleanup_policy


def dirt_of(partition: Partition, now_ms: int) -> Dirt | None:
    """How dirty a log is; None if nothing of it can be cleaned. Raises `LogFailed`."""
    log, config = partition.log, partition.config
    first_dirty = max(log.cleaned_offset, log.start_offset)
    limit = partition.last_stable_offset
    if limit <= first_dirty:
        return None
    end_offset, clean_bytes, dirty_bytes = first_dirty, 0, 0
    for segment in log.segments()[:-1]:
        if segment.end_offset <= first_dirty:
            clean_bytes += segment.size_bytes
            continue
        lag_ms = config.min_compaction_lag_ms
        is_young = lag_ms > 0 and segment.max_timestamp_ms > now_ms - lag_ms
        if segment.end_offset > limit or is_young:
            break
        dirty_bytes += segment.size_bytes
        end_offset = segment.end_offset
    if not dirty_bytes:
        return None
    ratio = dirty_bytes / (clean_bytes + dirty_bytes)
    return Dirt(end_offset, ratio, _is_overdue(partition, first_dirty, now_ms))


def _is_overdue(partition: Partition, first_dirty: int, now_ms: int) -> bool:
    if partition.config.max_compaction_lag_ms == NEVER_MS:
        return False
    first = next(partition.log.batches_from(first_dirty), None)
    return first is not None and 0 <= first.max_timestamp < now_ms - partition.config.max_compaction_lag_ms


class Compaction:
    """Cleans the logs of one broker."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._under_way: tuple[Partition, Cleaning] | None = None
        self._cleaned_before = 0

    def begin(self) -> None:
        """Look after the logs from now on."""
        self._look_later(self._node.settings.get("log.cleaner.backoff.ms"))

    def _look_later(self, delay_ms: int) -> None:
        self._node.timers.at(self._node.now_ms + delay_ms, self._look)

    def _look(self) -> None:
        """Begin with the log that needs it most, if there is one that does."""
        for partition, dirt in self._due():
            cleaning = self._begin_cleaning(partition, dirt)
            if cleaning is not None:
                self._under_way = partition, cleaning
                self._cleaned_before = partition.log.cleaned_offset
                self._step_later()
                return
        self.begin()

    def _due(self) -> list[tuple[Partition, Dirt]]:
        due = []
        for partition in self._node.partitions.values():
            if not is_compacted(partition) or partition.offline is not None:
                continue
            try:
                dirt = dirt_of(partition, self._node.now_ms)
            except LogFailed as error:
                partition.offline = str(error)
                continue
            if dirt and (dirt.is_overdue or dirt.ratio > partition.config.min_cleanable_dirty_ratio):
                due.append((partition, dirt))
        return sorted(due, key=lambda each: (not each[1].is_overdue, -each[1].ratio))

    def _begin_cleaning(self, partition: Partition, dirt: Dirt) -> Cleaning | None:
        memory_bytes: int = self._node.settings.get("log.cleaner.dedupe.buffer.size")
        plan = CleaningPlan(
            dirt.end_offset,
            partition.producers.snapshot(),
            self._node.now_ms,
            partition.config.delete_retention_ms,
            memory_bytes // KEY_BYTES,
        )
        try:
            return partition.log.begin_cleaning(plan)
        except LogFailed as error:
            partition.offline = str(error)
            return None

    def _step_later(self) -> None:
        self._node.timers.at(self._node.now_ms + SLICE_PAUSE_MS, self._step)

    def _step(self) -> None:
        if self._under_way is None:
            return
        partition, cleaning = self._under_way
        is_ours = self._node.partitions.get(partition.name) is partition
        if not is_ours or not is_compacted(partition) or partition.offline is not None:
            cleaning.abandon()
        try:
            if not cleaning.step():
                self._step_later()
                return
        except LogFailed as error:
            partition.offline = str(error)
        self._under_way = None
        # A pass that was given up would be again: the next one waits for better times.
        if partition.log.cleaned_offset > self._cleaned_before:
            self._look_later(SLICE_PAUSE_MS)
        else:
            self.begin()
