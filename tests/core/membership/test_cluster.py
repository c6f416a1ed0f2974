"""Several brokers: who is in, who leads, who watches, when one dies, hangs, is cut off or stops."""

from __future__ import annotations

from typing import Any

import pytest

from gapless.core.contract import BrokerDied, CaughtUp, Reply, Request, Stop, StopAsked, Tick
from gapless.core.membership.pause import MAX_HELD_REQUESTS
from gapless.core.records import BrokerRegistered, ControllerElected
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import MetadataRequest
from gapless.wire.request import RequestHeader
from tests.core.cluster_harness import ClusterWorld


def guarded() -> ClusterWorld:
    """Three brokers, of which two must be in sync."""
    return ClusterWorld(3, min_insync_replicas="2")


def live(world: ClusterWorld, seen_by: int) -> list[int]:
    return [broker.node_id for broker in world.node(seen_by).image.live_brokers()]


def controller(world: ClusterWorld, seen_by: int) -> int:
    return world.node(seen_by).image.controller.node_id


def has_stopped(world: ClusterWorld, node_id: int) -> bool:
    return world.hosts[node_id].stopped


def journalled(world: ClusterWorld, kind: type[Any]) -> list[Any]:
    return [record for entry in world.journal.entries for record in entry if isinstance(record, kind)]


def test_all_register_and_one_of_them_is_the_controller() -> None:
    world = ClusterWorld(3)
    for node_id in world.hosts:
        assert live(world, node_id) == [1, 2, 3]
        assert controller(world, node_id) == 1
    assert len(journalled(world, ControllerElected)) == 1
    epochs = [world.node(1).image.brokers[node_id].epoch for node_id in (1, 2, 3)]
    assert sorted(set(epochs)) == epochs


def test_quiet_brokers_write_nothing() -> None:
    world = ClusterWorld(3)
    world.create_topic()
    before = len(world.journal.entries)
    world.run(60_000)
    assert len(world.journal.entries) == before


@pytest.mark.parametrize("victim", [1, 2, 3])
def test_a_dead_broker_is_replaced_within_milliseconds(victim: int) -> None:
    """D5: whoever it is, and if it is the controller another takes over in the same write."""
    world = guarded()
    world.create_topic(replicas=(victim, *(n for n in (1, 2, 3) if n != victim)))
    before = len(world.journal.entries)
    world.crash(victim)
    world.run(20)
    others = [node_id for node_id in (1, 2, 3) if node_id != victim]
    changed = world.assignment()
    assert changed.leader == others[0]
    assert victim not in changed.isr
    for node_id in others:
        assert live(world, node_id) == others
        assert controller(world, node_id) == (others[0] if victim == 1 else 1)
    assert len(world.journal.entries) == before + 1


def test_two_of_three_die_and_the_third_leads_what_it_has_in_sync() -> None:
    """D7: replicas survive lost machines."""
    world = guarded()
    world.create_topic()
    world.crash(1)
    world.crash(2)
    world.run(50)
    changed = world.assignment()
    assert (changed.leader, changed.isr) == (3, (3,))
    assert changed.eligible
    assert controller(world, 3) == 3


def test_a_stand_in_fences_the_dead_while_the_controller_hangs() -> None:
    world = guarded()
    world.create_topic(replicas=(3, 2, 1))
    world.pause(1)
    died = BrokerDied(3, world.node(2).image.brokers[3].epoch)
    world.crash(3)
    for _ in range(8):
        world.run(50)
        world.step(2, died)  # to be told again and again is no reason to wait anew
    assert world.assignment().leader == 2
    assert controller(world, 2) == 1


def test_a_hung_broker_is_fenced_after_the_session_timeout_and_not_before() -> None:
    world = guarded()
    world.create_topic(replicas=(3, 1, 2))
    world.run(1000)
    world.pause(3)
    world.run(2000)
    assert live(world, 1) == [1, 2, 3]
    world.run(2000)
    assert live(world, 1) == [1, 2]
    assert world.assignment().leader == 1
    assert any("hung" in line for line in world.hosts[1].told)


def test_a_hung_controller_is_deposed_and_returns_as_a_plain_broker() -> None:
    world = guarded()
    world.create_topic()
    world.pause(1)
    world.run_until(lambda: live(world, 2) == [2, 3], 5000)
    world.run(5)
    assert controller(world, 3) == 2
    assert world.assignment().leader == 2
    world.resume(1)
    world.run_until(lambda: live(world, 2) == [1, 2, 3], 2000)
    assert controller(world, 1) == 2


