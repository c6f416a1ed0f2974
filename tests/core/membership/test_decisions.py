"""What dying, returning and stopping brokers mean for partitions, as tables (D5, D6, D7, KIP-966)."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from gapless.core.image import Image
from gapless.core.membership.decisions import (
    Arrival,
    elect_leaderless,
    fence,
    floors_moved,
    prefer,
    register,
)
from gapless.core.membership.elections import Policy, with_isr
from gapless.core.records import BrokerRegistered, ControllerElected, PartitionChanged
from tests.core.membership.shapes import after, image, partition, under


class State(NamedTuple):
    """What a table tells of a partition."""

    leader: int
    isr: tuple[int, ...]
    eligible: tuple[int, ...] = ()
    last_leader: int = -1


def state(of: PartitionChanged) -> State:
    return State(of.leader, of.isr, of.eligible, of.last_leader)


FENCED = {
    "a follower: the rest stays": (partition(1, (1, 2, 3)), (3,), 2, State(1, (1, 2))),
    "the leader: the next in sync leads (D5)": (partition(1, (1, 2, 3)), (1,), 2, State(2, (2, 3))),
    "the leader: not one out of sync": (partition(1, (1, 3)), (1,), 1, State(3, (3,))),
    "below the floor: it is eligible": (partition(1, (1, 2)), (2,), 2, State(1, (1,), (2,))),
    "two of three (D7)": (partition(1, (1, 2, 3)), (1, 2), 2, State(3, (3,), (1, 2))),
    "the last, floor 1: only it may return": (partition(1, (1,)), (1,), 1, State(-1, (), (1,), 1)),
    "the last in sync, an eligible one lives": (partition(1, (1,), (2,)), (1,), 2, State(2, (2,), (1,))),
    "the last in sync, no eligible one lives": (
        partition(1, (1,), (2,)),
        (1, 2),
        2,
        State(-1, (), (1, 2), 1),
    ),
    "all at once": (partition(2, (1, 2, 3)), (1, 2, 3), 2, State(-1, (), (1, 2, 3), 2)),
    "not concerned": (partition(1, (1, 2)), (3,), 2, State(1, (1, 2))),
}


@pytest.mark.parametrize(("before", "gone", "floor", "then"), FENCED.values(), ids=FENCED.keys())
def test_fencing(before: PartitionChanged, gone: tuple[int, ...], floor: int, then: State) -> None:
    start = image(before)
    outcome = fence(start, under(floor), gone)
    changed = after(start, outcome.records)
    assert state(changed) == then
    assert changed.leader_epoch == before.leader_epoch + (then.leader != before.leader)
    assert changed.partition_epoch == before.partition_epoch + (state(changed) != state(before))
    assert [start.is_live(node_id) for node_id in gone] == [False] * len(gone)
    assert not outcome.problems


def test_nobody_in_sync_waits_unless_the_topic_allows_any_replica() -> None:
    """D6: both choices; the unclean one is told."""
    before = partition(1, (1,), eligible=())
    assert fence(image(before), under(1), (1,)).problems == []
    start = image(before)
    outcome = fence(start, under(1, unclean=True), (1,))
    assert state(after(start, outcome.records)) == State(2, (2,))
    assert len(outcome.problems) == 1
    assert "unclean" in outcome.problems[0]
    assert "t-0" in outcome.problems[0]


def test_a_setting_that_allows_it_later_elects_what_waits() -> None:
    start = image(partition(-1, (), (1,), last_leader=1), live=(2, 3), fenced=(1,))
    assert elect_leaderless(start, under(1)).records == []
    outcome = elect_leaderless(start, under(1, unclean=True))
    assert state(after(start, outcome.records)) == State(2, (2,))
    assert outcome.problems


RETURNS = {
    "alone, clean: leads anew": (partition(1, (1,), (), (1,)), True, 1, State(1, (1,))),
    "alone, unclean: leads anew, nobody else could": (
        partition(1, (1,), (), (1,)),
        False,
        1,
        State(1, (1,)),
    ),
    "its old life still led: another in sync leads": (partition(1, (1, 2, 3)), True, 2, State(2, (2, 3))),
    "its old life still followed": (partition(2, (1, 2, 3)), True, 2, State(2, (2, 3))),
    "last in sync, clean: stays before the eligible": (
        partition(1, (1,), (2,)),
        True,
        2,
        State(1, (1,), (2,)),
    ),
    "last in sync, unclean: the eligible one leads": (partition(1, (1,), (2,)), False, 2, State(2, (2,))),
    "eligible and leaderless, clean": (partition(-1, (), (1, 2), last_leader=2), True, 2, "first"),
    "last of all, clean (KIP-966)": (partition(-1, (), (1,), last_leader=1), True, 1, State(1, (1,))),
    "leaving below the floor, clean: eligible": (partition(2, (1, 2)), True, 2, State(2, (2,), (1,))),
    "leaving below the floor, unclean: not": (partition(2, (1, 2)), False, 2, State(2, (2,))),
    "out of sync: nothing": (partition(2, (2, 3)), True, 2, State(2, (2, 3))),
}


@pytest.mark.parametrize(("before", "keeps", "floor", "then"), RETURNS.values(), ids=RETURNS.keys())
def test_registering(before: PartitionChanged, keeps: bool, floor: int, then: State | str) -> None:
    start = image(before)
    changed = after(start, register(start, under(floor), Arrival(1, "here", 1, keeps)).records)
    if then == "first":
        then = State(1, (1,), (2,))
    assert state(changed) == then
    led_anew = changed.leader != before.leader or changed.leader == 1
    assert changed.leader_epoch == before.leader_epoch + led_anew
    assert start.brokers[1] == BrokerRegistered(1, "here", 1, start.version + 1)


def test_the_last_replica_standing_loses_nothing_by_an_unclean_restart() -> None:
    """KIP-966: with a floor of two, somebody else holds all that was committed, and leads."""
    start = image(partition(1, (1,), (2,)), live=(1, 2), fenced=(3,))
    after(start, fence(start, under(2), (1, 2)).records)
    after(start, register(start, under(2), Arrival(1, "h", 1, keeps_all=False)).records)
    assert state(start.topics["t"].partitions[0]) == State(-1, (), (2,), 1)
    outcome = register(start, under(2), Arrival(2, "h", 2))
    assert state(after(start, outcome.records)) == State(2, (2,))
    assert not outcome.problems


def test_when_all_lost_their_memory_the_last_leader_leads_and_it_is_told() -> None:
    start = image(partition(2, (1, 2, 3)))
    after(start, fence(start, under(2), (1, 2, 3)).records)
    for node_id in (1, 2):
        outcome = register(start, under(2), Arrival(node_id, "h", node_id, keeps_all=False))
        assert after(start, outcome.records).leader == -1
        assert not outcome.problems
    outcome = register(start, under(2), Arrival(3, "h", 3, keeps_all=False))
    assert state(after(start, outcome.records)) == State(2, (2,))
    assert len(outcome.problems) == 1


def test_what_is_flushed_before_acknowledging_survives_a_power_cut() -> None:
    start = image(partition(1, (1,), (2,)))
    changed = after(start, register(start, under(2, flush=True), Arrival(1, "h", 1, keeps_all=False)).records)
    assert state(changed) == State(1, (1,), (2,))


def test_a_broker_that_lost_its_disk_holds_nothing_flushed_or_not() -> None:
    start = image(partition(1, (1,), (2,)))
    arrival = Arrival(1, "h", 1, keeps_all=False, keeps_flushed=False)
    changed = after(start, register(start, under(2, flush=True), arrival).records)
    assert state(changed) == State(2, (2,))


def test_a_broker_that_returns_first_leads_if_the_others_are_known_to_be_dead() -> None:
    """All brokers were killed; one starts, and learns of the others' deaths before it registers."""
    start = image(partition(2, (1, 2, 3)), controller=2)
    outcome = register(start, under(2), Arrival(1, "h", 1), dead=(2, 3))
    assert state(after(start, outcome.records)) == State(1, (1,), (2, 3))
    assert start.controller == ControllerElected(1, 4)
    assert [broker.node_id for broker in start.live_brokers()] == [1]


