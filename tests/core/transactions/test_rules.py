"""What becomes of an EndTxn in each state, for both protocols: Kafka's table, row by row."""

from __future__ import annotations

import pytest

from gapless.core.contract import TopicPartition
from gapless.core.shard import CoordinatorError
from gapless.core.transactions import rules
from gapless.core.transactions.transaction import (
    EACH_WITH_ITS_EPOCH,
    EPOCH_MAX,
    State,
    Transaction,
    from_record,
    to_record,
)
from gapless.wire.errors import ErrorCode

E, O = State.EMPTY, State.ONGOING  # noqa: E741
PC, PA, CC, CA = State.PREPARE_COMMIT, State.PREPARE_ABORT, State.COMPLETE_COMMIT, State.COMPLETE_ABORT
FENCED, INVALID = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE
CONCURRENT, STRANGER = ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.INVALID_PRODUCER_ID_MAPPING
REPEATED = None

ID, EPOCH = 7, 5
Outcome = State | ErrorCode | None

# State, epoch relative to the coordinator's, what a commit and what an abort come to.
OLDER: list[tuple[State, int, Outcome, Outcome]] = [
    (E, 0, INVALID, INVALID),
    (O, 0, PC, PA),
    (PC, 0, CONCURRENT, INVALID),
    (PA, 0, INVALID, CONCURRENT),
    (CC, 0, REPEATED, INVALID),
    (CA, 0, INVALID, REPEATED),
    *((state, difference, FENCED, FENCED) for state in (E, O, PC, PA, CC, CA) for difference in (-1, 1)),
]
NEWER: list[tuple[State, int, Outcome, Outcome]] = [
    (E, -1, FENCED, FENCED),
    (E, 0, INVALID, PA),
    (O, -1, FENCED, FENCED),
    (O, 0, PC, PA),
    (PC, -1, CONCURRENT, INVALID),
    (PC, 0, CONCURRENT, CONCURRENT),
    (PA, -1, INVALID, CONCURRENT),
    (PA, 0, CONCURRENT, CONCURRENT),
    (CC, -1, REPEATED, INVALID),
    (CC, 0, INVALID, PA),
    (CA, -1, INVALID, REPEATED),
    (CA, 0, INVALID, PA),
    *((state, difference, FENCED, FENCED) for state in (E, O, PC, PA, CC, CA) for difference in (-2, 1)),
]


def transaction(state: State, epoch: int = EPOCH) -> Transaction:
    return Transaction("x", ID, epoch, 1000, state, {TopicPartition("t", 0): None} if state is O else {})


def outcome(of: Transaction, producer: tuple[int, int], commit: bool, version: int) -> Outcome:
    try:
        return rules.end(of, producer, commit, version)
    except CoordinatorError as error:
        return error.code


@pytest.mark.parametrize(
    ("version", "table"), [(0, OLDER), (EACH_WITH_ITS_EPOCH, NEWER)], ids=["older", "newer"]
)
def test_the_end_of_a_transaction_in_every_state(
    version: int, table: list[tuple[State, int, Outcome, Outcome]]
) -> None:
    for state, difference, on_commit, on_abort in table:
        producer = (ID, EPOCH + difference)
        row = (state.kafka_name, difference)
        assert (row, outcome(transaction(state), producer, True, version)) == (row, on_commit)
        assert (row, outcome(transaction(state), producer, False, version)) == (row, on_abort)


@pytest.mark.parametrize("version", [0, EACH_WITH_ITS_EPOCH])
@pytest.mark.parametrize("state", [E, O, PC, PA, CC, CA])
def test_a_stranger_ends_nothing(version: int, state: State) -> None:
    for commit in (True, False):
        assert outcome(transaction(state), (ID + 1, EPOCH), commit, version) is STRANGER


def test_a_repetition_over_the_change_of_ids_is_recognised() -> None:
    ended = transaction(O, EPOCH_MAX - 1)
    prepared = rules.prepare(ended, PC, EACH_WITH_ITS_EPOCH, 99, 0)
    assert prepared.producer == (ID, EPOCH_MAX)
    assert rules.identity_after(prepared) == (99, 0)
    assert outcome(prepared, (ID, EPOCH_MAX - 1), True, EACH_WITH_ITS_EPOCH) is CONCURRENT
    assert outcome(prepared, (99, 0), False, EACH_WITH_ITS_EPOCH) is CONCURRENT
    complete = rules.complete(prepared, 0)
    assert complete.producer == (99, 0)
    assert outcome(complete, (ID, EPOCH_MAX - 1), True, EACH_WITH_ITS_EPOCH) is REPEATED
    with pytest.raises(CoordinatorError) as refused:
        rules.add(prepared, (99, 0), [TopicPartition("t", 0)], EACH_WITH_ITS_EPOCH, 0)
    assert refused.value.code is CONCURRENT


def test_a_transaction_is_what_its_record_says() -> None:
    places = (TopicPartition("t", 0), TopicPartition("u", 1), TopicPartition("t", 3))
    before = Transaction("x", 7, 5, 1000, O, dict.fromkeys(places), 11, 10, 6, -1, 2)
    after = from_record("x", to_record(before))
    assert after == before


@pytest.mark.parametrize(
    ("state", "name"), [(E, "Empty"), (PC, "PrepareCommit"), (State.PREPARE_EPOCH_FENCE, "PrepareEpochFence")]
)
def test_states_have_kafkas_names(state: State, name: str) -> None:
    assert state.kafka_name == name
