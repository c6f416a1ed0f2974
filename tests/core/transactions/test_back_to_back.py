"""A producer of the newer protocol begins its next transaction while the markers of the last one are written.

EndTxn is answered when the end is decided (KIP-890). So the next records can reach a partition's leader
before the marker of the transaction that has ended (KAFKA-18575).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gapless.core.contract import TopicPartition
from gapless.core.coordinators import CONSUMER_OFFSETS, TRANSACTION_STATE
from gapless.core.produce_queues import ProduceQueues
from gapless.core.transactions.joining import GIVE_UP_MS
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import WriteTxnMarkersRequest
from gapless.wire.transaction_records import EndMarker
from tests.core.cluster_harness import Answer, ClusterWorld
from tests.core.harness import World, batch
from tests.core.transactions.actors import Transactor, make_world
from tests.core.transactions.test_late import marker_request

COORDINATOR, LEADER = 1, 2
TO_LEADER, TO_COORDINATOR = (COORDINATOR, LEADER), (LEADER, COORDINATOR)


class Brokers:
    """Three brokers: one coordinates transactions, another leads `t`, `u` and the groups' offsets.

    The third one has copies of all, so that nothing else is sent between these two.
    """

    def __init__(self) -> None:
        self.cluster = ClusterWorld(3)
        self.cluster.create_topic(TRANSACTION_STATE, replicas=(COORDINATOR, 3), cleanup_policy="compact")
        self.cluster.create_topic(CONSUMER_OFFSETS, replicas=(LEADER, 3), cleanup_policy="compact")
        for topic in ("t", "u"):
            self.cluster.create_topic(topic, replicas=(LEADER, 3))
        self.cluster.run(100)

    @property
    def now_ms(self) -> int:
        return self.cluster.now_ms

    def send(self, key: ApiKey, version: int, body: Any) -> Answer:
        at_leader = key in (ApiKey.PRODUCE, ApiKey.TXN_OFFSET_COMMIT, ApiKey.WRITE_TXN_MARKERS)
        return self.cluster.send(LEADER if at_leader else COORDINATOR, key, version, body)

    def reply(self, answer: Answer) -> Any:
        self.cluster.run_until(lambda: answer.done)
        return answer.message

    def call(self, key: ApiKey, version: int, body: Any) -> Any:
        return self.reply(self.send(key, version, body))

    @contextmanager
    def slow(self, way: tuple[int, int], ms: int) -> Iterator[None]:
        """What is sent on a way meanwhile takes so much longer."""
        self.cluster.network.slower_ms[way] = ms
        yield
        del self.cluster.network.slower_ms[way]

    def has_marker(self, producer: tuple[int, int], topic: str = "t") -> bool:
        """Whether the last transaction's marker is in the log: it has the epoch of this one."""
        return any(
            producer_id == producer[0] and known.epoch == producer[1] and known.transaction_began_at is None
            for producer_id, known in self.cluster.partition(LEADER, topic).producers
        )


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def producer(brokers: Brokers) -> Transactor:
    transactor = Transactor(brokers, newer=True)  # type: ignore[arg-type]
    assert transactor.init() == 0
    return transactor


def committed_values(brokers: Brokers, topic: str = "t") -> list[bytes]:
    """All values, once no transaction is open."""
    brokers.cluster.run(500)
    partition = brokers.cluster.partition(LEADER, topic)
    assert partition.last_stable_offset == partition.high_watermark == partition.log.end_offset
    return brokers.cluster.values(LEADER, topic)


def sent(transactor: Transactor, answer: Any) -> ErrorCode:
    return transactor.sent(answer)


# ------------------------------------------------------------------------------------ what must be accepted


def test_the_marker_arrives_before_the_coordinators_refusal(brokers: Brokers, producer: Transactor) -> None:
    """The coordinator says that the last transaction is not complete; then the leader gets its marker."""
    values = []
    for number in range(4):
        sending = [producer.begin_send("t", b"%d.%d" % (number, turn)) for turn in range(5)]
        values += [b"%d.%d" % (number, turn) for turn in range(5)]
        assert [sent(producer, answer) for answer in sending] == [0] * 5
        with brokers.slow(TO_LEADER, 15):
            assert producer.commit() == 0
        assert not brokers.has_marker(producer.producer)
    assert committed_values(brokers) == values


