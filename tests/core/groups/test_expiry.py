"""Offsets expire when nobody uses them, and not before."""

from __future__ import annotations

import pytest

from gapless.core.groups.group import GroupState
from gapless.wire.errors import ErrorCode
from tests.core.groups.crowd import Crowd, subscription

HOUR_MS = 3_600_000
CHECK_MS = 60_000


@pytest.fixture
def crowd() -> Crowd:
    """Offsets live for an hour and are looked at every minute."""
    crowd = Crowd(offsets_retention_minutes="60", offsets_retention_check_interval_ms=str(CHECK_MS))
    crowd.world.create_topic("t", partitions=2)
    crowd.world.create_topic("u")
    return crowd


def test_offsets_of_a_simple_group_expire_after_their_commit(crowd: Crowd) -> None:
    crowd.commit({("t", 0): 1})
    crowd.world.advance(HOUR_MS // 2)
    crowd.commit({("t", 1): 2})
    crowd.world.advance(HOUR_MS // 2 - 1)
    assert crowd.fetch(everything=True) == {("t", 0): 1, ("t", 1): 2}
    crowd.world.advance(CHECK_MS)
    assert crowd.fetch(everything=True) == {("t", 1): 2}
    crowd.world.advance(HOUR_MS)
    assert crowd.list_groups() == [], "a group without members and offsets is gone, too"
    crowd.restart()
    assert crowd.list_groups() == []


def test_offsets_of_a_group_expire_after_its_last_member_has_gone(crowd: Crowd) -> None:
    (member,) = crowd.stable(1, session_ms=1_800_000)
    member.commit(1)
    for _ in range(4):
        crowd.world.advance(HOUR_MS // 3)
        assert member.heartbeat() is ErrorCode.NONE
    member.leave()
    crowd.world.advance(HOUR_MS - CHECK_MS)
    assert crowd.fetch(everything=True) == {("t", 0): 1}
    crowd.restart()  # when the group became empty is durable
    assert crowd.fetch(everything=True) == {("t", 0): 1}
    crowd.world.advance(2 * CHECK_MS)
    assert crowd.fetch(everything=True) == {}
    assert crowd.list_groups() == []


def test_a_live_group_loses_only_what_it_no_longer_subscribes_to(crowd: Crowd) -> None:
    crowd.commit({("t", 0): 1, ("u", 0): 2})
    (member,) = crowd.stable(1, session_ms=1_800_000, protocols={"range": subscription("t")})
    for _ in range(4):
        crowd.world.advance(HOUR_MS // 3)
        assert member.heartbeat() is ErrorCode.NONE
    assert crowd.fetch(everything=True) == {("t", 0): 1}


def test_of_a_live_group_that_does_not_tell_its_topics_nothing_expires(crowd: Crowd) -> None:
    crowd.commit({("t", 0): 1})
    crowd.commit({("t", 0): 1}, "h")
    members = [
        *crowd.stable(1, session_ms=1_800_000, protocols={"range": b"?"}),
        *crowd.stable(1, "h", session_ms=1_800_000, protocol_type="connect"),
    ]
    for _ in range(4):
        crowd.world.advance(HOUR_MS // 3)
        for member in members:
            assert member.heartbeat() is ErrorCode.NONE
    assert crowd.fetch(everything=True) == crowd.fetch(everything=True, group="h") == {("t", 0): 1}


def test_old_clients_may_say_how_long_each_offset_lives(crowd: Crowd) -> None:
    crowd.commit({("t", 0): 1}, version=4, retention_ms=5 * CHECK_MS)
    crowd.commit({("t", 1): 2}, version=4, retention_ms=-1)
    crowd.world.advance(5 * CHECK_MS - 1)
    crowd.restart()
    assert crowd.fetch(everything=True) == {("t", 0): 1, ("t", 1): 2}
    crowd.world.advance(2 * CHECK_MS)
    assert crowd.fetch(everything=True) == {("t", 1): 2}


def test_a_group_that_was_only_asked_for_goes_with_the_next_look(crowd: Crowd) -> None:
    for number in range(50):
        member = crowd.newcomer(f"group-{number}")
        member.send_join()
    assert len(crowd.list_groups()) == 50
    crowd.world.advance(2 * CHECK_MS)
    assert crowd.list_groups() == []
    assert all(
        shard.state.held.size_bytes == 0  # type: ignore[attr-defined]
        for shard in crowd.world.node.shards.values()
    )


def test_many_groups_are_looked_through_in_slices(crowd: Crowd) -> None:
    for number in range(1500):
        crowd.commit({("t", 0): 1}, f"group-{number}")
    ticks = len(crowd.world.trace)
    crowd.world.advance(HOUR_MS + CHECK_MS)
    assert crowd.list_groups() == []
    assert len(crowd.world.trace) - ticks > 4


def test_a_member_that_is_joining_keeps_the_group(crowd: Crowd) -> None:
    (busy,) = crowd.stable(1, session_ms=1_800_000, rebalance_ms=1_800_000)
    newcomer = crowd.newcomer()
    newcomer.join()
    crowd.world.advance(CHECK_MS)
    assert crowd.group().state is GroupState.PREPARING
    busy.join()
    assert newcomer.joining.error is ErrorCode.NONE