def test_the_first_broker_takes_control_and_a_later_one_does_not() -> None:
    empty = Image()
    records = register(empty, under(), Arrival(2, "h", 1)).records
    assert ControllerElected(2, 1) in records
    start = image(controller=2)
    assert not [
        r for r in register(start, under(), Arrival(1, "h", 1)).records if type(r) is ControllerElected
    ]


def test_leadership_goes_back_to_the_first_replica_only_if_it_is_in_sync() -> None:
    start = image(partition(2, (1, 2)), partition(2, (2, 3)), partition(1, (1, 2)), partition(-1, (), (1,)))
    records = prefer(start).records
    assert [(r.partition, r.leader) for r in records if isinstance(r, PartitionChanged)] == [(0, 1)]
    assert prefer(image(partition(2, (1, 2)), live=(2, 3), fenced=(1,))).records == []


def test_who_is_eligible_follows_the_floor() -> None:
    """Down at a lower floor the high watermark advances without the eligible: they no longer hold all."""
    start = image(partition(1, (1,), (2,)))
    (record,) = floors_moved(start, under(1), ["t"])
    assert record.eligible == ()
    assert record.leader_epoch == 4
    assert list(floors_moved(start, under(3), ["t"])) == []
    nobody = image(partition(-1, (), (1, 2), last_leader=1))
    assert list(floors_moved(nobody, under(1), ["t"])) == []


def test_a_full_set_clears_the_eligible_and_a_rising_one_keeps_the_rest() -> None:
    low = partition(1, (1,), (2, 3))
    assert with_isr(low, (1, 2), Policy(2)).eligible == ()
    assert with_isr(low, (1, 2), Policy(3)).eligible == (3,)


def test_decided_twice_is_decided_once() -> None:
    """A refused proposal is decided again on the newest image: the second finds nothing left."""
    start = image(partition(1, (1, 2, 3)))
    after(start, fence(start, under(2), (1,)).records)
    again = fence(start, under(2), (1,)).records
    assert [record for record in again if isinstance(record, PartitionChanged)] == []