def test_the_marker_arrives_before_the_coordinators_consent(brokers: Brokers, producer: Transactor) -> None:
    """The question arrives when the last transaction is complete, whose marker was not there when it left."""
    assert producer.write("t", b"first") == 0
    with brokers.slow(TO_LEADER, 5):
        assert producer.commit() == 0
    with brokers.slow(TO_COORDINATOR, 60):
        sending = [producer.begin_send("t", b"%d" % turn) for turn in range(5)]
    assert not brokers.has_marker(producer.producer)
    brokers.cluster.run(30)
    assert brokers.has_marker(producer.producer)
    assert not any(answer.done for answer in sending)  # type: ignore[attr-defined]
    assert [sent(producer, answer) for answer in sending] == [0] * 5
    assert producer.commit() == 0
    assert committed_values(brokers) == [b"first", b"0", b"1", b"2", b"3", b"4"]


def test_what_happens_before_the_question_is_repeated_does_not_count(
    brokers: Brokers, producer: Transactor
) -> None:
    """The leader is elected again: what the coordinator says later is said of the new epoch, too."""
    assert producer.write("t", b"first") == 0
    with brokers.slow(TO_LEADER, 8):
        assert producer.commit() == 0
    sending = producer.begin_send("t", b"second")
    brokers.cluster.run(5)
    brokers.cluster.elect(LEADER)
    assert sent(producer, sending) == 0
    assert producer.commit() == 0
    assert committed_values(brokers) == [b"first", b"second"]


def test_a_batch_does_not_overtake_one_whose_question_is_repeated(
    brokers: Brokers, producer: Transactor
) -> None:
    """The second would be answered at once, because the last transaction is complete when it comes."""
    assert producer.write("t", b"first") == 0
    with brokers.slow(TO_LEADER, 8):
        assert producer.commit() == 0
        sending = [producer.begin_send("t", b"second")]
        brokers.cluster.run(3)
    brokers.cluster.run(12)
    assert brokers.has_marker(producer.producer)
    sending.append(producer.begin_send("t", b"third"))
    assert [sent(producer, answer) for answer in sending] == [0, 0]
    assert producer.commit() == 0
    assert committed_values(brokers) == [b"first", b"second", b"third"]


def test_a_batch_does_not_overtake_one_that_waits_for_another_partition(
    brokers: Brokers, producer: Transactor
) -> None:
    """A request for two partitions waits, because one of them is new to the transaction."""
    assert producer.write("t", b"first") == 0
    both = producer.produce_request("t", b"second", producer=producer.producer, sequence=1)
    both.topics += producer.produce_request("u", b"new", producer=producer.producer, sequence=0).topics
    sending = brokers.send(ApiKey.PRODUCE, 12, both)
    assert not sending.done
    assert producer.send("t", b"third", sequence=2) == 0
    assert [topic.partitions[0].error for topic in brokers.reply(sending).topics] == [0, 0]
    assert producer.commit() == 0
    assert committed_values(brokers) == [b"first", b"second", b"third"]
    assert committed_values(brokers, "u") == [b"new"]


def test_batches_behind_one_that_must_come_again_are_refused_like_it(
    brokers: Brokers, producer: Transactor
) -> None:
    """The markers take longer than the question is repeated; they are there for the batches that follow."""
    assert producer.write("t", b"first") == 0
    with brokers.slow(TO_LEADER, GIVE_UP_MS + 30):
        assert producer.commit() == 0
    sending = [producer.begin_send("t", b"%d" % turn) for turn in range(3)]
    errors = [sent(producer, answer) for answer in sending]
    assert errors == [ErrorCode.CONCURRENT_TRANSACTIONS] * 3
    again = [producer.begin_send("t", b"%d" % turn, sequence=turn) for turn in range(3)]
    assert [sent(producer, answer) for answer in again] == [0] * 3
    assert producer.commit() == 0
    assert committed_values(brokers) == [b"first", b"0", b"1", b"2"]


