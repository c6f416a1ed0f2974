"""Claim C8: a restarted producer with the same transactional.id fences its zombie.

Claim C6: a new session of an idempotent producer is a stranger; one with a transactional id is not.
"""

from __future__ import annotations

import pytest

from gapless.core.transactions.transaction import EPOCH_MAX, State
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import InitProducerIdRequest
from tests.core.harness import World, batch
from tests.core.transactions.actors import Transactor, at_epoch, known, make_world, read, state_of

BOTH = pytest.mark.parametrize("newer", [False, True], ids=["older", "newer"])


@pytest.fixture
def world() -> World:
    return make_world()


def test_a_new_session_of_an_idempotent_producer_is_not_recognised(world: World) -> None:
    """Claim C6: the same message again, from a producer that was restarted, is stored twice."""
    producers = []
    for _ in range(2):
        body = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        reply = world.call(ApiKey.INIT_PRODUCER_ID, 4, body)
        producers.append(reply.producer_id)
        result = world.produce("t", batch(b"once?", producer=(reply.producer_id, 0), sequence=0))
        assert result.error == 0
    assert producers[0] != producers[1]
    assert read(world, "t") == [b"once?", b"once?"]


@BOTH
def test_within_a_session_a_retry_is_stored_once(world: World, newer: bool) -> None:
    """Claim C7, also within a transaction."""
    transactor = Transactor(world, newer=newer)
    transactor.init()
    assert transactor.write("t", b"a") == 0
    for _ in range(3):
        assert transactor.send("t", b"a", sequence=0) == 0
    transactor.commit()
    assert read(world, "t") == [b"a"]


@BOTH
def test_a_restarted_producer_keeps_its_id_and_gets_the_next_epoch(world: World, newer: bool) -> None:
    first, second = Transactor(world, newer=newer), Transactor(world, newer=newer)
    assert first.init() == 0
    assert second.init() == 0
    assert first.producer[1] == 0
    assert second.producer == (first.producer[0], 1)


@BOTH
def test_what_the_predecessor_left_open_is_aborted_first(world: World, newer: bool) -> None:
    first, second = Transactor(world, newer=newer), Transactor(world, newer=newer)
    first.init()
    first.write("t", b"left open")
    reply = world.call(ApiKey.INIT_PRODUCER_ID, second.versions["init"], second.init_request())
    assert reply.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert state_of(world) is State.COMPLETE_ABORT
    assert second.init() == 0
    assert second.producer[1] > first.producer[1] + 1
    second.write("t", b"new")
    assert second.commit() == 0
    assert read(world, "t") == [b"new"]


@BOTH
def test_a_zombie_can_neither_write_nor_commit(world: World, newer: bool) -> None:
    zombie, successor = Transactor(world, newer=newer), Transactor(world, newer=newer)
    zombie.init()
    zombie.write("t", b"zombie")
    successor.init()
    successor.write("t", b"successor")
    assert zombie.send("t", b"zombie") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert zombie.send("u", b"zombie") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert zombie.add(("t", 1)) == ErrorCode.PRODUCER_FENCED
    assert zombie.add_offsets() == ErrorCode.PRODUCER_FENCED
    assert zombie.send_offset(7) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert zombie.commit() == ErrorCode.PRODUCER_FENCED
    assert zombie.abort() == ErrorCode.PRODUCER_FENCED
    assert successor.commit() == 0
    assert read(world, "t") == [b"successor"]
    assert read(world, "u") == []


@pytest.mark.parametrize(("api", "version"), [("init", 3), ("add", 1), ("end", 1), ("add_offsets", 1)])
def test_older_clients_know_a_fenced_producer_by_another_code(world: World, api: str, version: int) -> None:
    zombie, successor = Transactor(world, newer=False), Transactor(world, newer=False)
    zombie.init()
    successor.init()
    zombie.versions = zombie.versions | {api: version}
    calls = {
        "init": lambda: zombie.init(zombie.producer),
        "add": lambda: zombie.add(("t", 0)),
        "end": zombie.commit,
        "add_offsets": zombie.add_offsets,
    }
    assert calls[api]() == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_producer_may_go_on_after_an_error_by_naming_itself(world: World) -> None:
    transactor = Transactor(world, newer=False)
    transactor.init()
    assert transactor.init(transactor.producer) == 0
    assert transactor.producer[1] == 1
    # The answer was lost, it asks again: the same epoch as before.
    assert transactor.init((transactor.producer[0], 0)) == 0
    assert transactor.producer[1] == 1


def test_naming_itself_does_not_help_a_zombie(world: World) -> None:
    zombie, successor = Transactor(world, newer=False), Transactor(world, newer=False)
    zombie.init()
    successor.init()
    assert zombie.init(zombie.producer) == ErrorCode.PRODUCER_FENCED
    successor.write("t", b"a")
    assert zombie.init(zombie.producer) == ErrorCode.PRODUCER_FENCED
    assert successor.commit() == 0
    assert read(world, "t") == [b"a"]


