"""The log as the core sees it: a synchronous port, implemented by `storage/` on files and in memory.

A result is visible at once and durable only once the shell has reported it flushed. Any failure of the
medium surfaces as `LogFailed`; the core answers it by taking the partition offline.

The order of calls for an append is fixed, because a snapshot of the producers must describe exactly what
lies before a segment's first offset:

    if log.roll_if_needed(len(payload), max_timestamp_ms):
        log.save_producers(entries)
    log.append(batches, payload)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from uuid import UUID

from gapless.wire.batch import BatchHeader


class LogFailed(Exception):
    """The medium under a log failed (full disk, EIO, missing file). The message says what to do."""


@dataclass(frozen=True, slots=True)
class LogConfig:
    """What a log needs to know of its topic's configuration. Names and defaults are Kafka's."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * 24 * 3600 * 1000
    index_interval_bytes: int = 4096
    file_delete_delay_ms: int = 60_000


class TimedOffset(NamedTuple):
    """A record's offset with its timestamp and the leader epoch of its batch."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


class SegmentInfo(NamedTuple):
    """One segment, for the retention rules. `max_timestamp_ms` is -1 when it holds no record."""

    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp_ms: int


@dataclass(slots=True)
class ProducerEntry:
    """The last batch of one producer, as a snapshot keeps it across restarts."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int = -1
    txn_first_offset: int = -1


class AbortedTransaction(NamedTuple):
    """A transaction that was aborted in this log, from its first record to the marker that ended it."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    """Where the first transaction began that was still open after this one: below it all is decided."""


@dataclass(frozen=True, slots=True)
class CleaningPlan:
    """What one pass of compaction over a log must know."""

    end_offset: int
    """Nothing at or above it is touched."""
    producers: Sequence[ProducerEntry]
    """Whose last batches must stay, if only as empty ones, so that their sequences outlive it."""
    now_ms: int
    delete_retention_ms: int
    max_keys: int
    """How many keys may be held in memory; with more of them the pass covers less."""


class Cleaning(Protocol):
    """A pass of compaction that is under way."""

    def step(self) -> bool:
        """Do a bounded part of the work; True if all is done or given up. Raises `LogFailed`."""

    def abandon(self) -> None:
        """Leave the log as it is."""


class LogSlice(Protocol):
    """Whole batches in the log, opaque to the core: only the shell turns them into bytes."""

    @property
    def size(self) -> int: ...

    @property
    def end_offset(self) -> int:
        """The offset after the last record; without meaning if there is none."""


class Log(Protocol):
    """One replica of one partition."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def flushed_offset(self) -> int:
        """Everything below it is known to be on stable storage."""

    @property
    def latest_epoch(self) -> int:
        """The leader epoch of the last batch ever appended; -1 for none."""

    def roll_if_needed(self, incoming_bytes: int, max_timestamp_ms: int) -> bool:
        """Begin a new segment if the next append would overfill the active one or it is too old."""

    def append(self, batches: Sequence[BatchHeader], payload: memoryview) -> None:
        """Append batches whose offsets and epochs are stamped already; they must start at `end_offset`."""

    def read(self, offset: int, max_bytes: int, before: int, at_least_one: bool) -> LogSlice:
        """Whole batches from the one that holds `offset`, ending at or below the offset `before`.

        At most `max_bytes`, except that `at_least_one` lets the first batch exceed it. Empty (size 0) if
        there is nothing. The slice may begin with records below `offset`: clients skip those. It never
        goes beyond one segment. An offset below the log's start is a mistake (`ValueError`).
        """

    def bytes_from(self, offset: int, max_bytes: int) -> bytes | memoryview:
        """Whole batches as bytes, at least one unless the log ends at `offset`.

        For records that the core itself reads, also before the log's start as far as `batches_from` names
        them; what clients fetch goes by `read`.
        """

    def truncate_to(self, offset: int) -> None:
        """Forget everything at and after `offset` (batches that contain it too).

        So the log may end below `offset`. At or below its start it becomes empty and goes on at `offset`.
        """

    def advance_start(self, offset: int) -> bool:
        """Make `offset` the first readable one; segments that lie wholly below it are dropped.

        Beyond the end, the log becomes empty, without an epoch, and goes on at `offset`. True if a new
        segment was begun: then `save_producers` must follow, as after a roll.
        """

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest known epoch at or below `epoch`, and the offset where it ended; (-1, -1) if none.

        If all that is known are later ones, `epoch` itself, and where the first of them begins.
        """

    def offset_at_time(self, timestamp_ms: int, before: int) -> TimedOffset | None:
        """The first record below the offset `before` whose timestamp is at or after `timestamp_ms`."""

    def latest_timestamp(self, before: int) -> TimedOffset | None:
        """The first record below the offset `before` that carries the largest timestamp."""

    def segments(self) -> Sequence[SegmentInfo]:
        """All segments, oldest first; the last one is active. Never empty."""

    def batches_from(self, offset: int) -> Iterator[BatchHeader]:
        """The headers of all batches whose last offset is at or after `offset`.

        Before the log's start these are what its first segment still has.
        """

    def save_producers(self, entries: Sequence[ProducerEntry]) -> None:
        """Keep the producers' state as it is at `end_offset`."""

    def load_producers(self) -> tuple[int, list[ProducerEntry]]:
        """The newest usable snapshot: the offset of it (the first segment's if none), and its entries.

        Not the log's start: whose records are deleted may still send one of them again.

        Aborted transactions that end at or above that offset are forgotten: whoever replays the batches from
        there on notes them again.
        """

    def note_aborted(self, aborted: AbortedTransaction) -> None:
        """Remember a transaction whose abort marker is in the log; they come in their markers' order."""

    def aborted_in(self, offset: int, records: LogSlice, before: int) -> list[AbortedTransaction]:
        """The aborted transactions that share offsets with what was read from `offset`, all below `before`.

        A few more, that begin soon after, may be among them: readers do not mind.
        """

    @property
    def cleaned_offset(self) -> int:
        """Below it each key was there but once when compaction last passed."""

    def begin_cleaning(self, plan: CleaningPlan) -> Cleaning | None:
        """Begin a pass of compaction; None if nothing can be cleaned yet, or a pass is under way.

        Of each key only the last record below the pass's end survives. Records keep their offsets, so that
        offsets are missing afterwards, between batches and within; a segment still ends where it ended.
        """

    def configure(self, config: LogConfig) -> None:
        """Take over a changed topic configuration."""

    def close(self) -> None:
        """Release files without flushing; the shell flushes first on a clean stop."""


class LogStore(Protocol):
    """All logs of one broker."""

    @property
    def location(self) -> str:
        """Where the logs are, for people: a path."""

    def space(self) -> tuple[int, int]:
        """Total and usable bytes of the medium; (-1, -1) if unknown."""

    def open(self, topic: str, topic_id: UUID, partition: int, config: LogConfig) -> Log:
        """Create the log, or recover it from what is on the medium. Raises `LogFailed`."""

    def delete(self, topic: str, partition: int) -> None:
        """Drop a log and all its data."""
