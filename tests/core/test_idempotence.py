"""Claims C4, C5: a producer's sequence decides what is stored, what is a duplicate, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gapless.core.producers import MAX_HELD_BACK, MAX_PRODUCERS, SEQUENCE_MAX, Producers, RefusedBatch
from gapless.wire.batch import BatchHeader, parse_header
from gapless.wire.errors import ErrorCode
from tests.core.harness import World, batch

ME = (4000, 0)


@pytest.fixture
def world() -> World:
    world = World()
    world.create_topic("t")
    return world


def test_the_next_sequence_is_stored(world: World) -> None:
    first = world.produce("t", batch(b"a", b"b", producer=ME, sequence=0))
    second = world.produce("t", batch(b"c", producer=ME, sequence=2))
    assert (first.error, first.base_offset) == (0, 0)
    assert (second.error, second.base_offset) == (0, 2)


def test_a_retry_is_answered_as_the_first_time_and_not_stored(world: World) -> None:
    for sequence in range(5):
        world.produce("t", batch(b"x", producer=ME, sequence=sequence))
    for sequence in range(5):
        again = world.produce("t", batch(b"x", producer=ME, sequence=sequence))
        assert (again.error, again.base_offset) == (0, sequence)
    assert world.partition("t").log.end_offset == 5


def test_a_batch_older_than_the_window_is_refused_not_stored(world: World) -> None:
    for sequence in range(6):
        world.produce("t", batch(b"x", producer=ME, sequence=sequence))
    result = world.produce("t", batch(b"x", producer=ME, sequence=0))
    assert result.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert world.partition("t").log.end_offset == 6


def test_a_retry_is_recognised_after_a_restart_though_the_record_was_deleted(world: World) -> None:
    world.produce("t", batch(b"x", producer=ME, sequence=0))
    world.produce("t", batch(b"y"))
    world.partition("t").delete_records(1)
    world.restart()
    assert world.produce("t", batch(b"x", producer=ME, sequence=0)).base_offset == 0
    assert world.partition("t").log.end_offset == 2


def test_a_gap_is_refused_and_the_missing_batch_still_fits(world: World) -> None:
    world.produce("t", batch(b"0", producer=ME, sequence=0))
    assert (
        world.produce("t", batch(b"2", producer=ME, sequence=2)).error
        == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    )
    assert world.produce("t", batch(b"1", producer=ME, sequence=1)).base_offset == 1


def test_an_older_epoch_is_fenced_and_a_newer_one_begins_at_zero(world: World) -> None:
    world.produce("t", batch(b"0", producer=(1, 3), sequence=0))
    assert (
        world.produce("t", batch(b"1", producer=(1, 2), sequence=1)).error == ErrorCode.INVALID_PRODUCER_EPOCH
    )
    assert (
        world.produce("t", batch(b"1", producer=(1, 4), sequence=1)).error
        == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    )
    assert world.produce("t", batch(b"1", producer=(1, 4), sequence=0)).error == 0


def test_the_sequence_wraps_around(world: World) -> None:
    world.produce("t", batch(b"x", producer=ME, sequence=SEQUENCE_MAX - 1))
    across = batch(b"y", b"z", b"0", producer=ME, sequence=SEQUENCE_MAX)
    assert world.produce("t", across).base_offset == 1
    assert world.produce("t", batch(b"2", producer=ME, sequence=2)).base_offset == 4


def test_an_unknown_producer_may_begin_anywhere(world: World) -> None:
    assert world.produce("t", batch(b"x", producer=ME, sequence=17)).error == 0


def test_sequences_survive_a_restart(world: World) -> None:
    for sequence in range(3):
        world.produce("t", batch(b"x", producer=ME, sequence=sequence))
    world.restart()
    assert world.produce("t", batch(b"x", producer=ME, sequence=1)).base_offset == 1
    assert (
        world.produce("t", batch(b"x", producer=ME, sequence=5)).error
        == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    )
    assert world.produce("t", batch(b"x", producer=ME, sequence=3)).base_offset == 3


def test_two_producers_and_two_partitions_do_not_mix() -> None:
    world = World()
    world.create_topic("t", partitions=2)
    world.produce("t", batch(b"x", producer=(1, 0), sequence=0))
    assert world.produce("t", batch(b"x", producer=(2, 0), sequence=0)).base_offset == 1
    assert world.produce("t", batch(b"x", producer=(1, 0), sequence=0), partition=1).base_offset == 0


def test_an_idempotent_producer_sends_one_batch_per_partition(world: World) -> None:
    two = world.produce("t", batch(b"x", producer=ME, sequence=0), batch(b"y", producer=ME, sequence=1))
    assert two.error == ErrorCode.INVALID_RECORD


def test_a_silent_producer_is_forgotten_after_its_expiration() -> None:
    world = World(producer_id_expiration_ms="60000", log_retention_check_interval_ms="1000")
    world.create_topic("t", retention_ms="-1")
    world.produce("t", batch(b"x", producer=ME, sequence=0))
    world.advance(59_000)
    assert len(world.partition("t").producers) == 1
    world.advance(3_000)
    assert len(world.partition("t").producers) == 0


def test_what_producers_cost_is_bounded() -> None:
    world = World()
    world.create_topic("t")
    producers: Producers = world.partition("t").producers
    world.produce("t", batch(b"x", producer=ME, sequence=0))
    log = world.partition("t").log
    (header,) = log.batches_from(0)
    for producer_id in range(10_000, 10_000 + MAX_PRODUCERS):
        producers.record(header._replace(producer_id=producer_id))
    assert len(producers) == MAX_PRODUCERS
    assert ME[0] not in dict(producers)


@pytest.mark.parametrize("reason", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS])
def test_what_was_sent_right_behind_a_refused_batch_does_not_overtake_it(
    world: World, reason: ErrorCode
) -> None:
    """C5: out of order is what a client would take for a reason to number all anew, and store some twice."""
    world.produce("t", batch(b"0", producer=ME, sequence=0))
    partition = world.partition("t")
    whole = partition.leader, partition.config
    if reason is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        partition.leader = 99  # the producer knows of a new leader before that one does
    else:
        partition.isr = ()
    assert world.produce("t", batch(b"1", producer=ME, sequence=1)).error == reason
    partition.leader, partition.isr = whole[0], (whole[0],)
    assert world.produce("t", batch(b"2", producer=ME, sequence=2)).error == reason
    assert world.produce("t", batch(b"0", producer=ME, sequence=0)).base_offset == 0  # again; nothing new
    assert world.produce("t", batch(b"1", producer=ME, sequence=1)).base_offset == 1
    assert world.produce("t", batch(b"2", producer=ME, sequence=2)).base_offset == 2
    gap = world.produce("t", batch(b"4", producer=ME, sequence=4))
    assert gap.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_stored_batch_that_is_refused_when_it_comes_again_lets_nothing_overtake(world: World) -> None:
    """C5: all come again while too few are in sync; the set is whole again between the last two of them."""
    world.produce("t", batch(b"0", producer=ME, sequence=0))
    partition = world.partition("t")
    in_sync, partition.isr = partition.isr, ()
    for sequence in (1, 0, 1):
        refused = world.produce("t", batch(b"%d" % sequence, producer=ME, sequence=sequence))
        assert refused.error == ErrorCode.NOT_ENOUGH_REPLICAS
    partition.isr = in_sync
    early = world.produce("t", batch(b"2", producer=ME, sequence=2))
    assert early.error == ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.produce("t", batch(b"1", producer=ME, sequence=1)).base_offset == 1
    assert world.produce("t", batch(b"2", producer=ME, sequence=2)).base_offset == 2


def test_a_batch_that_comes_again_does_not_take_the_place_of_the_one_that_is_awaited() -> None:
    producers = Producers()
    producers.record(header(sequence=4))
    producers.hold_back(header(sequence=5), ErrorCode.NOT_ENOUGH_REPLICAS)
    assert producers.check(header(sequence=4)) is not None
    with pytest.raises(RefusedBatch) as early:
        producers.check(header(sequence=6))
    assert early.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert producers.check(header(sequence=5)) is None


def test_a_refused_batch_holds_back_neither_a_new_epoch_nor_what_follows_it_elsewhere() -> None:
    producers = Producers()
    producers.hold_back(header(sequence=5), ErrorCode.NOT_LEADER_OR_FOLLOWER)
    with pytest.raises(RefusedBatch) as refused:
        producers.check(header(sequence=7))
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    producers.record(header(sequence=5))  # another broker led meanwhile and took it
    producers.record(header(sequence=6))
    assert producers.check(header(sequence=7)) is None
    producers.hold_back(header(sequence=7), ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert producers.check(header(sequence=0, epoch=1)) is None


def test_a_new_leader_waits_a_while_for_what_the_one_before_has_refused() -> None:
    """C5: librdkafka sends the next batch to a new leader before it sends the refused one again."""
    producers = Producers()
    producers.record(header(sequence=4))
    with pytest.raises(RefusedBatch) as early:
        producers.check(header(sequence=6), settled=False)
    assert early.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert producers.check(header(sequence=5), settled=False) is None
    assert producers.check(header(sequence=4), settled=False) is not None
    with pytest.raises(RefusedBatch) as late:
        producers.check(header(sequence=6))
    assert late.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_what_a_leader_refused_before_it_led_is_not_waited_for_in_vain(world: World) -> None:
    """Another leader took it, and it was lost with that one: the producer does not send it again."""
    world.produce("t", batch(b"0", producer=ME, sequence=0))
    partition, assignment = world.partition("t"), world.node.image.topics["t"].partitions[0]
    partition.leader = 99
    refused = world.produce("t", batch(b"1", producer=ME, sequence=1))
    assert refused.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    epoch = assignment.leader_epoch + 2
    partition.assign(replace(assignment, leader_epoch=epoch, replicas=(0, 1), isr=(0, 1)), world.now_ms)
    for settled, code in ((False, "NOT_ENOUGH_REPLICAS"), (True, "OUT_OF_ORDER_SEQUENCE_NUMBER")):
        with pytest.raises(RefusedBatch) as gap:
            partition.producers.check(header(sequence=2), settled=settled)
        assert gap.value.code.name == code


def test_what_refused_batches_cost_is_bounded() -> None:
    producers = Producers()
    for number in range(MAX_HELD_BACK + 10):
        producers.hold_back(header(producer_id=number), ErrorCode.NOT_ENOUGH_REPLICAS)
    assert producers.check(header(producer_id=0, sequence=3)) is None
    with pytest.raises(RefusedBatch):
        producers.check(header(producer_id=MAX_HELD_BACK, sequence=3))


def header(producer_id: int = 4000, epoch: int = 0, sequence: int = 0) -> BatchHeader:
    return parse_header(memoryview(batch(b"x", producer=(producer_id, epoch), sequence=sequence)), 0)
