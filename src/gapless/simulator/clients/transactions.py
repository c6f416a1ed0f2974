"""Transactions of both protocols: librdkafka's, and KIP-890's, where brokers add partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from gapless.simulator.clients.client import GROUP_KEY, PASSING, TRANSACTION_KEY, Client
from gapless.simulator.clients.process import Part
from gapless.simulator.clients.producer import named, new_batch, outcome_of, produce_request
from gapless.simulator.history import Attempt, GiveUp, Outcome, Place, Write
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

if TYPE_CHECKING:
    from gapless.simulator.scene import Scene

MAX_TRIES = 12

# Answers that say that nothing was decided. Who has lost its place may have decided before it did.
NOTHING_DONE = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})
ELSEWHERE = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})


@dataclass(frozen=True, slots=True)
class Versions:
    """What a protocol sends."""

    init: int
    produce: int
    offsets: int
    end: int


OLDER = Versions(init=4, produce=10, offsets=3, end=1)
NEWER = Versions(init=5, produce=12, offsets=5, end=5)
ADD_VERSION = 0

OffsetTopic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic


class GivenUp(Exception):
    """The transaction cannot go on: its producer must start anew."""

    def __init__(
        self, why: str, error: ErrorCode = ErrorCode.REQUEST_TIMED_OUT, place: Place | None = None
    ) -> None:
        super().__init__(why)
        self.error = error
        self.place = place
        """Where records were refused, if any were."""


class Committer(NamedTuple):
    """For whom offsets are committed. Who assigns its partitions by hand names no member (KIP-447)."""

    group: str
    member_id: str = ""
    generation: int = -1


class _Batch(NamedTuple):
    """Records that are sent together."""

    place: Place
    writes: list[Write]
    payload: bytes


class TransactionalClient(Client):
    """The parts of which transactions are made. Each part raises `GivenUp` if it is of no use to go on."""

    def __init__(
        self,
        scene: Scene,
        name: str,
        transactional_id: str,
        *,
        newer: bool,
        timeout_ms: int = 3_000,
        number: int | None = None,
    ) -> None:
        super().__init__(scene, name, number)
        self.transactional_id = transactional_id
        self.newer = newer
        self.timeout_ms = timeout_ms
        self.producer = (-1, -1)
        self.is_ready = False
        self.is_fenced = False
        self._versions = NEWER if newer else OLDER
        self._sequences: dict[Place, int] = {}
        self._added: dict[Place | str, None] = {}

    # ------------------------------------------------------------------------------------------- parts

    def start(self) -> Part:
        """Get the next epoch, which fences whoever had this transactional id before; one try."""
        body = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
        )
        answer = yield from self._ask_coordinator(ApiKey.INIT_PRODUCER_ID, self._versions.init, body)
        error = _error_of(answer)
        if not error:
            self._become((answer.producer_id, answer.producer_epoch))
            self.is_ready = True
            self.history.say(self.name, f"starts with epoch {answer.producer_epoch}")
        elif error in FENCED:
            self.is_fenced = True
            self.history.given_up.append(GiveUp(self.name, error, None, ()))
            self.history.say(self.name, "is told that it is fenced, and ends")
        else:
            yield self.back_off(2)

    def _become(self, producer: tuple[int, int]) -> None:
        if producer != self.producer:
            self._sequences.clear()
        self.producer = producer
        self._added.clear()

    def gives_up(self, attempt: Attempt, why: GivenUp) -> None:
        """A transaction could not go on; the next one needs a new epoch, which ends this one."""
        self.is_ready = False
        if attempt.outcome is Outcome.OPEN:
            attempt.outcome = Outcome.ABORTED
        self.history.given_up.append(GiveUp(self.name, why.error, why.place, tuple(attempt.values)))
        self.history.say(self.name, f"gives up transaction {attempt.number}: {why}")

    def write(self, *batches: tuple[Place, list[Write]]) -> Part:
        """Send batches as part of the transaction, each without waiting for answers to those before it."""
        unsent: list[_Batch] = []
        for place, writes in batches:
            if not self.newer and place not in self._added:
                yield from self._add_partition(place)
                self._added[place] = None
            sequence = self._sequences.get(place, 0)
            self._sequences[place] = sequence + len(writes)
            payload = new_batch(writes, self.world.now_ms, self.producer, sequence, transactional=True)
            unsent.append(_Batch(place, writes, payload))
        for tries in range(MAX_TRIES):
            failed = yield from self._send(unsent)
            if not failed:
                return
            unsent = [batch for batch, _ in failed]
            # Batches that were sent behind one that comes again must be refused like it: an error after which
            # a producer cannot go on counts, though the first one's may pass.
            batch, error = next((each for each in failed if each[1] not in PASSING), failed[0])
            yield from self._try_again(error, tries, batch.place)
        raise GivenUp("records could not be sent", place=unsent[0].place)

    def _send(self, batches: list[_Batch]) -> Part:
        """Send batches, wait for all answers, and return those that failed with their errors."""
        leaders: dict[Place, int] = {}
        for batch in batches:
            if batch.place not in leaders:
                leaders[batch.place], _ = yield from self.leader(batch.place)
        answers = [
            self.ask(
                leaders[batch.place],
                ApiKey.PRODUCE,
                self._versions.produce,
                produce_request(batch.place, batch.payload, -1, self.transactional_id),
            )
            for batch in batches
        ]
        failed: list[tuple[_Batch, ErrorCode]] = []
        for batch, promise in zip(batches, answers, strict=True):
            answer = yield promise
            error, result = outcome_of(answer)
            if error:
                self.forget_leader(batch.place, None if result is None else result.current_leader)
                failed.append((batch, error))
            else:
                self._acknowledge(batch, result.base_offset)
        return failed

    def _acknowledge(self, batch: _Batch, base_offset: int) -> None:
        for place_in_batch, write in enumerate(batch.writes):
            write.acknowledged = True
            write.offset = base_offset + place_in_batch
        (topic, partition), writes = batch.place, batch.writes
        self.history.say(self.name, f"has {named(writes)} in {topic}-{partition} at {base_offset}")

    def _add_partition(self, place: Place) -> Part:
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=place[0], partitions=[place[1]])
        body = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer[0],
            v3_and_below_producer_epoch=self.producer[1],
            v3_and_below_topics=[topic],
        )
        for tries in range(MAX_TRIES):
            answer = yield from self._ask_coordinator(ApiKey.ADD_PARTITIONS_TO_TXN, ADD_VERSION, body)
            error = ErrorCode.REQUEST_TIMED_OUT
            if answer is not None:
                results = answer.results_by_topic_v3_and_below[0].results_by_partition
                error = ErrorCode(results[0].partition_error_code)
            if not error:
                return
            yield from self._try_again(error, tries)
        raise GivenUp("a partition could not be added")

    def write_offset(self, committer: Committer, place: Place, offset: int) -> Part:
        """Send how far a place is read as part of the transaction."""
        if not self.newer and committer.group not in self._added:
            yield from self._add_offsets(committer.group)
            self._added[committer.group] = None
        part = OffsetTopic.TxnOffsetCommitRequestPartition(
            partition_index=place[1],
            committed_offset=offset,
            committed_leader_epoch=-1,
            committed_metadata="",
        )
        body = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=committer.group,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            generation_id=committer.generation,
            member_id=committer.member_id,
            group_instance_id=None,
            topics=[OffsetTopic(name=place[0], partitions=[part])],
        )
        for tries in range(MAX_TRIES):
            broker = yield from self.coordinator(GROUP_KEY, committer.group)
            answer = yield self.ask(broker, ApiKey.TXN_OFFSET_COMMIT, self._versions.offsets, body)
            error = ErrorCode.REQUEST_TIMED_OUT
            if answer is not None:
                error = ErrorCode(answer.topics[0].partitions[0].error_code)
            if not error:
                return
            if answer is None or error in ELSEWHERE:
                self.forget_coordinator(GROUP_KEY, committer.group)
            yield from self._try_again(error, tries)
        raise GivenUp("offsets could not be sent")

    def _add_offsets(self, group: str) -> Part:
        body = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            group_id=group,
        )
        for tries in range(MAX_TRIES):
            answer = yield from self._ask_coordinator(ApiKey.ADD_OFFSETS_TO_TXN, ADD_VERSION, body)
            error = _error_of(answer)
            if not error:
                return
            yield from self._try_again(error, tries)
        raise GivenUp("a group could not be added")

    def end(self, attempt: Attempt, commit: bool) -> Part:
        """Commit or abort. Once it was asked for and not answered, nobody knows until somebody answers."""
        body = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            committed=commit,
        )
        attempt.end_request = body
        unsure = False
        for tries in range(MAX_TRIES):
            if commit:
                attempt.outcome = Outcome.UNKNOWN
            answer = yield from self._ask_coordinator(ApiKey.END_TXN, self._versions.end, body)
            error = _error_of(answer)
            if not error:
                self._ended(attempt, commit, answer)
                return
            if error not in PASSING:
                if not unsure:
                    attempt.outcome = Outcome.ABORTED
                raise GivenUp(error.name, error)
            unsure = unsure or error not in NOTHING_DONE
            yield from self._try_again(error, tries)
        raise GivenUp("the end was not answered")

    def _ended(self, attempt: Attempt, commit: bool, answer: Any) -> None:
        attempt.outcome = Outcome.COMMITTED if commit else Outcome.ABORTED
        self.history.say(
            self.name, f"is told that transaction {attempt.number} is {attempt.outcome}: {attempt.values}"
        )
        self._added.clear()
        if self.newer:
            self._become((answer.producer_id, answer.producer_epoch))

    # ------------------------------------------------------------------------------------------ asking

    def _ask_coordinator(self, key: ApiKey, version: int, body: Any) -> Part:
        broker = yield from self.coordinator(TRANSACTION_KEY, self.transactional_id)
        answer = yield self.ask(broker, key, version, body)
        if answer is None or getattr(answer, "error_code", 0) in ELSEWHERE:
            self.forget_coordinator(TRANSACTION_KEY, self.transactional_id)
        return answer

    def _try_again(self, error: ErrorCode, tries: int, place: Place | None = None) -> Part:
        if error not in PASSING:
            raise GivenUp(error.name, error, place)
        if error in ELSEWHERE:
            self.forget_coordinator(TRANSACTION_KEY, self.transactional_id)
        yield self.back_off(tries)


def _error_of(answer: Any) -> ErrorCode:
    return ErrorCode.REQUEST_TIMED_OUT if answer is None else ErrorCode(answer.error_code)
