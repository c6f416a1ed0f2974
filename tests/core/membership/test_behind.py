"""A broker that has lost the way to the journal learns from the others' answers that it is behind (D4)."""

from __future__ import annotations

from dataclasses import replace

from tests.core.cluster_harness import ClusterWorld
from tests.core.harness import batch


def world_led_by_the_third() -> ClusterWorld:
    world = ClusterWorld(3, broker_session_timeout_ms="600", broker_heartbeat_interval_ms="100")
    world.create_topic("t", leader=3)
    world.run(200)
    return world


def test_whoever_knows_less_than_others_serves_nothing_until_it_has_looked() -> None:
    """It was replaced: what it acknowledged with acks=1 would be lost, and its metadata are old."""
    world = world_led_by_the_third()
    world.journal.held[3] = True
    world.append(replace(world.node(1).image.brokers[3], fenced=True))
    world.elect(1, isr=(1, 2))
    world.run(1000)
    answer = world.produce(3, "t", batch(b"x"), acks=1)
    world.run(5000)
    assert not answer.done
    world.journal.release(3)
    world.run_until(lambda: answer.done)
    assert answer.partition.error
    world.run_until(lambda: set(world.assignment().isr) == {1, 2, 3})


def test_while_nobody_reaches_the_journal_all_serve_on() -> None:
    world = world_led_by_the_third()
    for node_id in world.hosts:
        world.journal.held[node_id] = True
    world.run(10_000)
    answer = world.produce(3, "t", batch(b"x"))
    world.run_until(lambda: answer.done, 100)
    assert answer.partition.error == 0


def test_whoever_is_behind_for_a_moment_serves_on() -> None:
    world = world_led_by_the_third()
    world.journal.latency_ms = lambda: 60
    for number in range(20):
        world.create_topic(f"t{number}")
        world.run(40)
        assert world.produce(3, "t", batch(b"x"), acks=1).partition.error == 0
