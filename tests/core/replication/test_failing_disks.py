"""A leader whose disk fails hands over to somebody in sync; what was acknowledged stays (B3, D5)."""

from __future__ import annotations

import pytest

from gapless.core.contract import Refused
from gapless.core.membership.decisions import hand_over
from gapless.core.records import PartitionChanged
from gapless.core.replication.handover import REST_MS
from gapless.wire.errors import ErrorCode
from tests.core.harness import batch
from tests.core.membership.shapes import after, image, partition, under
from tests.core.replication.scenes import break_disk, cluster, stall

DECISIONS = {
    "the next in sync leads": (partition(1, (1, 2, 3)), 2, (2, (2, 3), ())),
    "not one out of sync": (partition(1, (1, 3)), 1, (3, (3,), ())),
    "nobody trusts the failed one: it is not eligible": (partition(1, (1, 2)), 2, (2, (2,), ())),
    "nobody else in sync: it leads on": (partition(1, (1,), (2,)), 2, None),
    "another leads already": (partition(2, (1, 2, 3)), 2, None),
}


@pytest.mark.parametrize(("before", "floor", "then"), DECISIONS.values(), ids=DECISIONS.keys())
def test_who_leads_what_the_first_cannot_write(
    before: PartitionChanged, floor: int, then: tuple[int, tuple[int, ...], tuple[int, ...]] | None
) -> None:
    start = image(before)
    outcome = hand_over(start, under(floor), 1, [("t", 0), ("t", 7), ("gone", 0)])
    if then is None:
        assert outcome == ([], [])
        return
    changed = after(start, outcome.records)
    assert (changed.leader, changed.isr, changed.eligible) == then
    assert (changed.leader_epoch, changed.partition_epoch) == (5, 10)
    assert outcome.problems == ["t-0"]


def test_those_in_sync_who_are_gone_do_not_count() -> None:
    start = image(partition(1, (1, 2)), live=(1, 3), fenced=(2,))
    assert hand_over(start, under(1), 1, [("t", 0)]) == ([], [])


def test_a_failed_append_moves_the_partition_and_costs_nothing_that_was_acknowledged() -> None:
    world = cluster(min_insync_replicas="2")
    first = world.produce(1, "t", batch(b"a"))
    world.run_until(lambda: first.done)
    break_disk(world, 1)
    assert world.produce(1, "t", batch(b"b")).partition.error == ErrorCode.KAFKA_STORAGE_ERROR
    world.run_until(lambda: world.assignment().leader == 2, limit_ms=50)
    assert world.assignment().isr == (2, 3)
    world.run(20)
    assert world.produce(1, "t", batch(b"b")).partition.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    second = world.produce(2, "t", batch(b"b"))
    world.run_until(lambda: second.done)
    assert (second.partition.error, second.partition.base_offset) == (0, 1)
    assert world.values(2) == world.values(3) == [b"a", b"b"]
    assert "others lead what cannot be written here: t-0" in world.hosts[1].told


def test_a_disk_that_fails_while_another_partition_is_handed_over_is_not_waited_for() -> None:
    """The journal is slow; the second failure is not part of the decision that is on its way."""
    world = cluster()
    world.create_topic("u")
    world.journal.latency_ms = lambda: 40
    for topic in ("t", "u"):
        break_disk(world, 1, topic)
        world.produce(1, topic, batch(b"a"))
        world.run(10)
    world.run(150)  # it is less than a second until the leader looks at all partitions
    assert (world.assignment("t").leader, world.assignment("u").leader) == (2, 2)


def test_a_failed_replica_stays_out_until_its_broker_starts_again() -> None:
    world = cluster()
    break_disk(world, 1)
    world.produce(1, "t", batch(b"a"))
    world.run_until(lambda: world.assignment().leader == 2)
    world.run(10)
    world.produce(2, "t", batch(b"a"))
    world.run(20_000)
    assert world.assignment().isr == (2, 3)
    assert world.values(1) == []
    world.restart(1)
    world.run_until(lambda: set(world.assignment().isr) == {1, 2, 3})
    assert world.values(1) == [b"a"]