def test_another_producers_id_is_not_taken_for_ones_own(world: World) -> None:
    mine, other = Transactor(world, "mine", newer=False), Transactor(world, "other", newer=False)
    mine.init()
    other.init()
    assert mine.init(other.producer) == ErrorCode.PRODUCER_FENCED


def test_it_may_abort_its_own_open_transaction_by_naming_itself(world: World) -> None:
    transactor = Transactor(world, newer=False)
    transactor.init()
    transactor.write("t", b"gone")
    assert transactor.init(transactor.producer) == ErrorCode.PRODUCER_FENCED  # it was fenced by its own abort
    assert transactor.init() == 0
    assert read(world, "t") == []


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_out_of_range_is_refused(world: World, timeout_ms: int) -> None:
    transactor = Transactor(world, newer=True, timeout_ms=timeout_ms)
    assert transactor.init() == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert known(world) is None


@pytest.mark.parametrize("claimed", [(5, -1), (-1, 5)])
def test_half_a_name_is_refused(world: World, claimed: tuple[int, int]) -> None:
    assert Transactor(world, newer=True).init(claimed) == ErrorCode.INVALID_REQUEST


def test_an_empty_transactional_id_is_refused(world: World) -> None:
    nobody = Transactor(world, "", newer=True)
    assert nobody.init() == ErrorCode.INVALID_REQUEST
    assert nobody.add(("t", 0)) == ErrorCode.INVALID_REQUEST
    assert nobody.add_offsets() == ErrorCode.INVALID_REQUEST
    assert nobody.commit() == ErrorCode.INVALID_REQUEST


# ------------------------------------------------------------------------------------------- exhaustion


def test_when_the_epochs_are_used_up_a_restarted_producer_gets_a_new_id(world: World) -> None:
    transactor = Transactor(world, newer=False)
    transactor.init()
    at_epoch(world, transactor, EPOCH_MAX - 2)
    old_id = transactor.producer[0]
    assert transactor.init() == 0
    assert transactor.producer == (old_id, EPOCH_MAX - 1)
    assert transactor.init() == 0
    assert transactor.producer[0] != old_id
    assert transactor.producer[1] == 0
    transactor.write("t", b"a")
    assert transactor.commit() == 0
    assert read(world, "t") == [b"a"]


def test_a_producer_that_named_itself_with_the_last_epoch_may_ask_again(world: World) -> None:
    transactor = Transactor(world, newer=False)
    transactor.init()
    at_epoch(world, transactor, EPOCH_MAX - 1)
    old = transactor.producer
    assert transactor.init(old) == 0
    new = transactor.producer
    assert new[0] != old[0]
    assert transactor.init(old) == 0
    assert transactor.producer == new


def test_ending_a_transaction_with_the_last_epoch_gives_a_new_id(world: World) -> None:
    transactor = Transactor(world, newer=True)
    transactor.init()
    at_epoch(world, transactor, EPOCH_MAX - 1)
    old = transactor.producer
    transactor.write("t", b"a")
    assert transactor.commit() == 0
    assert transactor.producer[0] != old[0]
    assert transactor.producer[1] == 0
    # The answer may have been lost.
    assert transactor.end(commit=True, producer=old) == 0
    assert transactor.end(commit=False, producer=old) == ErrorCode.INVALID_TXN_STATE
    transactor.write("t", b"b")
    assert transactor.commit() == 0
    assert read(world, "t") == [b"a", b"b"]


def test_fencing_with_the_last_epoch_gives_a_new_id_too(world: World) -> None:
    zombie, successor = Transactor(world, newer=True), Transactor(world, newer=True)
    zombie.init()
    at_epoch(world, zombie, EPOCH_MAX - 1)
    zombie.write("t", b"zombie")
    assert successor.init() == 0
    assert successor.producer[0] != zombie.producer[0]
    assert zombie.send("t", b"zombie") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert zombie.commit() == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    successor.write("t", b"successor")
    assert successor.commit() == 0
    assert read(world, "t") == [b"successor"]


def test_a_thousand_restarts_and_transactions_at_the_end_of_the_epochs(world: World) -> None:
    transactor = Transactor(world, newer=True)
    transactor.init()
    at_epoch(world, transactor, EPOCH_MAX - 20)
    ids: dict[int, None] = {}
    for number in range(60):
        if number % 3 == 0:
            assert transactor.init() == 0
        ids[transactor.producer[0]] = None
        assert transactor.write("t", b"%d" % number) == 0
        assert transactor.commit() == 0
    assert len(ids) == 2
    assert read(world, "t") == [b"%d" % number for number in range(60)]


def test_a_new_id_waits_for_the_journal(world: World) -> None:
    world.node.producer_ids = range(0)
    world.hold_journal = True
    transactor = Transactor(world, newer=True)
    request = world.send(ApiKey.INIT_PRODUCER_ID, 5, transactor.init_request())
    assert not world.answered(request)
    world.commit()
    assert world.reply(request).error_code == 0
    world.node.producer_ids = range(0)
    other = Transactor(world, "other", newer=True)
    request = world.send(ApiKey.INIT_PRODUCER_ID, 5, other.init_request())
    world.refuse("the disk is full")
    assert world.reply(request).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
