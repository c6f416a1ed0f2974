"""One coordinator's share of the work: the state that one partition of an internal topic holds.

A coordinator *decides* records, appends them here and answers once the high watermark has passed them; state
changes in `replay` alone, whether a record was just written or is read back after a restart. Loading happens
in bounded slices; until it is done, clients are told to try again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from gapless.core.log import LogFailed
from gapless.core.producers import RefusedBatch
from gapless.wire.batch import BatchHeader, parse_header
from gapless.wire.errors import ErrorCode
from gapless.wire.records import Record, build_batch, iterate_records
from gapless.wire.transaction_records import EndMarker

if TYPE_CHECKING:
    from gapless.core.contract import Request
    from gapless.core.node import Node
    from gapless.core.partition import Partition

LOAD_SLICE_BYTES = 1024 * 1024
COMMIT_TIMEOUT_MS = 5000

OwnRecord = tuple[bytes, bytes | None]
"""Key and value; a value of None is a tombstone."""


class CoordinatorError(Exception):
    """Why a coordinator cannot serve a request, with Kafka's code."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code


class ShardState(Protocol):
    """What a coordinator keeps in a shard."""

    def replay(self, record: Record, batch: BatchHeader) -> None:
        """Apply one record, new or read back. Control records (transaction markers) come here too."""

    def loaded(self) -> None:
        """Everything has been read back: start the clocks."""

    def unloaded(self) -> None:
        """This broker no longer leads the partition: stop the clocks, let nobody wait."""

    def topic_deleted(self, topic: str) -> None:
        """A topic is gone: forget what is kept about it. Not called before `loaded`."""


class Shard:
    """A coordinator's partition: where its records are written and read back."""

    def __init__(self, node: Node, partition: Partition, new_state: Callable[[Shard], ShardState]) -> None:
        self.node = node
        self.partition = partition
        self.state = new_state(self)
        self.ready = False
        self.resigned = False
        self._next_offset = partition.log.start_offset
        self._load_later()

    # ------------------------------------------------------------------------------------------- loading

    def _load_later(self) -> None:
        self.node.timers.at(self.node.now_ms, self._load_slice)

    def _load_slice(self) -> None:
        if self.resigned:
            return
        try:
            data = self.partition.log.bytes_from(self._next_offset, LOAD_SLICE_BYTES)
        except LogFailed as error:
            self.partition.offline = str(error)
            return
        if data:
            self._replay_batches(memoryview(data))
            self._load_later()
        else:
            self.ready = True
            self.state.loaded()

    def _replay_batches(self, data: memoryview) -> None:
        position = 0
        while position < len(data):
            batch = parse_header(data, position)
            if batch.last_offset >= self._next_offset:
                for record in iterate_records(data, batch):
                    self.state.replay(record, batch)
                self._next_offset = batch.next_offset
            position += batch.size_bytes

    def resign(self) -> None:
        """Leadership is gone; what is known here may be outdated from now on."""
        self.resigned = True
        self.ready = False
        self.state.unloaded()

    def topic_deleted(self, topic: str) -> None:
        """Pass on that a topic is gone; a shard that is still loading looks for itself when it is done."""
        if self.ready:
            self.state.topic_deleted(topic)

    # ------------------------------------------------------------------------------------------- writing

    def check_ready(self) -> None:
        """Raise what a client must be told if this shard cannot serve it now."""
        if self.resigned or not self.partition.is_leader:
            raise CoordinatorError(ErrorCode.NOT_COORDINATOR)
        if not self.ready:
            raise CoordinatorError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        if self.partition.offline is not None:
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, self.partition.offline)

    def write(self, records: Sequence[OwnRecord], producer: tuple[int, int] | None = None) -> None:
        """Append records and replay them; with `producer` they are part of its transaction.

        The caller makes sure that the coordinator of transactions knows this partition as part of it.
        """
        if not records:
            return
        producer_id, producer_epoch = producer or (-1, -1)
        payload = memoryview(
            build_batch(
                [(self.node.now_ms, key, value) for key, value in records],
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transactional=producer is not None,
            )
        )
        try:
            self.partition.append_own(payload, self.node.now_ms)
        except RefusedBatch as refusal:
            fenced = refusal.code is ErrorCode.INVALID_PRODUCER_EPOCH
            code = refusal.code if fenced else ErrorCode.COORDINATOR_NOT_AVAILABLE
            raise CoordinatorError(code, str(refusal)) from refusal
        self._replay_batches(payload)
        self.node.touch(self.partition)

    def write_marker(self, producer: tuple[int, int], marker: EndMarker, *, strict: bool) -> None:
        """End a producer's transaction in this partition, and replay the marker. Raises `RefusedBatch`."""
        payload = self.partition.append_marker(producer, marker, self.node.now_ms, strict=strict)
        if payload is not None:
            self._replay_batches(payload)
            self.node.touch(self.partition)

    def when_committed(self, then: Callable[[ErrorCode], None], timeout_ms: int = COMMIT_TIMEOUT_MS) -> None:
        """Go on once all that has been written here is committed, or can no longer be (the code says why)."""
        partition = self.partition
        end_offset = partition.log.end_offset
        due_ms = self.node.now_ms + timeout_ms

        def look() -> bool:
            if self.resigned:
                then(ErrorCode.NOT_COORDINATOR)
            elif partition.high_watermark >= end_offset:
                then(ErrorCode.NONE)
            elif partition.offline is not None:
                then(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            elif self.node.now_ms >= due_ms:
                then(ErrorCode.REQUEST_TIMED_OUT)
            else:
                return False
            return True

        self.node.watches.add(partition.name, look)
        if partition.high_watermark < end_offset:
            self.node.timers.at(due_ms, lambda: self.node.touch(partition))

    def answer(self, request: Request, message: Any, failed: Callable[[ErrorCode], Any]) -> None:
        """Reply once all that has been written here is committed, so that no answer can be taken back."""
        end_offset = self.partition.log.end_offset

        def poll(timed_out: bool) -> Any | None:
            if self.resigned:
                return failed(ErrorCode.NOT_COORDINATOR)
            if self.partition.high_watermark >= end_offset:
                return message
            if self.partition.offline is not None:
                return failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return failed(ErrorCode.REQUEST_TIMED_OUT) if timed_out else None

        reply = poll(False)
        if reply is not None:
            self.node.reply(request, reply)
        else:
            due_ms = self.node.now_ms + COMMIT_TIMEOUT_MS
            self.node.waiting.add(request, due_ms, [self.partition.name], poll)


def java_hash(text: str) -> int:
    """Java's String.hashCode: how Kafka spreads groups and transactional ids over partitions."""
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for index in range(0, len(data), 2):
        value = (31 * value + (data[index] << 8 | data[index + 1])) & 0xFFFFFFFF
    return value - (value >> 31 << 32)


def shard_of(key: str, partitions: int) -> int:
    """The partition of an internal topic that coordinates `key`."""
    if partitions == 1:
        return 0
    value = java_hash(key)
    return 0 if value == -(2**31) else abs(value) % partitions
