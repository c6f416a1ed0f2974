"""Consumers that choose their partitions themselves, and read from the beginning on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gapless.simulator.clients.client import Client
from gapless.simulator.clients.process import Part, Process
from gapless.simulator.history import Place, Polled, Reading
from gapless.wire.apis import ApiKey
from gapless.wire.batch import parse_header
from gapless.wire.errors import ErrorCode
from gapless.wire.fetch import FetchPartition, FetchPartitionResult, FetchRequest, FetchTopic
from gapless.wire.records import iterate_records

if TYPE_CHECKING:
    from gapless.simulator.scene import Scene

FETCH_VERSION = 12
MAX_BYTES = 1 << 16
WAIT_MS = 1_000


class Position:
    """Where a consumer is in one place, and the epoch of what it read last (KIP-320)."""

    __slots__ = ("busy", "last_epoch", "reading", "tries")

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.last_epoch = -1
        self.tries = 0
        self.busy = False
        """Whether something was read that is not dealt with yet."""


class Consumer(Client):
    """Reads places from their beginning; `committed_only` is isolation.level=read_committed."""

    def __init__(self, scene: Scene, name: str, places: list[Place], *, committed_only: bool) -> None:
        super().__init__(scene, name)
        self.committed_only = committed_only
        self.positions: dict[Place, Position] = {}
        for place in places:
            self.read(place)

    def read(self, place: Place) -> None:
        """Read a place, too."""
        reading = self.history.reads(self.name, place, committed_only=self.committed_only)
        position = self.positions[place] = Position(reading)
        self.begin(self._read(position))

    def _read(self, position: Position) -> Process:
        while True:
            yield from self.poll(position)

    def what_is_left(self) -> Iterator[str]:
        for place, position in self.positions.items():
            leader = self.scene.leader(place)
            if leader is None:
                continue
            end = leader.log.end_offset
            if self.committed_only and place[0] in self.scene.excused:
                end = leader.last_stable_offset  # with a transaction's marker its end is lost
            if position.reading.position < end:
                yield (
                    f"{self.name} has read {place[0]}-{place[1]} up to {position.reading.position} of {end}"
                )

    def poll(self, position: Position, purpose: Any = None) -> Part:
        """One fetch, over a connection for this place and purpose."""
        place = position.reading.place
        broker, epoch = yield from self.leader(place)
        answer = yield self.ask(
            broker,
            ApiKey.FETCH,
            FETCH_VERSION,
            self._request(position, epoch),
            (place, purpose),
            WAIT_MS + 1_000,
        )
        if answer is None or not answer.topics:
            self.forget_leader(place)
            yield self.back_off(position.tries)
            position.tries += 1
            return
        result: FetchPartitionResult = answer.topics[0].partitions[0]
        if not result.error:
            position.tries = 0
            self._take(position, result)
        elif result.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(position, result)
            yield self.back_off(position.tries)
        else:
            self.forget_leader(place, result.current_leader)
            yield self.back_off(position.tries)
            position.tries += 1

    def _request(self, position: Position, epoch: int) -> FetchRequest:
        topic, partition = position.reading.place
        wish = FetchPartition(partition, epoch, position.reading.position, position.last_epoch, -1, MAX_BYTES)
        return FetchRequest(
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=MAX_BYTES,
            isolation_level=int(self.committed_only),
            topics=[FetchTopic(topic, None, [wish])],
        )

    def _take(self, position: Position, result: FetchPartitionResult) -> None:
        reading = position.reading
        if result.diverging_epoch is not None:
            self._cut_off(position, result.diverging_epoch[1])
            return
        records: Any = result.records
        if records is None or not records.size:
            return
        data = records.read(0, records.size)
        aborted = deque(sorted(result.aborted or (), key=lambda entry: entry[1]))
        aborting: dict[int, None] = {}
        at = 0
        while at < len(data):
            batch = parse_header(data, at)
            at += batch.size_bytes
            while aborted and aborted[0][1] <= batch.last_offset:
                aborting[aborted.popleft()[0]] = None
            if batch.next_offset <= reading.position:
                continue
            if batch.base_offset > reading.position:
                reading.skipped.append((reading.position, batch.base_offset))
            if batch.is_control:
                aborting.pop(batch.producer_id, None)
            elif not (batch.is_transactional and batch.producer_id in aborting):
                self._deliver(reading, data, batch)
            reading.position = batch.next_offset
            position.last_epoch = batch.leader_epoch

    def _deliver(self, reading: Reading, data: Any, batch: Any) -> None:
        got = [
            Polled(record.offset, int(record.value or b"-1"))
            for record in iterate_records(data, batch)
            if record.offset >= reading.position
        ]
        reading.polled += got
        topic, partition = reading.place
        values = ", ".join(str(each.value) for each in got)
        self.history.say(self.name, f"reads {values} from {topic}-{partition} at {got[0].offset}")

    def _out_of_range(self, position: Position, result: FetchPartitionResult) -> None:
        reading = position.reading
        if reading.position < result.log_start_offset:
            reading.expired.append((reading.position, result.log_start_offset))
            reading.position = result.log_start_offset
            position.last_epoch = -1
        else:
            self._cut_off(position, max(0, result.high_watermark))

    def _cut_off(self, position: Position, end: int) -> None:
        """What was read is not there any more: a committed record was lost."""
        reading = position.reading
        reading.cut_off.append((end, reading.position))
        reading.position = min(end, reading.position)
        position.last_epoch = -1