def test_an_isolated_controller_does_not_fence_the_rest() -> None:
    world = guarded()
    world.create_topic()
    world.isolate(1)
    world.run_until(lambda: live(world, 2) != [1, 2, 3], 6000)
    world.run(30_000)
    for node_id in (1, 2, 3):
        assert live(world, node_id) == [2, 3]
        assert controller(world, node_id) == 2
    fenced = [r.node_id for r in journalled(world, BrokerRegistered) if r.fenced]
    assert fenced == [1], "it must not come and go while it is cut off"
    assert not world.partition(1).is_leader
    world.heal()
    world.run_until(lambda: live(world, 2) == [1, 2, 3], 3000)


def test_of_two_brokers_that_are_cut_apart_one_goes_on() -> None:
    world = ClusterWorld(2)
    world.create_topic(replicas=(1, 2))
    world.cut(1, 2)
    world.run(10_000)
    (winner,) = live(world, 1)
    assert live(world, 2) == [winner]
    assert world.assignment().leader == winner
    world.heal()
    world.run_until(lambda: live(world, 1) == [1, 2], 3000)


def test_a_fenced_broker_returns_when_the_one_that_fenced_it_is_dead() -> None:
    world = ClusterWorld(2)
    world.create_topic(replicas=(1, 2))
    world.cut(1, 2)
    world.run(10_000)
    (winner,) = live(world, 1)
    loser = 3 - winner
    world.crash(winner)
    world.run(100)
    assert live(world, loser) == [loser]
    assert controller(world, loser) == loser


def test_a_deposed_controllers_proposal_is_refused_and_decided_anew() -> None:
    """It wants to fence 3 while the journal does not reach it; meanwhile it is fenced itself."""
    world = guarded()
    world.create_topic(replicas=(3, 1, 2))
    world.journal.held[1] = True
    epoch = world.node(1).image.brokers[3].epoch
    world.step(1, BrokerDied(3, epoch))
    assert world.hosts[1].proposing is not None
    node = world.node(2)
    fenced = node.image.brokers[1]
    world.append(BrokerRegistered(1, fenced.host, fenced.port, fenced.epoch, True), ControllerElected(2, 9))
    world.run(10)
    world.journal.release(1)
    world.run(5)
    assert live(world, 2) in ([2, 3], [1, 2, 3])
    assert 3 in live(world, 2), "a fenced broker must not fence others"
    world.run(2000)
    assert controller(world, 2) == 2


def test_a_restarted_broker_leaves_the_set_that_its_old_life_was_in() -> None:
    """KIP-903: a restart so fast that nobody noticed the death."""
    world = guarded()
    world.create_topic()
    old = world.node(1).image.brokers[1].epoch
    world.crash(1, noticed=False)
    world.start(1)
    world.run(5)
    assert world.node(2).image.brokers[1].epoch > old
    changed = world.assignment()
    assert changed.leader == 2
    assert changed.leader_epoch == 1


def test_a_late_word_of_death_does_not_touch_the_next_life() -> None:
    world = ClusterWorld(3)
    old = world.node(1).image.brokers[3].epoch
    world.crash(3, noticed=False)
    world.start(3)
    world.run(10)
    world.step(1, BrokerDied(3, old))
    world.run(100)
    assert live(world, 1) == [1, 2, 3]


def test_leadership_goes_home_when_the_check_is_due() -> None:
    world = ClusterWorld(3, leader_imbalance_check_interval_seconds="5")
    world.create_topic(leader=2)
    world.run_until(lambda: world.assignment().leader == 1, 6000)
    assert world.assignment().leader_epoch == 1


def test_without_automatic_rebalance_leadership_stays() -> None:
    world = ClusterWorld(3, leader_imbalance_check_interval_seconds="5", auto_leader_rebalance_enable="false")
    world.create_topic(leader=2)
    world.run(20_000)
    assert world.assignment().leader == 2


# ------------------------------------------------------------------------------------------------ pauses


def metadata(connection: int) -> Request:
    body = MetadataRequest(topics=[], allow_auto_topic_creation=False)
    return Request(connection, RequestHeader(int(ApiKey.METADATA), 9, 0, "test"), body)


