"""Producers without transactions: plain ones that may repeat, and idempotent ones that must not."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gapless.simulator.clients.client import PASSING, REQUEST_MS, Client
from gapless.simulator.clients.process import Part, Process, Promise
from gapless.simulator.history import GiveUp, Place, Write
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import InitProducerIdRequest
from gapless.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from gapless.wire.records import build_batch

if TYPE_CHECKING:
    from gapless.simulator.scene import Scene

PRODUCE_VERSION = 11
INIT_VERSION = 4
MAX_IN_FLIGHT = 5
PLAIN_TRIES = 5
CONFIRM_MS = 1_000
"""How long a broker may wait for its followers."""


def new_batch(
    values: list[Write], now_ms: int, producer: tuple[int, int] = (-1, -1), sequence: int = -1, **more: Any
) -> bytes:
    """The bytes of one batch."""
    for write in values:
        write.stamp_ms = now_ms
    records = [(now_ms, None, b"%d" % write.value) for write in values]
    batch = build_batch(
        records, producer_id=producer[0], producer_epoch=producer[1], base_sequence=sequence, **more
    )
    return bytes(batch)


def produce_request(
    place: Place, payload: bytes, acks: int, transactional_id: str | None, confirm_ms: int = CONFIRM_MS
) -> ProduceRequest:
    """A request with one batch, in memory of its own: the broker stamps it."""
    parts = [ProducePartition(place[1], memoryview(bytearray(payload)))]
    return ProduceRequest(transactional_id, acks, confirm_ms, [ProduceTopic(place[0], None, parts)])


@dataclass(slots=True, eq=False)
class Batch:
    """Records that are sent together, however often."""

    writes: list[Write]
    payload: bytes
    answer: Promise | None = None


@dataclass(slots=True, eq=False)
class Lane:
    """All that a producer sends to one place."""

    place: Place
    queue: deque[list[Write]] = field(default_factory=deque)
    in_flight: deque[Batch] = field(default_factory=deque)
    producer: tuple[int, int] = (-1, -1)
    sequence: int = 0
    tries: int = 0
    working: bool = False


class Producer(Client):
    """Sends batches to places. With `idempotent` each lane has a producer id."""

    request_ms = REQUEST_MS
    confirm_ms = CONFIRM_MS
    plain_tries = PLAIN_TRIES

    def __init__(self, scene: Scene, name: str, *, acks: int = -1, idempotent: bool = True) -> None:
        super().__init__(scene, name)
        self.acks = acks
        self.idempotent = idempotent
        self._lanes: dict[Place, Lane] = {}

    def send(self, place: Place, count: int) -> None:
        """Send so many new values to a place, in one batch."""
        writes = [
            self.history.sends(self.name, place, acks=self.acks, once=self.idempotent) for _ in range(count)
        ]
        self.send_batch(place, writes)

    def send_batch(self, place: Place, writes: list[Write]) -> None:
        """Send values, new or not, in one batch."""
        lane = self._lanes.setdefault(place, Lane(place))
        lane.queue.append(writes)
        if not lane.working:
            lane.working = True
            self.begin(self._work(lane))

    def _work(self, lane: Lane) -> Process:
        while lane.queue or lane.in_flight:
            if self.idempotent and lane.producer[0] < 0:
                yield from self._get_id(lane)
            broker, _ = yield from self.leader(lane.place)
            self._fill(lane, broker)
            if self.acks == 0:
                lane.in_flight.clear()
                continue
            yield from self._await_first(lane)
        lane.working = False

    def _get_id(self, lane: Lane) -> Part:
        while lane.producer[0] < 0:
            body = InitProducerIdRequest(
                transactional_id=None, transaction_timeout_ms=0, producer_id=-1, producer_epoch=-1
            )
            answer = yield self.ask(self._anybody(), ApiKey.INIT_PRODUCER_ID, INIT_VERSION, body)
            if answer is not None and not answer.error_code:
                lane.producer = (answer.producer_id, answer.producer_epoch)
                lane.sequence = 0
            else:
                yield self.back_off(1)

    def _fill(self, lane: Lane, broker: int) -> None:
        """Have as many batches under way as may be, those that failed first."""
        while lane.queue and len(lane.in_flight) < MAX_IN_FLIGHT:
            writes = lane.queue.popleft()
            sequence = lane.sequence if self.idempotent else -1
            payload = new_batch(writes, self.world.now_ms, lane.producer, sequence)
            lane.in_flight.append(Batch(writes, payload))
            lane.sequence += len(writes)
        for batch in lane.in_flight:
            if batch.answer is None:
                body = produce_request(lane.place, batch.payload, self.acks, None, self.confirm_ms)
                batch.answer = self.ask(
                    broker, ApiKey.PRODUCE, PRODUCE_VERSION, body, timeout_ms=self.request_ms
                )
                if self.acks == 0:  # the end of the connection is the only answer that can come
                    batch.answer.then(lambda _: self.forget_leader(lane.place))

    def _await_first(self, lane: Lane) -> Part:
        first = lane.in_flight[0]
        if first.answer is None:
            return
        answer = yield first.answer
        error, result = outcome_of(answer)
        if not error:
            lane.in_flight.popleft()
            lane.tries = 0
            self._acknowledge(first, result.base_offset)
            return
        yield from self._await_rest(lane)
        self.forget_leader(lane.place, None if result is None else result.current_leader)
        lane.tries += 1
        if self.idempotent and error not in PASSING:
            self._begin_anew(lane, error)
        elif not self.idempotent and lane.tries >= self.plain_tries:
            self._give_up(lane, error)
        else:
            yield self.back_off(lane.tries)

    def _await_rest(self, lane: Lane) -> Part:
        """Nothing is sent again before all that is under way has come back: order is kept."""
        for batch in list(lane.in_flight):
            if batch.answer is not None:
                answer = yield batch.answer
                error, result = outcome_of(answer)
                batch.answer = None
                if not error:
                    lane.in_flight.remove(batch)
                    self._acknowledge(batch, result.base_offset)

    def _begin_anew(self, lane: Lane, error: ErrorCode) -> None:
        """What is under way may be stored or not: it is given up, and a new id is asked for."""
        what = ", ".join(named(batch.writes) for batch in lane.in_flight) or "its place"
        self.history.say(self.name, f"gives up {what} after {error.name}, and starts anew")
        self._give_up(lane, error)
        lane.producer = (-1, -1)

    def _give_up(self, lane: Lane, error: ErrorCode) -> None:
        values = tuple(write.value for batch in lane.in_flight for write in batch.writes)
        self.history.given_up.append(GiveUp(self.name, error, lane.place, values))
        lane.in_flight.clear()
        lane.tries = 0

    def _acknowledge(self, batch: Batch, base_offset: int) -> None:
        for place_in_batch, write in enumerate(batch.writes):
            write.acknowledged = True
            write.offset = base_offset + place_in_batch
        first, place = batch.writes[0], batch.writes[0].place
        self.history.say(
            self.name,
            f"is told that {named(batch.writes)} {'are' if len(batch.writes) > 1 else 'is'} stored in "
            f"{place[0]}-{place[1]} at {first.offset}",
        )


def outcome_of(answer: Any) -> tuple[ErrorCode, Any]:
    """What became of a produce request with one batch; no answer at all may be sent again, too."""
    if answer is None:
        return ErrorCode.REQUEST_TIMED_OUT, None
    result = answer.topics[0].partitions[0]
    return ErrorCode(result.error), result


def named(writes: list[Write]) -> str:
    """The records of a batch, for people."""
    first, last = writes[0].value, writes[-1].value
    return f"record {first}" if first == last else f"records {first} to {last}"
