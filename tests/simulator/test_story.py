"""A failure is told so that a person can follow it, on one screen."""

from __future__ import annotations

import pytest

from gapless.simulator.campaign import mistaken
from gapless.simulator.case import Case, ClientPlan, Step, TopicPlan
from gapless.simulator.noting import Kind
from gapless.simulator.story import JEPSEN, MAX_LINES, Story, tell

# Acknowledged by broker 1 alone, which then dies; broker 2, cut off till then, leads without the record.
LOST = Case(
    seed=6,
    profile="elections",
    brokers=3,
    topics=(TopicPlan("t", 1, 3, {"min.insync.replicas": "2"}),),
    clients=(
        ClientPlan("shop", "producer", {"acks": -1, "idempotent": True}),
        ClientPlan("idle", "producer", {"acks": -1, "idempotent": True}),
    ),
    steps=(
        Step(0, "isolate", (2, 1_000)),
        Step(0, "send", ("shop", "t", 0, 1)),
        Step(10, "crash", (1, 10)),
    ),
    jitter=False,
)


@pytest.fixture
def story() -> Story:
    with mistaken("early-acknowledgement"):
        told, report = tell(LOST)
    assert report.violation is not None
    assert report.violation.anomaly == "lost-write"
    return told


def test_who_did_what_with_the_lost_record_is_told_in_order(story: Story) -> None:
    lines = [f"{line.who} {line.text}" for line in story.lines]
    expected = [
        "t-0 is led by broker 1 in epoch 1, in sync: 1, 2, 3",
        "the network is cut between broker 2 and all others for 1000 ms",
        "shop sends record 0 to t-0",
        "broker 1 stores record 0 in t-0 at 0",
        "shop is told that record 0 is stored in t-0 at 0",
        "broker 1 is killed",
        "t-0 is led by broker 2 in epoch 2, in sync: 2, 3",
        "broker 1 gives up record 0 of t-0, now that broker 2 leads",
    ]
    assert [line for line in lines if line in expected] == expected
    assert [line.at_ms for line in story.lines] == sorted(line.at_ms for line in story.lines)


def test_it_ends_with_the_record_the_name_that_jepsen_has_for_it_and_the_promise(story: Story) -> None:
    record, jepsen, promise = story.ending
    assert record == "lost-write: record 0, acknowledged to shop in t-0 at 0, is gone"
    assert jepsen == f"Jepsen calls it {JEPSEN['lost-write']}."
    assert promise.startswith("The promise was: a record that was acknowledged")


def test_only_what_matters_is_told(story: Story) -> None:
    assert len(story.lines) <= MAX_LINES
    assert not [line for line in story.lines if line.places and ("t", 0) not in line.places]
    assert not [line for line in story.lines if "watermark" in line.text], "no client sees it"
    assert story.stage == [
        "3 brokers",
        "topic t: 1 partition, 3 replicas, min.insync.replicas=2",
        "shop: producer, acks=-1, idempotent=True",
    ]


def test_a_long_run_is_told_in_as_many_lines_as_fit_with_all_its_faults() -> None:
    sends = tuple(Step(at, "send", ("shop", "t", 0, 3)) for at in range(0, 600, 10))
    case = LOST.with_steps(tuple(sorted((*LOST.steps, *sends), key=lambda step: step.at_ms)))
    story, report = tell(case)
    assert report.violation is None
    assert len(story.lines) == MAX_LINES
    assert story.left_out > 0
    whole, _ = tell(case, whole=True)
    assert len(whole.lines) >= len(story.lines) + story.left_out
    assert [line.text for line in story.lines if line.kind is Kind.FAULT] == [
        line.text for line in whole.lines if line.kind is Kind.FAULT
    ]
    assert story.ending == ["Every promise was kept."]


def test_what_was_seen_inside_the_brokers_is_followed_to_what_a_client_suffers() -> None:
    """The record reaches one follower, the other is elected: first only the watermark is wrong."""
    case = LOST.with_steps(
        (
            Step(0, "one-way", (1, 2, 1_000)),
            Step(0, "send", ("shop", "t", 0, 1)),
            Step(20, "crash", (1, 1_000)),
        )
    )
    with mistaken("hw-of-the-fastest"):
        story, report = tell(case)
    assert report.violation is not None
    assert report.violation.anomaly == "high-watermark"
    *_, harm, name = story.ending
    assert harm.startswith("If the run goes on, clients see it as lost-write: record 0, acknowledged to shop")
    assert name == f"Jepsen calls that {JEPSEN['lost-write']}."