def test_a_coordinator_that_does_not_know_a_new_topic_yet_ends_no_transaction(
    brokers: Brokers, producer: Transactor
) -> None:
    """The leader has heard of it, and the producer from the leader."""
    brokers.cluster.journal.held[COORDINATOR] = True
    brokers.cluster.create_topic("new", replicas=(LEADER, 3))
    body = producer.produce_request("new", b"first", producer=producer.producer, sequence=0)
    body.topics += producer.produce_request("t", b"too", producer=producer.producer, sequence=0).topics
    answer = brokers.call(ApiKey.PRODUCE, 12, body)
    assert [topic.partitions[0].error for topic in answer.topics] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
    brokers.cluster.journal.release(COORDINATOR)
    brokers.cluster.run(10)
    # What was sent behind it must not come first.
    assert producer.send("new", b"second", sequence=1) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert producer.send("new", b"first", sequence=0) == 0
    assert producer.send("new", b"second", sequence=1) == 0
    assert producer.commit() == 0
    assert committed_values(brokers, "new") == [b"first", b"second"]


def test_offsets_join_the_next_transaction_before_the_marker_of_the_last(
    brokers: Brokers, producer: Transactor
) -> None:
    for offset in range(4):
        assert producer.send_offset(offset) == 0
        with brokers.slow(TO_LEADER, 15):
            assert producer.commit() == 0
    assert producer.send_offset(7) == 0


# ------------------------------------------------------------------------------------- what must be refused


def test_a_transaction_that_is_aborted_while_the_coordinator_answers_takes_nothing(
    brokers: Brokers, producer: Transactor
) -> None:
    """The consent is on its way when a new process with the same transactional id aborts the transaction."""
    assert producer.write("u", b"left open") == 0
    sending = producer.begin_send("t", b"late")
    with brokers.slow(TO_LEADER, 300):
        brokers.cluster.run(10)  # the coordinator has added the partition
    successor = Transactor(brokers, newer=True)  # type: ignore[arg-type]
    assert successor.try_init((-1, -1)) == ErrorCode.CONCURRENT_TRANSACTIONS
    brokers.cluster.run(50)
    assert brokers.has_marker((producer.producer[0], producer.producer[1] + 1))
    assert not sending.done  # type: ignore[attr-defined]
    assert sent(producer, sending) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert committed_values(brokers) == []


def admitted(newer: bool) -> tuple[World, tuple[int, int], Callable[[], ErrorCode]]:
    """A world with an epoch, its producer, and what becomes of a batch that was admitted just now."""
    world = make_world()
    transactor = Transactor(world, newer=newer)
    assert transactor.init() == 0
    assert transactor.write("t", b"first") == 0
    assert transactor.commit() == 0
    admission = world.partition("t").admission(transactor.producer, begins_at_zero=newer)
    return world, transactor.producer, lambda: world.partition("t").admission_error(admission)


@pytest.mark.parametrize("newer", [False, True], ids=["older", "newer"])
def test_only_a_marker_that_can_end_its_own_epoch_voids_an_admission(newer: bool) -> None:
    """In the newer protocol it never does: what it ends has the epoch before."""
    world, producer, error = admitted(newer)
    assert error() is ErrorCode.NONE
    end = world.partition("t").log.end_offset
    world.partition("t").append_marker(producer, EndMarker(True, 9), world.now_ms, strict=newer)
    assert error() is (ErrorCode.NONE if newer else ErrorCode.INVALID_TXN_STATE)
    assert world.partition("t").log.end_offset == end + (not newer)  # the newer one is there already
    after = world.partition("t").admission(producer, begins_at_zero=newer)
    assert world.partition("t").admission_error(after) is ErrorCode.NONE


def test_a_marker_of_an_older_epoch_voids_no_admission_of_a_newer_one() -> None:
    """A producer of the older protocol has started again; the marker of its last epoch is repeated."""
    world, (producer_id, epoch), _ = admitted(newer=False)
    partition = world.partition("t")
    admission = partition.admission((producer_id, epoch + 1), begins_at_zero=False)
    partition.append_marker((producer_id, epoch), EndMarker(True, 9), world.now_ms, strict=False)
    assert partition.admission_error(admission) is ErrorCode.NONE
    # The first marker of the newer protocol, by which the new epoch begins here, is no end of it either.
    partition.append_marker((producer_id, epoch + 1), EndMarker(True, 9), world.now_ms, strict=True)
    assert partition.admission_error(admission) is ErrorCode.NONE