def test_a_failed_flush_moves_the_partition_too() -> None:
    """D1: what waits for the disk is refused here, and asked for again at the next leader."""
    world = cluster(flush_messages="1", min_insync_replicas="2")
    first = world.produce(1, "t", batch(b"a"))
    world.run_until(lambda: first.done)
    world.hold_flushes[1] = True
    waiting = world.produce(1, "t", batch(b"b"), timeout_ms=10_000)
    world.run(20)
    assert not waiting.done
    break_disk(world, 1)
    failing = world.produce(1, "t", batch(b"c"))
    world.run_until(lambda: world.assignment().leader == 2, limit_ms=50)
    world.run(20)
    assert failing.partition.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert waiting.partition.error in (0, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR)
    assert world.values(2)[:1] == [b"a"]
    assert world.partition(2).high_watermark >= 1


def test_what_fails_unnoticed_is_found_within_a_second() -> None:
    world = cluster()
    world.partition(1).offline = "retention could not delete a file"
    world.run_until(lambda: world.assignment().leader == 2, limit_ms=1100)


def test_an_elected_follower_whose_disk_has_failed_passes_leadership_on() -> None:
    """It was still in sync when the leader died."""
    world = cluster()
    break_disk(world, 2)
    world.partition(2).offline = "the disk is broken"
    world.crash(1)
    world.run_until(lambda: world.assignment().leader == 3, limit_ms=3000)
    assert world.assignment().isr == (3,)


def test_disks_that_fail_one_after_the_other_leave_the_last_leader_readable() -> None:
    world = cluster()
    first = world.produce(1, "t", batch(b"a"))
    world.run_until(lambda: first.done)
    for node_id in (1, 2, 3):
        break_disk(world, node_id)
    for node_id in (1, 2):
        world.produce(node_id, "t", batch(b"b"))
        world.run_until(lambda leader=node_id + 1: world.assignment().leader == leader)  # type: ignore[misc]
        world.run(10)
    refused = world.produce(3, "t", batch(b"b"))
    assert refused.partition.error == ErrorCode.KAFKA_STORAGE_ERROR
    world.run(5000)
    assert (world.assignment().leader, world.assignment().isr) == (3, (3,))
    assert world.consume(3, "t").partition.records.size > 0


def test_who_is_alone_in_sync_leads_on_until_another_is() -> None:
    world = cluster()
    stall(world, 2, 3)
    world.produce(1, "t", batch(b"a"), acks=1)
    world.run_until(lambda: world.assignment().isr == (1,))
    break_disk(world, 1)
    world.produce(1, "t", batch(b"b"), acks=1)
    world.run(5000)
    assert (world.assignment().leader, world.assignment().isr) == (1, (1,))
    assert world.consume(1, "t").partition.records.size > 0
    stall(world)
    world.run_until(lambda: world.assignment().leader != 1)
    assert world.values(world.assignment().leader) == [b"a"]


def test_with_one_replica_all_is_as_it_was() -> None:
    world = cluster(1)
    break_disk(world, 1)
    for _ in range(2):
        assert world.produce(1, "t", batch(b"a")).partition.error == ErrorCode.KAFKA_STORAGE_ERROR
    before = len(world.journal.entries)
    world.run(5000)
    assert len(world.journal.entries) == before


def test_a_new_partition_whose_log_cannot_be_made_is_led_by_another() -> None:
    world = cluster()
    world.node(1).failed_partitions["t", 0] = "no space left"
    del world.node(1).partitions["t", 0]
    world.run_until(lambda: world.assignment().leader == 2, limit_ms=1100)


def test_a_journal_that_cannot_be_written_is_left_alone_for_a_while() -> None:
    world = cluster()
    world.journal.held[1] = True
    break_disk(world, 1)
    world.produce(1, "t", batch(b"a"))
    assert world.hosts[1].proposing is not None, "broker 1 has proposed to hand over"
    world.hosts[1].proposing = None
    world.step(1, Refused("the disk is full", retry=False))
    world.journal.held[1] = False
    world.run(REST_MS - 1000)
    assert world.assignment().leader == 1
    world.run_until(lambda: world.assignment().leader == 2, limit_ms=3000)
