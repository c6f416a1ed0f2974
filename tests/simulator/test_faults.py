"""Each fault does what its name says, and is undone; what it takes by rights is excused, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest

from gapless.simulator.case import Case, ClientPlan, Step, TopicPlan
from gapless.simulator.cases import COMPACTION, RETENTION, SHORT_SEGMENTS, make_case
from gapless.simulator.clients.relay import Relay
from gapless.simulator.faults import FAULTS
from gapless.simulator.profiles import PROFILES
from gapless.simulator.run import play_scene
from gapless.simulator.scene import Scene
from gapless.storage.memory import MemoryLogStore
from tests.simulator.stages import members, played, relays, sends, stage


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
    places = list(scene.places())
    assert places
    for place in places:
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


def test_a_power_cut_that_does_not_come_to_pass_excuses_nothing() -> None:
    """The coordinators' logs are on broker 1 alone at that moment, as topic `t` always is."""
    away = (Step(300, "power-cut", (2, 2_000, 0)), Step(600, "power-cut", (3, 2_000, 0)))
    only = TopicPlan("t", 1, 1, {"min.insync.replicas": "1"})
    producer = ClientPlan("p", "producer", {"acks": -1, "idempotent": True})
    steps = (Step(0, "send", ("p", "t", 0, 1)), *away, Step(1_500, "power-cut", (1, 10, 0)))
    scene = Scene(Case(1, "by hand", 3, (only,), (producer,), steps, jitter=False))
    played(scene)
    assert scene.injected["power-cut"] == len(away)
    assert not scene.excused