def test_what_is_wrong_inside_may_harm_nobody() -> None:
    case = LOST.with_steps((Step(0, "one-way", (1, 2, 1_000)), Step(0, "send", ("shop", "t", 0, 1))))
    with mistaken("hw-of-the-fastest"):
        story, _ = tell(case)
    assert story.ending[-1].startswith("If the run goes on, all is well in the end")


def texts(story: Story) -> list[str]:
    return [f"{line.who} {line.text}" for line in story.lines]


def test_what_was_given_up_is_told_before_who_led() -> None:
    """The wrong copy is made because the follower gave up the right one, and the other way round."""
    case = Case(
        seed=5,
        profile="leaders",
        brokers=3,
        topics=(TopicPlan("t", 1, 3, {"min.insync.replicas": "2"}),),
        clients=(
            ClientPlan("plain-0", "producer", {"acks": 1, "idempotent": False}),
            ClientPlan("plain-1", "producer", {"acks": 0, "idempotent": False}),
            ClientPlan("idempotent", "producer", {"acks": -1, "idempotent": True}),
            ClientPlan("reader", "consumer", {"committed_only": True}),
        ),
        steps=(
            Step(0, "send", ("plain-0", "t", 0, 1)),
            Step(10, "crash", (1, 10)),
            Step(10, "crash", (3, 10)),
            Step(20, "send", ("plain-0", "t", 0, 3)),
            Step(30, "to-and-fro", ("t", 0, 10, True)),
            Step(130, "send", ("idempotent", "t", 0, 3)),
            Step(130, "to-and-fro", ("t", 0, 10, True)),
            Step(130, "send", ("plain-1", "t", 0, 4)),
        ),
        jitter=False,
        settings={"leader.imbalance.check.interval.seconds": "1"},
        harm_only=True,
    )
    with mistaken("same-leader-no-truncation"):
        story, report = tell(case)
    assert report.violation is not None
    assert report.violation.anomaly == "inconsistent-offsets"
    assert story.left_out > 0
    told = texts(story)
    assert "broker 3 gives up records 7 to 10 of t-0, now that broker 2 leads" in told
    assert "broker 3 gives up records 1 to 6 of t-0, now that broker 1 leads" in told


def test_who_ended_a_transaction_and_by_whose_request_is_told() -> None:
    case = Case(
        seed=6,
        profile="late",
        brokers=3,
        topics=(TopicPlan("t", 1, 3, {"min.insync.replicas": "2"}),),
        clients=(
            ClientPlan("shop", "transactional", {"transactional_id": "x", "newer": True}),
            ClientPlan("reader", "consumer", {"committed_only": True}),
        ),
        steps=(
            Step(0, "transact", ("shop", (("t", 0, 1),), True)),
            Step(100, "transact", ("shop", (("t", 0, 1),), True)),
            Step(102, "late-request", ("shop", "coordinator", 60)),
            Step(120, "transact", ("shop", (("t", 0, 1),), False)),
        ),
        jitter=False,
    )
    with mistaken("one-epoch-for-all"):
        story, report = tell(case)
    assert report.violation is not None
    assert report.violation.anomaly == "G1a"
    expected = [
        "shop begins transaction 1, to be committed: 1 to t-0",
        "broker 1 commits transaction 1 of shop, as asked",
        "broker 1 stores the commit of transaction 1 of shop in t-0 at 3",
        "shop begins transaction 2, to be aborted: 1 to t-0",
        "broker 1 gets the late end of transaction 1 of shop",
        "broker 1 commits transaction 2 of shop, by the late request of shop for transaction 1",
        "broker 1 stores the commit of transaction 2 of shop in t-0 at 5",
    ]
    assert [line for line in texts(story) if line in expected] == expected
    (second,) = [line for line in story.lines if "begins transaction 2" in line.text]
    assert second.at_ms > 120, "it is told when it begins, and not when that is asked for"
