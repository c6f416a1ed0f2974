"""Each checker sees what it is for: a clean run, in which one thing is then made wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gapless.core.contract import TopicPartition
from gapless.core.producers import Producers, RefusedBatch
from gapless.simulator.campaign import Tally
from gapless.simulator.case import Case, ClientPlan, Step, TopicPlan
from gapless.simulator.checkers import CHECKERS, Checker, Violation
from gapless.simulator.history import GiveUp, Outcome, Polled, Reading, Start, Write
from gapless.simulator.run import play, play_scene
from gapless.simulator.scene import Scene
from gapless.storage import rules
from gapless.wire.batch import BatchHeader
from gapless.wire.errors import ErrorCode

PLACE = ("t", 0)
CASE = Case(
    seed=1,
    profile="by hand",
    brokers=3,
    topics=(TopicPlan("t", 2, 3, {"min.insync.replicas": "2"}),),
    clients=(
        ClientPlan("producer", "producer", {"acks": -1, "idempotent": True}),
        ClientPlan("transactor", "transactional", {"transactional_id": "x", "newer": True}),
        ClientPlan("reader", "consumer", {"committed_only": True}),
    ),
    steps=(
        Step(0, "send", ("producer", "t", 0, 3)),
        Step(100, "transact", ("transactor", (("t", 0, 2), ("t", 1, 2)), True)),
        Step(200, "transact", ("transactor", (("t", 0, 1),), False)),
        Step(300, "send", ("producer", "t", 0, 2)),
    ),
    jitter=False,
)


@pytest.fixture
def scene() -> Scene:
    """A run in which everything went well."""
    scene = Scene(CASE)
    assert play_scene(scene).violation is None
    return scene


def found(name: str, scene: Scene) -> str:
    """What a checker says of a scene; empty if nothing."""
    try:
        CHECKERS[name](scene).at_end()
    except Violation as violation:
        return violation.text
    return ""


def reading(scene: Scene) -> Reading:
    return next(each for each in scene.history.readings if each.place == PLACE)


def a_write(scene: Scene, wanted: Callable[[Write], bool]) -> Write:
    return next(write for write in scene.history.writes.values() if write.place == PLACE and wanted(write))


def plain(write: Write) -> bool:
    return write.attempt is None


def test_nothing_is_found_where_nothing_is_wrong(scene: Scene) -> None:
    assert {name: found(name, scene) for name in CHECKERS} == dict.fromkeys(CHECKERS, "")
    assert len(reading(scene).polled) == 7  # so the checkers have had something to look at


def test_an_acknowledged_record_that_is_gone_is_a_lost_write(scene: Scene) -> None:
    write = scene.history.sends("producer", PLACE, acks=-1, once=True)
    write.acknowledged, write.offset = True, 99
    assert f"record {write.value}" in found("lost-write", scene)
    assert f"record {write.value}" in found("unseen", scene)


def test_a_record_that_was_not_acknowledged_may_be_gone(scene: Scene) -> None:
    scene.history.sends("producer", PLACE, acks=-1, once=True)
    acks_1 = scene.history.sends("producer", PLACE, acks=1, once=False)
    acks_1.acknowledged = True  # by the leader alone, who may die
    assert found("lost-write", scene) == found("unseen", scene) == ""


def test_a_topic_that_has_borne_too_much_is_excused(scene: Scene) -> None:
    write = scene.history.sends("producer", PLACE, acks=-1, once=True)
    write.acknowledged, write.offset = True, 99
    scene.excuse("t", "all its machines burnt")
    assert found("lost-write", scene) == ""


def test_what_was_read_before_a_topic_is_excused_is_judged_all_the_same(scene: Scene) -> None:
    (aborted,) = [each for each in scene.history.attempts if each.outcome is Outcome.ABORTED]
    reading(scene).polled.append(Polled(50, aborted.values[0]))
    scene.excuse("t", "all its machines burnt")
    assert f"transaction {aborted.number}" in found("G1a", scene)


@pytest.mark.parametrize(
    "name", ["G1a", "duplicate", "inconsistent-offsets", "nonmonotonic-poll", "nonmonotonic-send"]
)
def test_what_is_read_of_an_excused_topic_is_not_judged(scene: Scene, name: str) -> None:
    """With its end it may have lost a marker, and what came there was sent again."""
    (aborted,) = [each for each in scene.history.attempts if each.outcome is Outcome.ABORTED]
    scene.excuse("t", "all its machines burnt")
    again = reading(scene).polled[1::-1]
    reading(scene).polled += [Polled(again[1].offset, again[0].value), Polled(0, aborted.values[0])]
    reading(scene).cut_off.append((3, 5))
    assert found(name, scene) == ""


def test_of_an_excused_topic_is_judged_what_no_loss_explains(scene: Scene) -> None:
    scene.excuse("t", "all its machines burnt")
    reading(scene).skipped.append((2, 4))
    assert "from 2 to 4" in found("poll-skip", scene)
    scene.history.starts.append(Start("g", 1, "somebody", PLACE, 7, scene.history.count(), reading(scene)))
    assert "told to go on with t-0 at 7" in found("group-offsets", scene)


def test_a_run_tells_how_many_of_its_promises_were_judged() -> None:
    """The only replica of the other topic loses what it had not flushed."""
    one = TopicPlan("u", 1, 1, {"min.insync.replicas": "1"})
    steps = (Step(50, "send", ("producer", "u", 0, 3)), Step(500, "power-cut", (2, 100, 0)))
    report = play(replace(CASE, topics=(*CASE.topics, one), steps=(*CASE.steps, *steps)))
    assert report.violation is None
    assert report.excused == {"u": "the power of broker 2 was cut, and too few others had everything"}
    assert (report.promised, report.judged) == (12, 9)
    tally = Tally()
    tally.note(report)
    tally.add(tally)
    assert (tally.promised, tally.judged, tally.excused, tally.excused_runs) == (24, 18, {"u": 2}, 2)


def test_one_record_at_two_offsets_is_a_duplicate(scene: Scene) -> None:
    first = reading(scene).polled[0]
    reading(scene).polled.append(Polled(50, first.value))
    assert f"record {first.value} at {first.offset} and again at 50" in found("duplicate", scene)
    scene.history.writes[first.value].once = False
    assert found("duplicate", scene) == ""  # its producer does not promise it


@pytest.mark.parametrize("name", ["producer", "transactor"])
def test_work_that_is_refused_though_nothing_was_lost_is_seen(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def refuse(self: Producers, batch: BatchHeader, *, settled: bool = True) -> None:
        if batch.is_transactional is (name == "transactor"):
            raise RefusedBatch(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "because the test says so")

    monkeypatch.setattr(Producers, "check", refuse)
    violation = play(CASE).violation
    assert violation is not None
    assert violation.anomaly == "refused"
    assert violation.text.startswith(f"{name} is told OUT_OF_ORDER_SEQUENCE_NUMBER and gives up what it ")
    assert violation.records


def test_what_follows_lost_records_may_be_refused(scene: Scene) -> None:
    error = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    scene.history.given_up.append(GiveUp("producer", error, PLACE, (1, 2)))
    assert "gives up what it sends in records 1, 2, though nothing was lost" in found("refused", scene)
    scene.excuse("t", "all its machines burnt")
    scene.injected["power-cut"] = 1
    assert found("refused", scene) == ""


def test_a_newer_producer_is_never_told_that_its_transaction_is_not_open(scene: Scene) -> None:
    """If another process has ended it, its epoch is an old one, and the error says so."""
    scene.injected["crash"] = 1
    for error in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE):
        assert found("refused", scene) == ""
        scene.history.given_up.append(GiveUp("transactor", error, PLACE, (1, 2)))
    assert "though its transaction can begin in t-0" in found("refused", scene)
    scene.excuse("t", "all its machines burnt")
    assert found("refused", scene) == ""


def test_who_is_fenced_may_have_a_successor_and_without_faults_nobody_has(scene: Scene) -> None:
    scene.history.given_up.append(GiveUp("transactor", ErrorCode.PRODUCER_FENCED, None, ()))
    assert "PRODUCER_FENCED and gives up its work, though nothing went wrong" in found("refused", scene)
    scene.injected["crash"] = 1
    assert found("refused", scene) == ""


def test_without_faults_all_is_acknowledged_and_every_transaction_ends(scene: Scene) -> None:
    (aborted,) = [each for each in scene.history.attempts if each.outcome is Outcome.ABORTED]
    aborted.outcome = Outcome.UNKNOWN
    assert f"transaction {aborted.number} of transactor has not ended" in found("refused", scene)
    aborted.outcome = Outcome.ABORTED
    write = a_write(scene, plain)
    write.acknowledged = False
    assert f"producer is not told that record {write.value} is stored in t-0" in found("refused", scene)


def test_a_record_of_an_aborted_transaction_is_an_aborted_read(scene: Scene) -> None:
    (aborted,) = [each for each in scene.history.attempts if each.outcome is Outcome.ABORTED]
    reading(scene).polled.append(Polled(50, aborted.values[0]))
    assert f"transaction {aborted.number}" in found("G1a", scene)


def test_a_part_of_a_transaction_is_a_torn_transaction(scene: Scene) -> None:
    write = a_write(scene, lambda each: each.attempt is not None and each.attempt.outcome == "committed")
    reading(scene).polled = [each for each in reading(scene).polled if each.value != write.value]
    assert f"not [{write.value}]" in found("torn-transaction", scene)


def test_two_records_at_one_offset_are_inconsistent_offsets(scene: Scene) -> None:
    first, second, *rest = reading(scene).polled
    reading(scene).polled = [Polled(first.offset, second.value), Polled(second.offset, first.value), *rest]
    assert f"at {first.offset} of t-0" in found("inconsistent-offsets", scene)


def test_reading_backwards_is_a_nonmonotonic_poll(scene: Scene) -> None:
    polled = reading(scene).polled
    polled[0], polled[1] = polled[1], polled[0]
    assert "at 0 after 1" in found("nonmonotonic-poll", scene)


def test_a_log_that_ends_before_what_was_read_is_a_nonmonotonic_poll(scene: Scene) -> None:
    reading(scene).cut_off.append((3, 5))
    assert "below 5, and then it ended at 3" in found("nonmonotonic-poll", scene)


def test_records_in_another_order_than_sent_are_a_nonmonotonic_send(scene: Scene) -> None:
    write = a_write(scene, plain)
    write.order += 1000
    assert f"before {write.value}" in found("nonmonotonic-send", scene)


def test_offsets_that_are_left_out_are_a_poll_skip(scene: Scene) -> None:
    reading(scene).skipped.append((2, 4))
    assert "from 2 to 4" in found("poll-skip", scene)


def test_whoever_still_has_something_to_do_is_stuck(scene: Scene) -> None:
    scene.settled = False
    scene.world.crash(scene.assignment(PLACE).leader)
    assert "nobody leads t-0" in found("stuck", scene)


# ------------------------------------------------------------------------- checkers that look at every step


def watching(name: str, scene: Scene) -> Checker:
    """A checker that knows all replicas as they are."""
    checker = CHECKERS[name](scene)
    for host, replica in scene.replicas(PLACE):
        checker.on_change(host, PLACE, replica)
    return checker


def look(checker: Checker, node_id: int) -> str:
    host = checker.scene.world.hosts[node_id]
    try:
        checker.on_change(host, PLACE, host.node.partitions[TopicPartition(*PLACE)])
    except Violation as violation:
        return violation.text
    return ""


def test_a_watermark_above_the_end_or_behind_itself_is_seen(scene: Scene) -> None:
    checker = watching("high-watermark", scene)
    leader = scene.leader(PLACE)
    assert leader is not None
    end = leader.high_watermark
    leader.high_watermark = end + 1
    assert f"is {end + 1}, and its log ends at {end}" in look(checker, leader.node_id)
    leader.high_watermark = end - 1
    assert f"went back from {end} to {end - 1}" in look(checker, leader.node_id)


def test_a_watermark_above_what_all_in_sync_have_is_seen(scene: Scene) -> None:
    leader = scene.leader(PLACE)
    assert leader is not None
    follower = next(replica for _, replica in scene.replicas(PLACE) if not replica.is_leader)
    checker = CHECKERS["high-watermark"](scene)
    follower.log.truncate_to(2)
    assert f"broker {follower.node_id}, which is in sync, has only" in look(checker, leader.node_id)


def test_two_leaders_in_one_epoch_are_seen(scene: Scene) -> None:
    checker = watching("one-leader", scene)
    follower = next(replica for _, replica in scene.replicas(PLACE) if not replica.is_leader)
    follower.leader = follower.node_id
    assert "both lead t-0 in epoch" in look(checker, follower.node_id)


def test_a_replica_that_gives_up_what_was_committed_is_seen(scene: Scene) -> None:
    checker = watching("logs-differ", scene)
    follower = next(replica for _, replica in scene.replicas(PLACE) if not replica.is_leader)
    follower.truncate_to(2)
    assert "though everything below" in look(checker, follower.node_id)


def test_replicas_that_differ_below_the_watermark_are_seen(scene: Scene) -> None:
    (first, second, *_), checker = list(scene.replicas(PLACE)), CHECKERS["logs-differ"](scene)
    assert look(checker, first[0].node_id) == ""
    log = second[1].log
    batches = list(log.batches_from(0))
    data = bytearray(log.bytes_from(0, batches[0].size_bytes))
    other = batches[0]._replace(leader_epoch=batches[0].leader_epoch + 7, position=0)
    log.truncate_to(0)
    log.append((other,), memoryview(data))
    second[1].high_watermark = other.next_offset
    assert f"has a batch of epoch {other.leader_epoch} at 0" in look(checker, second[0].node_id)


@pytest.mark.parametrize(("starts_at", "expected"), [(-1, "begins at 9"), (0, "")])
def test_a_batch_that_begins_before_the_log_s_end_is_seen(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, starts_at: int, expected: str
) -> None:
    monkeypatch.setattr(rules, "check_chain", lambda *_: None)  # the log itself would refuse it
    checker = watching("nonmonotonic-log", scene)
    leader = scene.leader(PLACE)
    assert leader is not None
    log = leader.log
    first = next(log.batches_from(0))
    data = bytearray(log.bytes_from(0, first.size_bytes))
    end = log.end_offset
    log.append((first._replace(base_offset=end + starts_at, position=0),), memoryview(data))
    told = look(checker, leader.node_id)
    assert told.endswith(expected)
    assert bool(told) is bool(expected)
    assert look(checker, leader.node_id) == "", "each batch is looked at once"


@pytest.mark.parametrize("lacks", [True, False])
def test_who_enters_the_in_sync_set_without_all_that_was_committed_is_seen(scene: Scene, lacks: bool) -> None:
    watching("in-sync", scene)
    whole = scene.assignment(PLACE)
    follower = next(replica for _, replica in scene.replicas(PLACE) if not replica.is_leader)
    smaller = tuple(each for each in whole.isr if each != follower.node_id)
    scene.world.append(replace(whole, isr=smaller, partition_epoch=whole.partition_epoch + 1))
    end = follower.log.end_offset
    if lacks:
        follower.log.truncate_to(2)
    comes_back = replace(whole, partition_epoch=whole.partition_epoch + 2)
    if not lacks:
        scene.world.append(comes_back)
        return
    with pytest.raises(Violation, match=f"broker {follower.node_id} is in sync again") as found:
        scene.world.append(comes_back)
    assert f"everything below {end} was committed" in found.value.text
    assert found.value.anomaly == "in-sync"


def test_records_that_are_deleted_before_their_time_are_seen(scene: Scene) -> None:
    checker = watching("expired-early", scene)
    leader = scene.leader(PLACE)
    assert leader is not None
    leader.log.advance_start(3)
    assert f"broker {leader.node_id} has deleted record" in look(checker, leader.node_id)


@pytest.mark.parametrize(("kept_ms", "expected"), [("1000000", "ms old"), ("1", "")])
def test_records_may_expire_when_they_are_old_enough(scene: Scene, kept_ms: str, expected: str) -> None:
    checker = watching("expired-early", scene)
    scene.world.run(10_000)
    scene.topics["t"] = replace(scene.topics["t"], configs={"retention.ms": kept_ms})
    leader = scene.leader(PLACE)
    assert leader is not None
    leader.log.advance_start(3)
    told = look(checker, leader.node_id)
    assert told.endswith(expected)
    assert bool(told) is bool(expected)


def test_records_that_somebody_had_deleted_are_not_missed(scene: Scene) -> None:
    checker = watching("expired-early", scene)
    scene.history.deletes(PLACE, 3)
    leader = scene.leader(PLACE)
    assert leader is not None
    leader.log.advance_start(3)
    assert look(checker, leader.node_id) == ""


def test_a_run_tells_what_its_checkers_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_end(checker: Checker) -> None:
        checker.fail("because the test says so")

    monkeypatch.setattr(CHECKERS["unseen"], "at_end", at_end)
    violation = play(CASE).violation
    assert violation is not None
    assert (violation.anomaly, violation.text) == ("unseen", "because the test says so")
