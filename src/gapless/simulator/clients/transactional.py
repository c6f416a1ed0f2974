"""Transactional producers of both protocols: librdkafka's, and KIP-890's, where brokers add partitions.

A producer that is replaced goes on as a zombie, until somebody tells it that it is fenced.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gapless.simulator.clients.client import PASSING, TRANSACTION_KEY, Client
from gapless.simulator.clients.process import Part, Process
from gapless.simulator.clients.producer import named, new_batch, outcome_of, produce_request
from gapless.simulator.history import Attempt, Outcome, Place, Write
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest

if TYPE_CHECKING:
    from gapless.simulator.scene import Scene

MAX_TRIES = 12

# Answers that say that nothing was decided. Who has lost its place may have decided before it did.
NOTHING_DONE = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})


@dataclass(frozen=True, slots=True)
class Versions:
    """What a protocol sends."""

    init: int
    produce: int
    end: int


OLDER = Versions(init=4, produce=11, end=4)
NEWER = Versions(init=5, produce=12, end=5)
ADD_VERSION = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """A transaction to be made: how many values to each place, and whether it is committed."""

    writes: list[tuple[Place, int]]
    commit: bool


class GivenUp(Exception):
    """The transaction cannot go on: its producer must start anew."""


class TransactionalProducer(Client):
    """Makes one transaction after another."""

    def __init__(
        self, scene: Scene, name: str, transactional_id: str, *, newer: bool, timeout_ms: int = 3_000
    ) -> None:
        super().__init__(scene, name)
        self.transactional_id = transactional_id
        self.newer = newer
        self.timeout_ms = timeout_ms
        self._versions = NEWER if newer else OLDER
        self._plans: deque[Plan] = deque()
        self._producer = (-1, -1)
        self._sequences: dict[Place, int] = {}
        self._ready = False
        self._fenced = False
        self._working = False

    def transact(self, plan: Plan) -> None:
        """Make a transaction when all before it are done."""
        self._plans.append(plan)
        if not self._working:
            self._working = True
            self.begin(self._work())

    def _work(self) -> Process:
        while self._plans and not self._fenced:
            if not self._ready:
                yield from self._start()
                continue
            plan = self._plans.popleft()
            attempt = self.history.begins(self.name)
            try:
                yield from self._make(plan, attempt)
            except GivenUp as why:
                self._ready = False
                if attempt.outcome is Outcome.OPEN:
                    attempt.outcome = Outcome.ABORTED
                self.history.say(self.name, f"gives up transaction {attempt.number}: {why}")
        self._working = False

    # ------------------------------------------------------------------------------------------- parts

    def _start(self) -> Part:
        """Get the next epoch, which fences whoever had this transactional id before."""
        body = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
        )
        answer = yield from self._ask_coordinator(ApiKey.INIT_PRODUCER_ID, self._versions.init, body)
        error = ErrorCode.REQUEST_TIMED_OUT if answer is None else ErrorCode(answer.error_code)
        if not error:
            self._become((answer.producer_id, answer.producer_epoch))
            self._ready = True
            self.history.say(self.name, f"starts with epoch {answer.producer_epoch}")
        elif error in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
            self._fenced = True
            self.history.say(self.name, "is told that it is fenced, and ends")
        else:
            yield self.back_off(2)

    def _become(self, producer: tuple[int, int]) -> None:
        if producer != self._producer:
            self._sequences.clear()
        self._producer = producer

    def _make(self, plan: Plan, attempt: Attempt) -> Part:
        added: dict[Place, None] = {}
        for place, count in plan.writes:
            if not self.newer and place not in added:
                yield from self._add(place)
                added[place] = None
            writes = [
                self.history.sends(self.name, place, acks=-1, once=True, attempt=attempt)
                for _ in range(count)
            ]
            yield from self._write(place, writes)
        yield from self._end(plan, attempt)

    def _add(self, place: Place) -> Part:
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=place[0], partitions=[place[1]])
        for tries in range(MAX_TRIES):
            body = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=self._producer[0],
                v3_and_below_producer_epoch=self._producer[1],
                v3_and_below_topics=[topic],
            )
            answer = yield from self._ask_coordinator(ApiKey.ADD_PARTITIONS_TO_TXN, ADD_VERSION, body)
            error = ErrorCode.REQUEST_TIMED_OUT
            if answer is not None:
                results = answer.results_by_topic_v3_and_below[0].results_by_partition
                error = ErrorCode(results[0].partition_error_code)
            if not error:
                return
            yield from self._try_again(error, tries)
        raise GivenUp("a partition could not be added")

    def _write(self, place: Place, writes: list[Write]) -> Part:
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = sequence + len(writes)
        payload = new_batch(writes, self.world.now_ms, self._producer, sequence, transactional=True)
        for tries in range(MAX_TRIES):
            broker, _ = yield from self.leader(place)
            body = produce_request(place, payload, -1, self.transactional_id)
            answer = yield self.ask(broker, ApiKey.PRODUCE, self._versions.produce, body)
            error, result = outcome_of(answer)
            if not error:
                for place_in_batch, write in enumerate(writes):
                    write.acknowledged = True
                    write.offset = result.base_offset + place_in_batch
                self.history.say(
                    self.name, f"has {named(writes)} in {place[0]}-{place[1]} at {writes[0].offset}"
                )
                return
            self.forget_leader(place, None if result is None else result.current_leader)
            yield from self._try_again(error, tries)
        raise GivenUp("records could not be sent")

    def _end(self, plan: Plan, attempt: Attempt) -> Part:
        """Commit or abort. Once it was asked for and not answered, nobody knows until somebody answers."""
        body = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            committed=plan.commit,
        )
        unsure = False
        for tries in range(MAX_TRIES):
            if plan.commit:
                attempt.outcome = Outcome.UNKNOWN
            answer = yield from self._ask_coordinator(ApiKey.END_TXN, self._versions.end, body)
            error = ErrorCode.REQUEST_TIMED_OUT if answer is None else ErrorCode(answer.error_code)
            if not error:
                self._ended(plan, attempt, answer)
                return
            if error not in PASSING:
                if not unsure:
                    attempt.outcome = Outcome.ABORTED
                raise GivenUp(error.name)
            unsure = unsure or error not in NOTHING_DONE
            yield from self._try_again(error, tries)
        raise GivenUp("the end was not answered")

    def _ended(self, plan: Plan, attempt: Attempt, answer: Any) -> None:
        attempt.outcome = Outcome.COMMITTED if plan.commit else Outcome.ABORTED
        self.history.say(
            self.name, f"is told that transaction {attempt.number} is {attempt.outcome}: {attempt.values}"
        )
        if self.newer:
            self._become((answer.producer_id, answer.producer_epoch))

    # ------------------------------------------------------------------------------------------ asking

    def _ask_coordinator(self, key: ApiKey, version: int, body: Any) -> Part:
        broker = yield from self.coordinator(TRANSACTION_KEY, self.transactional_id)
        answer = yield self.ask(broker, key, version, body)
        error = getattr(answer, "error_code", 0)
        if answer is None or error in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            self.forget_coordinator(TRANSACTION_KEY, self.transactional_id)
        return answer

    def _try_again(self, error: ErrorCode, tries: int) -> Part:
        if error not in PASSING:
            raise GivenUp(error.name)
        if error in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            self.forget_coordinator(TRANSACTION_KEY, self.transactional_id)
        yield self.back_off(tries)
