"""One replica of one partition: its log, its place in the leadership history, and how far it may be read.

LEO (`log.end_offset`) is the end of this replica. The high watermark is the smallest end within the in-sync
set; a set of one replica, this one, is the special case in which both move together. A topic that is
flushed before acknowledging counts only what is on stable storage as its end.

What a leader knows of other replicas is in `followers`, None if there are none or this broker does not lead.
How a follower's log grows is in `replication.copying`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from gapless.core.configs import TopicConfig
from gapless.core.contract import InvariantViolated, TopicPartition
from gapless.core.log import AbortedTransaction, Log, LogConfig, LogFailed, LogSlice
from gapless.core.marker_reader import MarkerReader
from gapless.core.producers import SETTLING_MS, Producers, RefusedBatch
from gapless.core.records import PartitionChanged
from gapless.core.replication.followers import Followers
from gapless.core.retention import first_kept
from gapless.wire.batch import (
    BatchHeader,
    InvalidBatch,
    Opening,
    check_batch,
    parse_header,
    stamp,
    stamp_append_time,
)
from gapless.wire.errors import ErrorCode
from gapless.wire.records import CODECS, recompress, record_without_key
from gapless.wire.transaction_records import EndMarker, build_marker

NEVER_MS = 2**63 - 1

ReplicaKey = tuple[int, int]
"""A partition as brokers name it to each other: its topic's id, and its number."""


class Appended(NamedTuple):
    """Where a produce request's batches went. `end_offset` must be acknowledged before the client is."""

    base_offset: int
    end_offset: int
    log_append_time_ms: int


class Admission(NamedTuple):
    """The state of a partition before the coordinator was asked whether it is part of a transaction.

    The answer counts as long as this state does: afterwards the transaction may have ended.
    """

    leader_epoch: int
    producer: tuple[int, int]
    voided_at: int
    begins_at_zero: bool
    """Whether the producer's sequences begin anew with each transaction."""