def test_a_power_cut_takes_another_part_of_each_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """One log is kept and another one is lost: the coordinators' are on the same disks as the records."""
    shares: list[list[int]] = []
    cut = MemoryLogStore.power_cut

    def look(store: MemoryLogStore, kept: Mapping[tuple[str, int], int]) -> None:
        for name, log in store.logs.items():
            unflushed = log.end_offset - log.flushed_offset
            if unflushed > 1:
                left = kept[name] - log.flushed_offset
                shares[-1].append(100 * left // unflushed)
        cut(store, kept)

    monkeypatch.setattr(MemoryLogStore, "power_cut", look)
    for kept_percent in (50, 50, 0):
        shares.append([])
        after(*(Step(at, "power-cut", (3, 50, kept_percent, True)) for at in range(900, 4_000, 400)))
    first, again, worst = shares
    assert first == again
    assert {0, 100} <= set(first)
    assert set(worst) == {0}


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


@pytest.mark.parametrize("protocol", ["classic", "newer"])
def test_a_partition_that_a_topic_gets_is_written_to_and_read_by_everybody(protocol: str) -> None:
    scene = stage(members(2, protocol), *sends(), Step(500, "add-partition", ("t", "p", 3)))
    played(scene)
    assert scene.topics["t"].partitions == 3
    read = {each.consumer: len(each.polled) for each in scene.history.readings if each.place == ("t", 2)}
    assert read["reader"] == read["committed-reader"] == 9
    assert ("t", 2) in {owned.place for owned in scene.history.owned}


def test_relays_copy_what_comes_to_a_new_partition() -> None:
    scene = stage(relays(2, "classic"), *sends(), Step(500, "add-partition", ("t", "p", 3)))
    played(scene)
    copied = [write.source for write in scene.history.writes.values() if write.source is not None]
    assert len([source for source in copied if source[0] == ("t", 2)]) >= 9
    assert any(isinstance(client, Relay) for client in scene.clients.values())


def test_who_takes_partitions_by_hand_is_spared_new_ones() -> None:
    shape = make_case(1, PROFILES["everything"])
    by_hand = ClientPlan("relay", "relay", {"topic": "t", "target": "u", "protocol": "by-hand"})
    case = Case(1, "by hand", 3, shape.topics[:2], (*shape.clients, by_hand), ())
    chosen = {FAULTS["add-partition"].choose(Random(seed), case)[0] for seed in range(50)}
    assert chosen == {"u"}


def test_anybody_may_be_elected_by_an_administrator_and_the_loss_is_excused() -> None:
    """Brokers 1 and 3 are away when 2, which alone is in sync, loses its power and its last records."""
    away = [Step(at_ms, "crash", (n, 8_000)) for at_ms, n in ((1_000, 1), (1_000, 3))]
    scene = stage(
        [],
        *sends(until_ms=900),
        *away,
        Step(3_000, "crash", (2, 60_000)),
        Step(12_000, "unclean-election", ("t", 0)),
        configs={"min.insync.replicas": "1"},
    )
    played(scene)
    assert scene.injected["unclean-election"] == 1
    assert "uncleanly" in scene.excused["t"]


@pytest.mark.parametrize(("away", "excused"), [((), False), ((3, 4), True)])
def test_an_unclean_election_is_excused_as_long_as_somebody_may_act_on_the_request(
    away: tuple[int, ...], excused: bool
) -> None:
    """Nothing unclean comes of it: either it is refused at once, or all brokers stand still."""
    only = TopicPlan("t", 1, 2, {"min.insync.replicas": "2"})
    crashes = [Step(500, "crash", (node_id, 60_000)) for node_id in (1, 2)]
    asked = Step(2_000, "unclean-election", ("t", 0))
    held = [Step(1_990, "pause", (node_id, 60_000)) for node_id in away]
    faults_go_on = Step(5_000, "partition", (1, 2, 1))
    steps = (*crashes, *held, asked, faults_go_on)
    scene = Scene(Case(1, "by hand", 4, (only,), (), steps, jitter=False))

    def later_elected_uncleanly() -> None:
        now = scene.assignment(("t", 0))
        scene.world.append(replace(now, isr=(2,), eligible=(), partition_epoch=now.partition_epoch + 1))
        now = scene.assignment(("t", 0))
        scene.world.append(replace(now, leader=1, isr=(1,), leader_epoch=now.leader_epoch + 1))

    scene.world.after(4_500, later_elected_uncleanly)
    play_scene(scene)
    assert scene.injected["unclean-election"] == 1
    assert bool(scene.excused) is excused


def test_nobody_is_elected_uncleanly_where_somebody_leads() -> None:
    scene = after(Step(500, "unclean-election", ("t", 0)))
    assert "unclean-election" not in scene.injected
    assert not scene.excused


def test_records_that_are_too_old_expire_and_are_not_missed() -> None:
    scene = stage(
        [],
        *sends(until_ms=6_000),
        Step(500, "client-partition", ("reader", "leader t 0", 4_000)),
        Step(2_000, "change-retention", ("t", 500)),
        configs=SHORT_SEGMENTS,
        settings=dict(RETENTION),
    )
    played(scene)
    leader = scene.leader(("t", 0))
    assert leader is not None
    assert 0 < leader.log.start_offset == scene.history.expired["t", 0]
    assert not scene.history.deleted
    assert scene.topics["t"].configs["retention.ms"] == "500"
    behind = {reading.consumer for reading in scene.history.readings if reading.expired}
    assert behind == {"reader"}


def test_the_shortest_time_that_records_were_kept_is_remembered() -> None:
    scene = after(Step(500, "change-retention", ("t", 1_000)), Step(600, "change-retention", ("t", -1)))
    assert scene.topics["t"].configs["retention.ms"] == "1000"
    assert scene.world.journal.image.configs[2, "t"]["retention.ms"] == "-1"


def test_a_request_between_brokers_comes_late_when_it_was_sent_again() -> None:
    late = [Step(at_ms, "double-connection", (3, 1, 2_000)) for at_ms in range(500, 3_000, 300)]
    scene = after(*late)
    assert scene.injected["double-connection"] == len(late)
    assert not scene.world.network.stranding, "each has met a request"


def test_coordinators_logs_are_compacted_and_nothing_of_them_is_missed() -> None:
    """What a group has committed outlives its coordinator, though most of it was cleaned away."""
    scene = stage(
        members(2, "classic"),
        *sends(until_ms=6_000, every_ms=100),
        Step(6_000, "crash", ("group-coordinator", 500)),
        Step(6_000, "die", ("member-0", 300)),
        settings=dict(COMPACTION),
        internal={**SHORT_SEGMENTS, "min.cleanable.dirty.ratio": "0.01"},
    )
    played(scene)
    cleaned = [
        log.cleaned_offset
        for host in scene.world.hosts.values()
        for (topic, _), log in host.store.logs.items()
        if topic == "__consumer_offsets"
    ]
    assert max(cleaned) > 0
