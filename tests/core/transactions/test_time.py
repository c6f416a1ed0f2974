"""What time does to transactions: slow ones are aborted, ids that nobody uses are forgotten."""

from __future__ import annotations

import pytest

from gapless.core.transactions.transaction import EPOCH_MAX, State
from gapless.wire.errors import ErrorCode
from tests.core.harness import World
from tests.core.transactions.actors import Transactor, at_epoch, known, make_world, read, stable, state_of

BOTH = pytest.mark.parametrize("newer", [False, True], ids=["older", "newer"])


@pytest.fixture
def world() -> World:
    return make_world()


@BOTH
def test_a_transaction_that_takes_too_long_is_aborted(world: World, newer: bool) -> None:
    transactor = Transactor(world, newer=newer, timeout_ms=5000)
    transactor.init()
    transactor.write("t", b"slow")
    world.advance(4999)
    assert state_of(world) is State.ONGOING
    world.advance(1)
    assert state_of(world) is State.COMPLETE_ABORT
    assert stable(world, "t") == world.partition("t").high_watermark
    assert read(world, "t") == []


@BOTH
def test_its_producer_is_fenced_then(world: World, newer: bool) -> None:
    transactor = Transactor(world, newer=newer, timeout_ms=5000)
    transactor.init()
    transactor.write("t", b"slow")
    world.advance(5000)
    assert transactor.send("t", b"late") == ErrorCode.INVALID_PRODUCER_EPOCH
    # In the newer protocol the error is another one because the epoch tells a repetition from a zombie.
    assert transactor.commit() == (ErrorCode.INVALID_TXN_STATE if newer else ErrorCode.PRODUCER_FENCED)
    assert transactor.init() == 0
    transactor.write("t", b"again")
    assert transactor.commit() == 0
    assert read(world, "t") == [b"again"]


def test_in_the_newer_protocol_an_abort_that_comes_after_the_timeout_goes_on(world: World) -> None:
    transactor = Transactor(world, newer=True, timeout_ms=5000)
    transactor.init()
    transactor.write("t", b"slow")
    world.advance(5000)
    assert transactor.abort() == 0
    transactor.write("t", b"again")
    assert transactor.commit() == 0
    assert read(world, "t") == [b"again"]


def test_each_transaction_has_its_own_time(world: World) -> None:
    transactor = Transactor(world, newer=True, timeout_ms=5000)
    transactor.init()
    for number in range(10):
        transactor.write("t", b"%d" % number)
        world.advance(3000)
        assert transactor.commit() == 0
    transactor.write("t", b"slow")
    world.advance(4999)
    assert state_of(world) is State.ONGOING
    world.advance(1)
    assert state_of(world) is State.COMPLETE_ABORT


def test_a_shorter_timeout_counts_from_the_next_start(world: World) -> None:
    transactor = Transactor(world, newer=True, timeout_ms=600_000)
    transactor.init()
    transactor.write("t", b"a")
    transactor.commit()
    transactor.timeout_ms = 1000
    transactor.init()
    transactor.write("t", b"b")
    world.advance(1000)
    assert state_of(world) is State.COMPLETE_ABORT


@pytest.mark.parametrize("past", [False, True])
def test_the_time_goes_on_over_a_restart(world: World, past: bool) -> None:
    transactor = Transactor(world, newer=True, timeout_ms=5000)
    transactor.init()
    transactor.write("t", b"slow")
    world.advance(3000)
    world.now_ms += 10_000 if past else 0
    world.restart()
    world.advance(0)
    if not past:
        assert state_of(world) is State.ONGOING
        world.advance(2000)
    assert state_of(world) is State.COMPLETE_ABORT


def test_a_timeout_with_the_last_epoch_gives_a_new_id(world: World) -> None:
    transactor = Transactor(world, newer=True, timeout_ms=5000)
    transactor.init()
    at_epoch(world, transactor, EPOCH_MAX - 1)
    transactor.write("t", b"slow")
    world.advance(5000)
    transaction = known(world)
    assert transaction is not None
    assert (transaction.state, transaction.producer_epoch) == (State.COMPLETE_ABORT, 0)
    assert transaction.producer_id != transactor.producer[0]
    assert stable(world, "t") == world.partition("t").high_watermark


def test_a_timeout_waits_for_the_journal_if_it_needs_a_new_id(world: World) -> None:
    transactor = Transactor(world, newer=True, timeout_ms=5000)
    transactor.init()
    at_epoch(world, transactor, EPOCH_MAX - 1)
    transactor.write("t", b"slow")
    world.node.producer_ids = range(0)
    world.hold_journal = True
    world.advance(5000)
    world.refuse("the disk is full")
    assert state_of(world) is State.ONGOING
    world.hold_journal = False
    world.advance(1000)
    assert state_of(world) is State.COMPLETE_ABORT


# ------------------------------------------------------------------------------------------- expiration


HOUR_MS = 3_600_000


@pytest.fixture
def forgetful() -> World:
    return make_world(
        transactional_id_expiration_ms=str(24 * HOUR_MS), transaction_max_timeout_ms=str(550 * HOUR_MS)
    )


@BOTH
@pytest.mark.parametrize("end", ["never used", "commit", "abort"])
def test_an_id_that_nobody_uses_is_forgotten(forgetful: World, newer: bool, end: str) -> None:
    transactor = Transactor(forgetful, newer=newer)
    transactor.init()
    if end != "never used":
        transactor.write("t", b"a")
        transactor.end(commit=end == "commit")
    forgetful.advance(23 * HOUR_MS)
    assert known(forgetful) is not None
    forgetful.advance(3 * HOUR_MS)
    assert known(forgetful) is None
    assert transactor.add(("t", 0)) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert transactor.commit() == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    forgetful.restart()
    forgetful.advance(0)
    assert known(forgetful) is None
    before = transactor.producer
    assert transactor.init() == 0
    assert transactor.producer[0] != before[0]


def test_an_id_in_use_is_not_forgotten(forgetful: World) -> None:
    transactor = Transactor(forgetful, newer=True)
    transactor.init()
    for _ in range(5):
        forgetful.advance(20 * HOUR_MS)
        transactor.write("t", b"a")
        assert transactor.commit() == 0


def test_an_open_transaction_is_not_forgotten(forgetful: World) -> None:
    transactor = Transactor(forgetful, newer=True, timeout_ms=500 * HOUR_MS)
    transactor.init()
    transactor.write("t", b"a")
    forgetful.advance(100 * HOUR_MS)
    assert transactor.commit() == 0
    assert read(forgetful, "t") == [b"a"]


def test_many_ids_are_forgotten_a_bounded_number_at_a_time(forgetful: World) -> None:
    for number in range(1000):
        Transactor(forgetful, f"id-{number}", newer=True).init()
    forgetful.advance(30 * HOUR_MS)
    assert not any(known(forgetful, f"id-{number}") for number in range(1000))