def test_a_paused_broker_serves_nothing_before_it_has_caught_up() -> None:
    world = ClusterWorld(3)
    world.create_topic()
    node = world.node(1)
    late_ms = world.now_ms + 10_000
    effects = node.step(late_ms, metadata(5))
    assert [type(effect).__name__ for effect in effects] == ["CatchUp"]
    assert node.step(late_ms, Tick()) == []
    assert node.step(late_ms, metadata(6)) == []
    assert node.next_deadline() is None
    effects = node.step(late_ms, CaughtUp())
    assert [e.request.connection for e in effects if isinstance(e, Reply)][:2] == [5, 6]


def test_what_a_pause_holds_is_bounded() -> None:
    world = ClusterWorld(2)
    node = world.node(1)
    late_ms = world.now_ms + 10_000
    for _ in range(MAX_HELD_REQUESTS):
        node.step(late_ms, metadata(5))
    (closed,) = node.step(late_ms, metadata(6))
    assert type(closed).__name__ == "Close"


def test_a_broker_alone_never_waits_for_the_journal() -> None:
    world = ClusterWorld(1)
    (reply,) = world.node(1).step(world.now_ms + 1_000_000, metadata(5))
    assert type(reply).__name__ == "Reply"


def test_a_resumed_leader_refuses_what_it_no_longer_leads() -> None:
    world = guarded()
    world.create_topic()
    world.pause(1)
    world.run_until(lambda: world.assignment().leader != 1, 6000)
    answer = world.consume(1, "t")
    world.resume(1)
    assert answer.done
    assert answer.partition.error is ErrorCode.NOT_LEADER_OR_FOLLOWER


# ----------------------------------------------------------------------------------------------- stopping


def test_a_broker_that_stops_hands_over_first() -> None:
    world = guarded()
    world.create_topic(partitions=4)
    world.ask_to_stop(1)
    assert not has_stopped(world, 1)
    world.run(5)
    assert has_stopped(world, 1)
    for index in range(4):
        assert world.assignment(partition=index).leader == 2
        assert world.assignment(partition=index).isr == (2, 3)
    world.run(10_000)
    assert live(world, 2) == [2, 3], "it must not come back while it stops"
    assert controller(world, 2) == 2


def test_all_stop_at_once_and_all_return() -> None:
    world = guarded()
    world.create_topic()
    for node_id in (1, 2, 3):
        world.ask_to_stop(node_id)
    world.run(50)
    assert all(host.stopped for host in world.hosts.values())
    for node_id in (1, 2, 3):
        world.crash(node_id)
    world.run(10)
    for node_id in (1, 2, 3):
        world.start(node_id)
    world.run(50)
    assert live(world, 2) == [1, 2, 3]
    assert world.assignment().leader != -1
    assert not any("unclean" in line for host in world.hosts.values() for line in host.told)


def test_stopping_gives_up_when_the_journal_is_out_of_reach() -> None:
    world = ClusterWorld(3)
    world.create_topic()
    world.journal.held[1] = True
    world.ask_to_stop(1)
    world.run(4900)
    assert not has_stopped(world, 1)
    world.run(200)
    assert has_stopped(world, 1)


def test_a_broker_alone_stops_at_once() -> None:
    world = ClusterWorld(1)
    before = len(world.journal.entries)
    effects = world.node(1).step(world.now_ms, StopAsked())
    assert [type(effect) for effect in effects] == [Stop]
    assert len(world.journal.entries) == before


# -------------------------------------------------------------------------------------- all lose their power


def test_power_cut_of_all_elects_the_last_leader_and_tells_it() -> None:
    world = guarded()
    world.create_topic()
    for node_id in (1, 2, 3):
        world.power_cut(node_id, noticed=False)
    for node_id in (1, 2, 3):
        world.start(node_id, keeps_all=False)
    world.run(100)
    assert world.assignment().leader != -1
    assert any("unclean" in line for host in world.hosts.values() for line in host.told)


def test_a_broker_added_while_the_cluster_runs_is_seen_by_all() -> None:
    """A6."""
    world = ClusterWorld(3)
    world.add_host(4)
    world.start(4)
    world.run(20)
    assert live(world, 1) == live(world, 4) == [1, 2, 3, 4]
