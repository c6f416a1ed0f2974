"""One replica of one partition: its log, its place in the leadership history, and how far it may be read.

LEO (`log.end_offset`) is the end of this replica. The high watermark is the smallest end within the in-sync
set; a set of one replica, this one, is the special case in which both move together. A topic that is
flushed before acknowledging counts only what is on stable storage as its end.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from gapless.core.configs import TopicConfig
from gapless.core.contract import InvariantViolated, TopicPartition
from gapless.core.log import Log, LogConfig, LogFailed, LogSlice
from gapless.core.producers import Producers, RefusedBatch
from gapless.core.records import PartitionChanged
from gapless.wire.batch import (
    BatchHeader,
    InvalidBatch,
    Opening,
    check_batch,
    stamp,
    stamp_append_time,
)
from gapless.wire.errors import ErrorCode
from gapless.wire.records import CODECS, recompress

NEVER_MS = 2**63 - 1


class Appended(NamedTuple):
    """Where a produce request's batches went. `end_offset` must be acknowledged before the client is."""

    base_offset: int
    end_offset: int
    log_append_time_ms: int


class Partition:
    """The rules of one replica. Errors are `RefusedBatch`; a failing medium takes the partition offline."""

    def __init__(
        self, name: TopicPartition, topic_id: UUID, node_id: int, log: Log, config: TopicConfig
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.node_id = node_id
        self.log = log
        self._take_config(config)
        self.leader = -1
        self.leader_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.offline: str | None = None
        self.damage: str | None = None
        """Why a part of it could not be read; what can be read still is."""
        self.producers = Producers()
        self.high_watermark = log.start_offset
        # After a crash the log's end may be in the page cache alone: it is flushed first where that matters.
        self.flushed_offset = log.flushed_offset
        self.flush_requested = log.flushed_offset
        self.flush_due_ms = NEVER_MS
        self.records_in = 0
        self.bytes_in = 0
        self.records_out = 0
        self.bytes_out = 0
        self._recover_producers()

    def _recover_producers(self) -> None:
        offset, entries = self.log.load_producers()
        self.producers.restore(entries)
        for batch in self.log.batches_from(offset):
            if batch.base_offset >= offset and batch.has_producer_id and not batch.is_control:
                self.producers.record(batch)

    # ------------------------------------------------------------------------------------- leadership

    @property
    def is_leader(self) -> bool:
        return self.leader == self.node_id

    @property
    def insync_floor(self) -> int:
        """How many replicas must be in sync for acks=all; never more than there are, as in Kafka."""
        return min(self.config.min_insync_replicas, len(self.replicas))

    def assign(self, change: PartitionChanged) -> None:
        """Take over what the journal says of this partition."""
        if change.leader_epoch < self.leader_epoch:
            raise InvariantViolated(f"leader epoch of {self.name} went back to {change.leader_epoch}")
        self.leader = change.leader
        self.leader_epoch = change.leader_epoch
        self.replicas = change.replicas
        self.isr = change.isr
        self.advance_high_watermark()

    def configure(self, config: TopicConfig) -> None:
        """Take over changed settings."""
        self._take_config(config)
        self.log.configure(log_config(config))
        self.advance_high_watermark()

    def _take_config(self, config: TopicConfig) -> None:
        self.config = config
        self._codec = None if config.compression_type == "producer" else int(CODECS[config.compression_type])

    def leadership_error(self, claimed_epoch: int) -> ErrorCode:
        """Whether a client that knows leader epoch `claimed_epoch` (-1: none) may be served here.

        An offline partition still serves readers: what was acknowledged stays readable.
        """
        if not self.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if claimed_epoch == -1 or claimed_epoch == self.leader_epoch:
            return ErrorCode.NONE
        return (
            ErrorCode.FENCED_LEADER_EPOCH
            if claimed_epoch < self.leader_epoch
            else ErrorCode.UNKNOWN_LEADER_EPOCH
        )

    # ------------------------------------------------------------------------------------------ writing

    def append(
        self,
        payload: memoryview,
        acks: int,
        now_ms: int,
        produce_version: int = 13,
        opening: Opening | None = None,
    ) -> Appended:
        """Append what a producer sent, after every check that Kafka makes of it."""
        if not self.is_leader:
            raise RefusedBatch(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker does not lead the partition")
        if self.offline is not None:
            raise RefusedBatch(ErrorCode.KAFKA_STORAGE_ERROR, self.offline)
        if acks == -1 and len(self.isr) < self.insync_floor:
            raise RefusedBatch(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(self.isr)} in sync, min.insync.replicas={self.config.min_insync_replicas}",
            )
        self._check_size(len(payload))
        try:
            batch = check_batch(payload, produce_version, opening)
            if self._codec is not None and batch.compression != self._codec:
                payload = memoryview(recompress(payload, batch, self._codec))
                batch = check_batch(payload, opening=opening)
                self._check_size(len(payload))
        except InvalidBatch as error:
            raise RefusedBatch(error.code, str(error)) from error
        self._check_limits(batch, now_ms)
        if batch.producer_id >= 0:
            earlier = self.producers.check(batch)
            if earlier is not None:
                append_time_ms = earlier.timestamp_ms if self.config.log_append_time else -1
                return Appended(earlier.first_offset, earlier.last_offset + 1, append_time_ms)
        return self._write(payload, batch, now_ms)

    def _check_size(self, size_bytes: int) -> None:
        config = self.config
        if size_bytes > config.max_message_bytes:
            raise RefusedBatch(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{size_bytes} bytes exceed max.message.bytes {config.max_message_bytes}",
            )
        if size_bytes > config.segment_bytes:
            raise RefusedBatch(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{size_bytes} bytes exceed segment.bytes {config.segment_bytes}",
            )

    def _check_limits(self, batch: BatchHeader, now_ms: int) -> None:
        config = self.config
        if batch.is_transactional:
            raise RefusedBatch(ErrorCode.INVALID_TXN_STATE, "no transaction of this producer is open here")
        if config.log_append_time:
            return
        too_late = batch.max_timestamp - now_ms > config.timestamp_after_max_ms
        if too_late or 0 <= batch.base_timestamp < now_ms - config.timestamp_before_max_ms:
            raise RefusedBatch(
                ErrorCode.INVALID_TIMESTAMP, "a record's timestamp is outside the topic's allowed range"
            )

    def _write(self, payload: memoryview, batch: BatchHeader, now_ms: int) -> Appended:
        log = self.log
        append_time_ms = -1
        if self.config.log_append_time:
            append_time_ms = now_ms
            batch = stamp_append_time(payload, batch, now_ms)
        batch = stamp(payload, batch, log.end_offset, self.leader_epoch)
        size_bytes = batch.size_bytes
        try:
            if log.roll_if_needed(size_bytes, batch.max_timestamp):
                log.save_producers(self.producers.snapshot())
            log.append((batch,), payload)
        except LogFailed as error:
            self.offline = str(error)
            raise RefusedBatch(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        if batch.producer_id >= 0:
            self.producers.record(batch)
        self.records_in += batch.record_count
        self.bytes_in += size_bytes
        self.advance_high_watermark()
        return Appended(batch.base_offset, log.end_offset, append_time_ms)

    def save_producers(self) -> None:
        """Keep the producers' state as of the log's end."""
        if self.offline is None:
            try:
                self.log.save_producers(self.producers.snapshot())
            except LogFailed as error:
                self.offline = str(error)

    def advance_high_watermark(self) -> None:
        """Move the high watermark to the smallest end in the in-sync set; it never goes back."""
        end = self.log.end_offset
        if self.config.flush_before_ack:
            end = min(end, self.flushed_offset)
        if end > self.high_watermark and self.is_leader:
            self.high_watermark = end

    # ----------------------------------------------------------------------------------------- flushing

    def flush_wanted(self, now_ms: int) -> bool:
        """Whether the topic's flush policy asks for an fsync now that was not asked for yet."""
        end = self.log.end_offset
        if end <= self.flush_requested or self.offline is not None:
            return False
        return end - self.flush_requested >= self.config.flush_messages or now_ms >= self.flush_due_ms

    def flush_started(self) -> int:
        """Note that everything so far will be flushed; the offset to flush up to."""
        self.flush_requested = self.log.end_offset
        self.flush_due_ms = NEVER_MS
        return self.flush_requested

    def flushed(self, offset: int) -> None:
        """Everything below `offset` is durable."""
        self.flushed_offset = max(self.flushed_offset, offset)
        self.flush_requested = max(self.flush_requested, offset)
        self.advance_high_watermark()

    # ------------------------------------------------------------------------------------------ reading

    @property
    def last_stable_offset(self) -> int:
        """How far a read_committed consumer may read."""
        return self.high_watermark

    def read(self, offset: int, max_bytes: int, at_least_one: bool, committed: bool) -> LogSlice:
        """Whole batches from `offset` on, as far as this consumer may see."""
        before = self.last_stable_offset if committed else self.high_watermark
        return self.log.read(offset, max_bytes, before, at_least_one)

    # ---------------------------------------------------------------------------------------- retention

    def delete_records(self, offset: int) -> None:
        """Make `offset` the first readable one (DeleteRecords)."""
        if self.log.advance_start(offset):
            self.log.save_producers(self.producers.snapshot())

    def apply_retention(self, now_ms: int) -> None:
        """Drop whole segments that are too old, or too much; only what is below the high watermark."""
        if "delete" not in self.config.cleanup_policy or self.offline is not None:
            return
        try:
            start = max(self._expired_by_time(now_ms), self._expired_by_size())
            start = min(start, self.high_watermark)
            if start > self.log.start_offset:
                self.delete_records(start)
        except LogFailed as error:
            self.offline = str(error)

    def _expired_by_time(self, now_ms: int) -> int:
        keep_from = self.log.start_offset
        if self.config.retention_ms < 0:
            return keep_from
        for segment in self.log.segments():
            if segment.max_timestamp_ms < 0 or now_ms - segment.max_timestamp_ms <= self.config.retention_ms:
                break
            keep_from = segment.end_offset
        return keep_from

    def _expired_by_size(self) -> int:
        keep_from = self.log.start_offset
        if self.config.retention_bytes < 0:
            return keep_from
        segments = self.log.segments()
        excess = sum(segment.size_bytes for segment in segments) - self.config.retention_bytes
        for segment in segments[:-1]:
            if excess < segment.size_bytes:
                break
            excess -= segment.size_bytes
            keep_from = segment.end_offset
        return keep_from


def log_config(config: TopicConfig) -> LogConfig:
    """The part of a topic's settings that its log needs."""
    return LogConfig(
        segment_bytes=config.segment_bytes,
        segment_ms=config.segment_ms,
        index_interval_bytes=config.index_interval_bytes,
        file_delete_delay_ms=config.file_delete_delay_ms,
    )