def test_a_transaction_of_the_older_protocol_does_not_join_after_its_marker(
    brokers: Brokers,
) -> None:
    """The coordinator's consent is on its way when an administrator's marker ends the transaction here."""
    older = Transactor(brokers, newer=False)  # type: ignore[arg-type]
    assert older.init() == 0
    assert older.add(("t", 0)) == 0
    sending = older.begin_send("t", b"late")
    with brokers.slow(TO_LEADER, 100):
        brokers.cluster.run(10)
    body: WriteTxnMarkersRequest = marker_request(older.producer, commit=False, version=0)
    brokers.call(ApiKey.WRITE_TXN_MARKERS, 1, body)
    assert not sending.done  # type: ignore[attr-defined]
    assert sent(older, sending) == ErrorCode.INVALID_TXN_STATE
    assert committed_values(brokers) == []


def test_a_batch_outside_of_transactions_is_refused_until_the_last_one_has_its_marker(
    brokers: Brokers, producer: Transactor
) -> None:
    assert producer.write("t", b"first") == 0
    with brokers.slow(TO_LEADER, 30):
        assert producer.commit() == 0
    plain = batch(b"plain", producer=producer.producer, sequence=0)
    assert brokers.cluster.produce(LEADER, "t", plain).partition.error == ErrorCode.INVALID_TXN_STATE
    brokers.cluster.run(100)
    stored = brokers.cluster.produce(LEADER, "t", plain)
    brokers.cluster.run(100)
    assert stored.partition.error == 0


# ------------------------------------------------------------------------------------------------- queues


HERE, THERE, ELSEWHERE = (TopicPartition("t", index) for index in range(3))


class Requests:
    """Requests with names, in queues."""

    def __init__(self) -> None:
        self.queues = ProduceQueues()
        self.started: list[str] = []
        self.end: dict[str, Callable[[], None]] = {}

    def enter(self, name: str, *partitions: TopicPartition, transactional_id: str = "x") -> None:
        def start(done: Callable[[], None]) -> None:
            self.started.append(name)
            self.end[name] = done

        self.queues.enter(transactional_id, partitions, start)


def test_a_request_starts_when_none_is_ahead_of_it_in_any_of_its_partitions() -> None:
    requests = Requests()
    requests.enter("a", HERE)
    requests.enter("b", THERE)
    requests.enter("c", HERE, THERE, ELSEWHERE)
    requests.enter("d", ELSEWHERE)
    requests.enter("e", HERE)
    requests.enter("other", HERE, transactional_id="y")
    assert requests.started == ["a", "b", "other"]
    requests.end["a"]()
    assert requests.started == ["a", "b", "other"]
    requests.end["b"]()
    assert requests.started == ["a", "b", "other", "c"]
    requests.end["c"]()
    assert requests.started == ["a", "b", "other", "c", "e", "d"]
    for name in ("other", "d", "e"):
        requests.end[name]()
    assert len(requests.queues) == 0


def test_a_request_that_names_a_partition_twice_does_not_wait_for_itself() -> None:
    requests = Requests()
    requests.enter("a", HERE, HERE)
    requests.enter("none")
    assert requests.started == ["a", "none"]
    requests.end["a"]()
    assert len(requests.queues) == 0


def test_a_long_queue_is_worked_off_in_order() -> None:
    """Each of them ends while it is started, more of them than calls can be nested."""
    queues, started = ProduceQueues(), list[int]()
    first: list[Callable[[], None]] = []
    queues.enter("x", [HERE], first.append)
    for number in range(5000):

        def start(done: Callable[[], None], number: int = number) -> None:
            started.append(number)
            done()

        queues.enter("x", [HERE], start)
    assert not started
    first[0]()
    assert started == list(range(5000))
    assert len(queues) == 0


def fail(_done: Callable[[], None]) -> None:
    raise ValueError("a bug")


def test_a_request_that_fails_does_not_block_those_behind_it() -> None:
    """The broker survives such a request."""
    requests = Requests()
    with pytest.raises(ValueError, match="a bug"):
        requests.queues.enter("x", [HERE], fail)
    requests.enter("a", HERE)
    assert requests.started == ["a"]
    requests.queues.enter("x", [HERE], fail)  # it waits
    requests.enter("b", HERE)
    with pytest.raises(ValueError, match="a bug"):
        requests.end["a"]()
    assert requests.started == ["a", "b"]
    requests.end["b"]()
    assert len(requests.queues) == 0
