"""Each fault does what its name says, and is undone; what it takes by rights is excused, and nothing else."""

from __future__ import annotations

from random import Random

import pytest

from gapless.simulator.case import Case, Step
from gapless.simulator.cases import make_case
from gapless.simulator.faults import FAULTS
from gapless.simulator.profiles import PROFILES
from gapless.simulator.scene import Scene
from tests.simulator.stages import played, sends, stage


def after(*steps: Step) -> Scene:
    """A scene in which these steps were played while a producer sends."""
    scene = stage([], *sends(), *steps)
    played(scene)
    return scene


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_fault_hits_survives_a_file(name: str) -> None:
    """A case that was found is kept as JSON."""
    shape = make_case(1, PROFILES["everything"])
    for seed in range(20):
        step = Step(0, name, FAULTS[name].choose(Random(seed), shape))
        assert Case.from_json(shape.with_steps((step,)).to_json()).steps == (step,)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_profiles_name_faults_that_there_are(profile) -> None:  # type: ignore[no-untyped-def]
    assert [name for name in profile.rates if name not in FAULTS] == []


def test_a_reassignment_moves_a_partition_and_can_be_called_off() -> None:
    scene = after(
        Step(500, "reassign", ("t", 0, (3, 1), 0)),
        Step(500, "pause", (3, 1_500)),
        Step(600, "reassign", ("t", 1, (3, 2), 100)),
    )
    assert scene.assignment(("t", 0)).replicas == (3, 1)
    assert scene.injected["reassign"] == 2


def test_preferred_elections_give_partitions_back() -> None:
    moments = [Step(500, "crash", ("leader t 0", 100)), Step(3_500, "preferred-election")]
    scene = after(*moments)
    for place in scene.places():
        assignment = scene.assignment(place)
        assert assignment.leader == assignment.replicas[0]


def test_deleted_records_are_expired_for_readers_and_not_lost() -> None:
    scene = after(
        Step(500, "client-partition", ("committed-reader", "leader t 0", 2_000)),
        Step(2_000, "delete-records", ("t", 0, 90)),
    )
    leader = scene.leader(("t", 0))
    assert leader is not None
    assert leader.log.start_offset == scene.history.deleted["t", 0]
    behind = [reading for reading in scene.history.readings if reading.expired]
    assert [(reading.consumer, reading.place) for reading in behind] == [("committed-reader", ("t", 0))]


def test_a_changed_setting_is_in_force_and_the_least_promise_is_remembered() -> None:
    scene = after(
        Step(500, "change-floor", ("t", 1)),
        Step(1_500, "change-floor", ("t", 3)),
        Step(1_600, "change-flush", ("t", True)),
    )
    configs = scene.world.journal.image.configs[2, "t"]
    assert configs["min.insync.replicas"] == "3"
    assert configs["flush.messages"] == "1"
    assert scene.topics["t"].configs == {"min.insync.replicas": "1"}
    assert scene.case.topics[0].configs == {"min.insync.replicas": "2"}


def test_flushing_that_was_switched_on_later_is_not_trusted_after_a_power_cut() -> None:
    """The flush that the setting begins had not ended: the leader's log was empty, and it led on with it."""
    scene = stage(
        [],
        *sends(until_ms=1_000),
        Step(1_900, "slow-disk", (2, 2_000, 3_000)),
        Step(1_900, "crash", (1, 3_000)),
        Step(1_920, "crash", (3, 3_000)),
        Step(2_000, "change-flush", ("t", True)),
        Step(2_300, "power-cut", (2, 5, 0)),
    )
    played(scene)
    assert not scene.excused


def test_clocks_may_be_wrong_from_the_start_and_go_back_with_a_restart() -> None:
    scene = after(
        Step(0, "wrong-clock", (1, -400_000)),
        Step(0, "wrong-clock", (2, 400_000)),
        Step(2_000, "wrong-clock", (2, -1_000)),
    )
    assert [host.clock_ahead_ms for host in scene.world.hosts.values()] == [-400_000, -1_000, 0]
    assert scene.injected["wrong-clock"] == 3


def test_a_client_that_stands_still_goes_on_where_it_was() -> None:
    scene = stage([], *sends(), Step(500, "client-pause", ("p", 1_200)))
    told: list[int] = []
    scene.history.say = lambda who, text: told.append(scene.world.now_ms) if who == "p" else None
    start_ms = scene.world.now_ms
    played(scene)
    assert not [now_ms for now_ms in told if start_ms + 500 < now_ms < start_ms + 1_700]
    assert told[-1] > start_ms + 1_700
