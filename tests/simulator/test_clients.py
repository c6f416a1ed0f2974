"""Groups and relays in virtual time do what Kafka's clients do, and their checkers can see."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from gapless.core.api import group_offsets, txn_offset_commit
from gapless.core.groups import commits
from gapless.simulator.case import Step
from gapless.simulator.checkers import CHECKERS
from gapless.simulator.checkers.checker import Violation
from gapless.simulator.clients.relay import Relay
from gapless.simulator.coverage import Coverage
from gapless.simulator.covering import Covering
from gapless.simulator.history import Outcome, Owned
from gapless.simulator.run import play, play_scene
from gapless.simulator.scene import Scene
from tests.simulator.stages import members, played, relays, sends, stage

PROTOCOLS = ("classic", "newer")
LONGER_THAN_A_SESSION_MS = 2_500


def owners(scene: Scene) -> list[str]:
    """Who had a partition, in the order of having it."""
    return [owned.member_id for owned in scene.history.owned]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_group_shares_out_partitions_and_deals_with_everything(protocol: str) -> None:
    scene = stage(members(2, protocol), *sends())
    played(scene)
    newest = max(owned.generation for owned in scene.history.owned)
    last = [owned for owned in scene.history.owned if owned.generation == newest]
    assert len({owned.member_id for owned in last}) == 2
    assert {owned.place for owned in last} == {("t", 0), ("t", 1)}
    assert any(commit.outcome is Outcome.COMMITTED for commit in scene.history.commits)


@pytest.mark.parametrize("what", ["die", "leave"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_others_take_over_what_a_member_had(protocol: str, what: str) -> None:
    scene = stage(members(2, protocol), *sends(), Step(1_000, what, ("member-0", 3_000)))
    played(scene)
    places = [start.place for start in scene.history.starts if start.member == "member-1"]
    assert dict.fromkeys(places).keys() == {("t", 0), ("t", 1)}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_member_that_stood_still_with_records_in_hand_may_not_commit_them(protocol: str) -> None:
    steps = [Step(1_000, "doze", (f"member-{n}", LONGER_THAN_A_SESSION_MS)) for n in range(2)]
    scene = stage(members(3, protocol), *sends(3), *steps, partitions=3)
    played(scene)
    assert any(commit.outcome is Outcome.ABORTED for commit in scene.history.commits)


@pytest.mark.parametrize(("protocol", "what"), [("classic", "die"), ("classic", "leave"), ("newer", "leave")])
def test_a_static_member_that_is_back_in_time_has_what_it_had(protocol: str, what: str) -> None:
    """Its partition waits for it: the other member never has it (KIP-345)."""
    scene = stage(members(2, protocol, static=True), *sends(), Step(1_500, what, ("member-0", 300)))
    played(scene)
    who_had = {
        place: {owned.member_id for owned in scene.history.owned if owned.place == place}
        for place in scene.places()
    }
    assert who_had["t", 0] == {"member-0"}
    assert who_had["t", 1] == {"member-1"}
    assert len([start for start in scene.history.starts if start.member == "member-0"]) >= 2


def test_a_static_member_waits_until_its_dead_predecessor_has_lost_its_place() -> None:
    """In the newer protocol, who was killed did not release its instance id."""
    scene = stage(members(2, "newer", static=True), *sends(), Step(1_500, "die", ("member-0", 300)))
    coverage = Coverage()
    assert play(scene.case, Covering(coverage)).violation is None
    played(scene)
    assert coverage.seen["CONSUMER_GROUP_HEARTBEAT UNRELEASED_INSTANCE_ID"]
    assert {owned.member_id for owned in scene.history.owned if owned.place == ("t", 0)} == {
        "member-0",
        "member-1",
    }


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_relays_of_a_group_copy_everything_once_though_one_is_a_zombie(protocol: str, newer: bool) -> None:
    scene = stage(relays(2, protocol, newer=newer), *sends(), *zombies())
    played(scene)
    assert any(commit.outcome is Outcome.ABORTED for commit in scene.history.commits)


@pytest.mark.parametrize("newer", [False, True])
def test_a_relay_by_hand_is_fenced_by_its_successor(newer: bool) -> None:
    steps = [Step(at_ms, "succeed", ("relay-0", 400)) for at_ms in (1_000, 2_000)]
    scene = stage(relays(1, "by-hand", newer=newer), *sends(), *steps)
    played(scene)
    zombies_left = [client for client in scene.clients.values() if isinstance(client, Relay)]
    assert [zombie.is_retired for zombie in zombies_left] == [False, True, True]
    assert all(zombie.is_idle for zombie in zombies_left if zombie.is_retired)


# ------------------------------------------------------------------------------------ checkers can see


def test_offsets_of_a_zombie_that_nobody_stops_are_noticed() -> None:
    """The generation of who commits in a transaction is not looked at (KIP-447)."""

    def wrong(groups, group_id, committer, producer, offsets):  # type: ignore[no-untyped-def]
        return commits._write(groups, group_id, offsets, -1, producer)

    with patch.object(txn_offset_commit, "commit_in_transaction", wrong):
        assert broken(stage(relays(2, "classic"), *sends(), *zombies())) == "relayed-once"


def test_a_transactional_id_that_fences_nobody_is_noticed() -> None:
    def wrong(relay: Relay) -> str:
        return f"{relay.group}-{relay.number}"

    with patch.object(Relay, "transactional_id", wrong):
        steps = [Step(at_ms, "succeed", ("relay-0", 400)) for at_ms in (1_000, 2_000)]
        assert broken(stage(relays(1, "by-hand"), *sends(), *steps)) == "relayed-once"


def test_an_offset_that_a_zombie_moves_back_is_noticed() -> None:
    def wrong(groups, group_id, committer, offsets, **_more):  # type: ignore[no-untyped-def]
        return commits._write(groups, group_id, offsets, -1, None)

    again = Step(5_000, "die", ("member-1", 10))
    steps = [Step(1_000, "doze", (f"member-{n}", LONGER_THAN_A_SESSION_MS)) for n in range(2)]
    with patch.object(group_offsets, "commit", wrong):
        scene = stage(members(3, "classic"), *sends(3, until_ms=3_000), *steps, again, partitions=3)
        assert broken(scene) == "group-offsets"


def test_a_partition_that_two_members_have_is_noticed() -> None:
    scene = stage(members(2, "classic"), *sends(until_ms=500))
    played(scene)
    first = scene.history.owned[-1]
    scene.history.owned.append(Owned(first.group, first.generation, "somebody else", first.place))
    with pytest.raises(Violation, match="both"):
        CHECKERS["group-owned-twice"](scene).at_end()


def test_a_record_that_a_group_passed_over_is_noticed() -> None:
    scene = stage(members(1, "classic"), *sends(until_ms=500))
    played(scene)
    for reading in scene.history.readings:
        del reading.polled[2:3]
    with pytest.raises(Violation, match="nobody in readers"):
        CHECKERS["group-unseen"](scene).at_end()


def zombies() -> list[Step]:
    """Each of two relays stands still for longer than its session, with records in hand."""
    return [Step(500 + 1_500 * n, "doze", (f"relay-{n}", LONGER_THAN_A_SESSION_MS)) for n in range(2)]


def broken(scene: Scene) -> str:
    """The promise that is broken."""
    violation = play_scene(scene).violation
    assert violation is not None
    return violation.anomaly