class Partition:
    """The rules of one replica. Errors are `RefusedBatch`; a failing medium takes the partition offline.

    `on_news` is called when there is something new for followers, with whether it is worth an answer of its
    own (records) or can wait for the next one (a watermark).
    """

    def __init__(
        self,
        name: TopicPartition,
        topic_id: UUID,
        node_id: int,
        log: Log,
        config: TopicConfig,
        on_news: Callable[[Partition, bool], None] = lambda partition, urgent: None,
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.replica_key: ReplicaKey = (topic_id.int, name.partition)
        self.node_id = node_id
        self.log = log
        self._take_config(config)
        self.leader = -1
        self.leader_epoch = -1
        self.epoch_start = 0
        """Where the log ended when this broker began to lead in this epoch."""
        self.settled_at_ms = 0
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.followers: Followers | None = None
        self._on_news = on_news
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
        markers = MarkerReader(self.log)
        for batch in self.log.batches_from(offset):
            if batch.base_offset < offset or not batch.has_producer_id:
                continue
            if not batch.is_control:
                self.producers.record(batch)
            elif (marker := markers.read(batch)) is not None:
                self.end_transaction(batch, marker)

    # ------------------------------------------------------------------------------------- leadership

    @property
    def is_leader(self) -> bool:
        return self.leader == self.node_id

    @property
    def insync_floor(self) -> int:
        """How many replicas must be in sync for acks=all; never more than there are, as in Kafka."""
        return min(self.config.min_insync_replicas, len(self.replicas))

    def assign(self, change: PartitionChanged, now_ms: int = 0) -> None:
        """Take over what the journal says of this partition.

        Nothing is cut on a change of leadership: the high watermark known here may be behind the true one
        (KIP-101). A follower learns from its leader's epochs what must go.
        """
        if change.leader_epoch < self.leader_epoch:
            raise InvariantViolated(f"leader epoch of {self.name} went back to {change.leader_epoch}")
        renewed = change.leader_epoch != self.leader_epoch
        self.leader = change.leader
        self.leader_epoch = change.leader_epoch
        self.replicas = change.replicas
        self.isr = change.isr
        if renewed:
            self.epoch_start = self.log.end_offset
            if change.leader_epoch > 0 and len(change.replicas) > 1:
                self.settled_at_ms = now_ms + SETTLING_MS
                self.producers.forget_refused()
        if not self.is_leader or change.replicas == (self.node_id,):
            self.followers = None
        else:
            if renewed or self.followers is None:
                self.followers = Followers(self.node_id)
            self.followers.assign(change, now_ms)
        self.advance_high_watermark()

    def retire(self) -> None:
        """This replica is dropped: whoever still waits for it must not wait on."""
        self.leader = -1
        self.followers = None

    def configure(self, config: TopicConfig) -> None:
        """Take over changed settings."""
        self._take_config(config)
        self.log.configure(log_config(config))
        self.advance_high_watermark()

    def _take_config(self, config: TopicConfig) -> None:
        self.config = config
        self._is_compacted = "compact" in config.cleanup_policy
        self._codec = None if config.compression_type == "producer" else int(CODECS[config.compression_type])

    def leadership_error(self, claimed_epoch: int) -> ErrorCode:
        """Whether a client that knows leader epoch `claimed_epoch` (-1: none) may be served here.

        An offline partition still serves readers: what was acknowledged stays readable.
        """
        if self.leader != self.node_id:
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
        admission: Admission | None = None,
    ) -> Appended:
        """Append what a producer sent, after every check that Kafka makes of it.

        `admission` tells that the coordinator knows this partition as part of the producer's transaction.
        """
        self._check_writable(acks)
        self._check_size(len(payload))
        try:
            batch = check_batch(payload, produce_version, opening)
            if self._codec is not None and batch.compression != self._codec:
                payload = memoryview(recompress(payload, batch, self._codec))
                batch = check_batch(payload, opening=opening)
                self._check_size(len(payload))
            if self._is_compacted:
                _check_keys(payload, batch, opening or Opening())
        except InvalidBatch as error:
            raise RefusedBatch(error.code, str(error)) from error
        self._check_limits(batch, now_ms)
        if batch.producer_id >= 0:
            earlier = self.producers.check(batch, settled=now_ms >= self.settled_at_ms)
            if earlier is not None:
                append_time_ms = earlier.timestamp_ms if self.config.log_append_time else -1
                return Appended(earlier.first_offset, earlier.last_offset + 1, append_time_ms)
        if batch.is_transactional or self.producers.open_transactions:
            self._check_transaction(batch, admission)
        return self._write(payload, batch, now_ms)

    def append_own(self, payload: memoryview, now_ms: int) -> Appended:
        """Append a coordinator's records, perhaps as part of a producer's transaction."""
        self._check_writable()
        batch = parse_header(payload, 0)
        if batch.is_transactional:
            self.producers.check_epoch(batch)
        return self._write(payload, batch, now_ms)

    def append_marker(
        self, producer: tuple[int, int], marker: EndMarker, now_ms: int, *, strict: bool
    ) -> memoryview | None:
        """End a producer's transaction here; the control batch, or None if it had been written before.

        With `strict` the marker's epoch is above that of the transaction which it ends (see `Producers`).
        """
        self._check_writable()
        if not self.producers.check_marker(producer, marker, strict):
            return None
        payload = memoryview(build_marker(producer, marker, now_ms))
        written = self._write(payload, parse_header(payload, 0), now_ms, marker)
        if not strict:
            self.producers.void_admissions(producer[0], written.base_offset)
        return payload

    def admission(self, producer: tuple[int, int], *, begins_at_zero: bool) -> Admission:
        """Return what must not change here from the question to the coordinator until the append."""
        return Admission(self.leader_epoch, producer, self.producers.voided_at(*producer), begins_at_zero)

    def admission_error(self, admission: Admission) -> ErrorCode:
        """Return why an admission does not count any more, or NONE."""
        if admission.leader_epoch != self.leader_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER  # ask again: others may have ended the transaction
        if admission.voided_at != self.producers.voided_at(*admission.producer):
            return ErrorCode.INVALID_TXN_STATE
        return ErrorCode.NONE

    def _check_writable(self, acks: int = -1) -> None:
        if not self.is_leader:
            raise RefusedBatch(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker does not lead the partition")
        if self.offline is not None:
            raise RefusedBatch(ErrorCode.KAFKA_STORAGE_ERROR, self.offline)
        if acks == -1 and len(self.isr) < self.insync_floor:
            raise RefusedBatch(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(self.isr)} in sync, min.insync.replicas={self.config.min_insync_replicas}",
            )

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
        if config.log_append_time:
            return
        too_late = batch.max_timestamp - now_ms > config.timestamp_after_max_ms
        if too_late or 0 <= batch.base_timestamp < now_ms - config.timestamp_before_max_ms:
            raise RefusedBatch(
                ErrorCode.INVALID_TIMESTAMP, "a record's timestamp is outside the topic's allowed range"
            )

    def _check_transaction(self, batch: BatchHeader, admission: Admission | None) -> None:
        """Transactional batches belong to an open transaction, or open one that the coordinator knows of."""
        producer_id = batch.producer_id
        if not batch.is_transactional:
            # Whatever its epoch, as in Kafka: the last transaction's marker may not have arrived yet.
            if producer_id in self.producers.open_transactions:
                raise RefusedBatch(ErrorCode.INVALID_TXN_STATE, "this producer has a transaction open here")
            return
        if self.producers.has_open(producer_id, batch.producer_epoch):
            return
        if producer_id < 0:
            raise RefusedBatch(ErrorCode.INVALID_RECORD, "a transactional batch has no producer id")
        if admission is None:
            raise RefusedBatch(ErrorCode.INVALID_TXN_STATE, "no transaction of this producer is open here")
        if error := self.admission_error(admission):
            raise RefusedBatch(error, "the transaction ended, or the leader changed, while it was looked up")
        if admission.begins_at_zero and batch.base_sequence > 0 and not self.producers.is_known(producer_id):
            raise RefusedBatch(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"a transaction's first batch has the sequence {batch.base_sequence} instead of 0",
            )

    def _write(
        self, payload: memoryview, batch: BatchHeader, now_ms: int, marker: EndMarker | None = None
    ) -> Appended:
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
        if marker is not None:
            self.end_transaction(batch, marker)
        elif batch.producer_id >= 0:
            self.producers.record(batch)
        self.records_in += batch.record_count
        self.bytes_in += size_bytes
        if self.followers is not None:
            self._on_news(self, True)
        self.advance_high_watermark()
        return Appended(batch.base_offset, log.end_offset, append_time_ms)

    def end_transaction(self, batch: BatchHeader, marker: EndMarker) -> None:
        """Take note of a marker that is in the log."""
        ended = self.producers.record_marker(batch, marker)
        if ended is None or marker.committed:
            return
        decided_below = next(iter(self.producers.open_transactions.values()), batch.next_offset)
        try:
            self.log.note_aborted(AbortedTransaction(*ended, decided_below))
        except LogFailed as error:
            self.offline = str(error)

    def save_producers(self) -> None:
        """Keep the producers' state as of the log's end."""
        if self.offline is None:
            try:
                self.log.save_producers(self.producers.snapshot())
            except LogFailed as error:
                self.offline = str(error)

    def advance_high_watermark(self) -> None:
        """Move the high watermark to the smallest end in the in-sync set; it never goes back.

        While the set is below its floor it stays, so that nothing counts as committed which only those have
        who are left (KIP-966).
        """
        if self.leader != self.node_id:
            return
        end = self.log.end_offset
        if self.config.flush_before_ack:
            end = min(end, self.flushed_offset)
        if self.followers is not None:
            end = self.followers.smallest_end(end) if self._may_commit else -1
        if end > self.high_watermark:
            self.high_watermark = end
            self.producers.settle(end)
            if self.followers is not None:
                self._on_news(self, False)

    @property
    def _may_commit(self) -> bool:
        return len(self.isr) >= self.insync_floor

    # ----------------------------------------------------------------------------------------- following

    @property
    def end_for_followers(self) -> int:
        """How far followers may read: to the end, or to what is on stable storage if the topic says so."""
        return self.flushed_offset if self.config.replicate_flushed_only else self.log.end_offset

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch at or below `epoch` that is known here, and where it ended; (-1, -1) if none.

        An epoch whose records were all deleted has ended where the next that is known began: at the latest
        where this leader's own did.
        """
        if epoch == self.leader_epoch:
            return epoch, self.log.end_offset
        if not 0 <= epoch < self.leader_epoch:
            return -1, -1
        found = self.log.end_of_epoch(epoch)
        return found if found[0] >= 0 else (epoch, self.epoch_start)

    def truncate_to(self, offset: int) -> None:
        """Forget what the leader does not have."""
        self.log.truncate_to(offset)
        self.reload()

    def reload(self) -> None:
        """The log was cut: what is known of its contents is read again."""
        log = self.log
        self.high_watermark = self._watermark_within()
        self.flushed_offset = min(self.flushed_offset, log.flushed_offset)
        self.flush_requested = min(self.flush_requested, log.end_offset)
        self._recover_producers()
        self.producers.settle(self.high_watermark)

    def _watermark_within(self) -> int:
        """The high watermark, moved to where the log is."""
        return max(self.log.start_offset, min(self.high_watermark, self.log.end_offset))

    # ----------------------------------------------------------------------------------------- flushing

    def flush_wanted(self, now_ms: int) -> bool:
        """Whether the topic's flush policy asks for an fsync now that was not asked for yet."""
        end = self.log.end_offset
        if end <= self.flush_requested or self.offline is not None:
            return False
        if end - self.flush_requested >= self.config.flush_messages or now_ms >= self.flush_due_ms:
            return True
        return self.followers is not None and self.config.replicate_flushed_only

    def flush_started(self) -> int:
        """Note that everything so far will be flushed; the offset to flush up to."""
        self.flush_requested = self.log.end_offset
        self.flush_due_ms = NEVER_MS
        return self.flush_requested

    def flushed(self, offset: int) -> None:
        """Everything below `offset` is durable, unless the log was cut since."""
        offset = min(offset, self.log.end_offset)
        self.flushed_offset = max(self.flushed_offset, offset)
        self.flush_requested = max(self.flush_requested, offset)
        if self.followers is not None and self.config.replicate_flushed_only:
            self._on_news(self, True)
        self.advance_high_watermark()

    # ------------------------------------------------------------------------------------------ reading

    @property
    def last_stable_offset(self) -> int:
        """How far a read_committed consumer may read: to where the first undecided transaction begins."""
        unstable = self.producers.first_unstable_offset()
        if unstable is None or unstable > self.high_watermark:
            return self.high_watermark
        return max(unstable, self.log.start_offset)

    def end_for_consumers(self, committed: bool) -> int:
        """How far consumers may read, by their isolation level."""
        return self.last_stable_offset if committed else self.high_watermark

    def aborted_in(self, offset: int, records: LogSlice) -> list[tuple[int, int]]:
        """Producer id and first offset of each aborted transaction with records among these."""
        if records.size == 0:
            return []
        found = self.log.aborted_in(offset, records, self.last_stable_offset)
        return [(aborted.producer_id, aborted.first_offset) for aborted in found]

    def read(self, offset: int, max_bytes: int, at_least_one: bool, committed: bool) -> LogSlice:
        """Whole batches from `offset` on, as far as this consumer may see."""
        return self.log.read(offset, max_bytes, self.end_for_consumers(committed), at_least_one)

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
            start = first_kept(self.log, self.config, now_ms)
            start = min(start, self.high_watermark)
            if start > self.log.start_offset:
                self.delete_records(start)
        except LogFailed as error:
            self.offline = str(error)


def _check_keys(payload: memoryview, batch: BatchHeader, opening: Opening) -> None:
    """A compacted topic takes no record without a key: it could never be superseded."""
    index = record_without_key(payload, batch, opening)
    if index is not None:
        raise InvalidBatch(
            ErrorCode.INVALID_RECORD, f"record {index} has no key, which a compacted topic needs"
        )


def log_config(config: TopicConfig) -> LogConfig:
    """The part of a topic's settings that its log needs."""
    segment_ms = config.segment_ms
    if "compact" in config.cleanup_policy:  # an active segment is not cleaned, so it must not stay for long
        segment_ms = min(segment_ms, config.max_compaction_lag_ms)
    return LogConfig(
        segment_bytes=config.segment_bytes,
        segment_ms=segment_ms,
        index_interval_bytes=config.index_interval_bytes,
        file_delete_delay_ms=config.file_delete_delay_ms,
    )
