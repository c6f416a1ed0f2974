"""Around a broker's death: nobody who asks for a leader is told what is about to be wrong (D5)."""

from __future__ import annotations

from typing import Any

import pytest

from gapless.core.contract import PeerLost
from gapless.core.membership.departures import FAREWELL_MS, SUSPECT_MS
from gapless.wire.apis import ApiKey
from gapless.wire.messages import FindCoordinatorRequest, MetadataRequest
from tests.core.cluster_harness import Answer, ClusterWorld

GROUPS = "__consumer_offsets"


def world_led_by(leader: int) -> ClusterWorld:
    world = ClusterWorld(3)
    others = tuple(node_id for node_id in (1, 2, 3) if node_id != leader)
    for topic in ("t", GROUPS):
        world.create_topic(topic, replicas=(leader, *others))
    world.run(50)
    return world


def ask_for_leaders(world: ClusterWorld, node_id: int) -> Answer:
    asked = MetadataRequest.MetadataRequestTopic(name="t")
    body = MetadataRequest(topics=[asked], allow_auto_topic_creation=False)
    return world.send(node_id, ApiKey.METADATA, 9, body)


def ask_for_coordinator(world: ClusterWorld, node_id: int) -> Answer:
    return world.send(node_id, ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="group", key_type=0))


def leader_in(message: Any) -> int:
    return int(message.topics[0].partitions[0].leader_id)


def coordinator_in(message: Any) -> int:
    return int(message.node_id)


@pytest.mark.parametrize(
    ("ask", "found"), [(ask_for_leaders, leader_in), (ask_for_coordinator, coordinator_in)]
)
def test_a_question_asked_while_a_broker_dies_is_answered_with_who_comes_after_it(
    ask: Any, found: Any
) -> None:
    world = world_led_by(3)
    world.step(2, PeerLost(3))
    answer = ask(world, 2)
    assert not answer.done
    world.crash(3)
    world.run(50)
    assert answer.done
    assert found(answer.message) in (1, 2)


def test_a_broken_connection_alone_holds_questions_up_for_a_moment_only() -> None:
    world = world_led_by(3)
    world.step(2, PeerLost(3))
    answer = ask_for_leaders(world, 2)
    world.run(SUSPECT_MS - 10)
    assert not answer.done
    world.run(20)
    assert leader_in(answer.message) == 3
    assert ask_for_leaders(world, 2).done, "it is settled: the next question is answered at once"


def test_a_broker_known_to_be_gone_is_not_waited_for_again() -> None:
    world = world_led_by(3)
    world.crash(3)
    world.run(50)
    world.step(2, PeerLost(3))
    assert ask_for_leaders(world, 2).done


def test_a_fenced_broker_is_listed_for_a_little_longer() -> None:
    """librdkafka would give it up, and with it the partitions that it still has there."""
    world = world_led_by(3)
    world.crash(3)
    world.run(50)

    def listed() -> list[int]:
        answer = ask_for_leaders(world, 2)
        return sorted(broker.node_id for broker in answer.message.brokers)

    assert listed() == [1, 2, 3]
    world.run(FAREWELL_MS)
    assert listed() == [1, 2]
