"""Joining, sharing, moving and leaving in groups of the newer protocol."""

from __future__ import annotations

from typing import Any

import pytest

from gapless.core.consumer_groups.group import GroupState
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import CreatePartitionsRequest

from .company import REBALANCE_MS, SESSION_MS, Company


def test_the_first_member_gets_everything_with_its_first_heartbeat() -> None:
    company = Company()
    member = company.member("a")
    reply = member.join().reply
    assert (reply.member_id, reply.member_epoch, reply.heartbeat_interval_ms) == ("a", 1, 5000)
    assert member.partitions == [0, 1, 2, 3]
    assert company.newer().state is GroupState.STABLE


def test_a_partition_moves_only_after_its_owner_has_given_it_up() -> None:
    company = Company()
    first, second = company.member("a"), company.member("b")
    first.join()
    second.join()
    assert second.partitions == []
    kept = [place for place in first.owned if place[1] in (0, 1)]
    assert first.send(first.epoch).reply.assignment is not None  # it is asked to give up two
    assert company.newer().state is GroupState.RECONCILING
    second.beat()
    assert second.partitions == [], "the first has not said yet that it gave up anything"
    first.owned = kept
    first.beat()
    second.beat()
    assert (first.partitions, second.partitions) == ([0, 1], [2, 3])
    assert first.epoch == second.epoch == 2
    assert company.newer().state is GroupState.STABLE


def test_no_partition_ever_has_two_owners_while_members_come_and_go() -> None:
    company = Company(partitions=12)
    members = [company.member(name) for name in "abcde"]
    for count, member in enumerate(members, 1):
        member.join()
        for _ in range(4):
            for each in members[:count]:
                each.beat()
                owned = [place for other in members[:count] for place in other.owned]
                assert len(owned) == len(set(owned))
    assert sorted(len(member.owned) for member in members) == [2, 2, 2, 3, 3]
    members[0].leave()
    company.settle_down(*members[1:])
    assert sorted(len(member.owned) for member in members[1:]) == [3, 3, 3, 3]


def test_an_assignment_is_told_only_when_it_changes() -> None:
    company = Company()
    (member,) = company.joined("a")
    assert member.beat().reply.assignment is None
    full = member.beat(rebalance_timeout_ms=REBALANCE_MS, subscribed_topic_names=["t"]).reply
    assert full.assignment is not None, "whoever tells everything may have missed the last answer"


def test_who_leaves_passes_on_its_partitions() -> None:
    company = Company()
    first, second = company.joined("a", "b")
    reply = first.send(-1).reply
    assert (reply.member_epoch, reply.heartbeat_interval_ms) == (-1, 0)
    company.settle_down(second)
    assert second.partitions == [0, 1, 2, 3]
    assert first.send(first.epoch).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_who_is_silent_for_a_session_is_out() -> None:
    company = Company()
    first, second = company.joined("a", "b")
    company.world.advance(SESSION_MS - 1)
    second.beat()
    company.world.advance(1)
    assert list(company.newer().members) == ["b"]
    company.settle_down(second)
    assert second.partitions == [0, 1, 2, 3]
    assert first.beat().error is ErrorCode.UNKNOWN_MEMBER_ID


def test_who_does_not_give_up_partitions_in_time_is_out() -> None:
    company = Company()
    (first,) = company.joined("a")
    second = company.member("b")
    second.join()
    first.send(first.epoch)
    for _ in range(3):
        company.world.advance(REBALANCE_MS // 3)
        first.send(first.epoch)  # alive, but it says nothing of what it has
        second.beat()
    assert list(company.newer().members) == ["b"]
    company.settle_down(second)
    assert second.partitions == [0, 1, 2, 3]


def test_a_lost_answer_does_not_fence_a_member() -> None:
    company = Company()
    first = company.member("a")
    first.join()
    company.joined("b")
    first.send(first.epoch, topic_partitions=[])  # the answer, with a new epoch, is lost
    assert company.newer().members["a"].current.epoch > first.epoch
    assert first.send(first.epoch, topic_partitions=[]).error is ErrorCode.NONE


@pytest.mark.parametrize("difference", [1, -2])
def test_a_wrong_epoch_is_fenced(difference: int) -> None:
    company = Company()
    first, second = company.joined("a", "b")
    third = company.member("c")
    third.join()
    company.settle_down(first, second, third)
    assert first.send(first.epoch + difference, topic_partitions=[]).error is ErrorCode.FENCED_MEMBER_EPOCH


def test_new_partitions_and_new_topics_are_shared_out() -> None:
    company = Company()
    first, second = company.joined("a", "b", topics=("t", "later"))
    topic = CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=6, assignments=None)
    body = CreatePartitionsRequest(topics=[topic], timeout_ms=1000, validate_only=False)
    company.world.call(ApiKey.CREATE_PARTITIONS, 3, body)
    company.settle_down(first, second)
    assert len(first.owned) == len(second.owned) == 3
    later = company.world.create_topic("later", 2)
    company.settle_down(first, second)
    assert sorted(topic_id == later for topic_id, _ in first.owned) == [False, False, False, True]


def test_a_large_group_pauses_between_two_assignments() -> None:
    company = Company(partitions=1200)
    first, second = company.member("a"), company.member("b")
    first.join()
    second.join()
    assert (second.epoch, second.partitions) == (1, [])
    assert company.newer().state is GroupState.ASSIGNING
    company.world.advance(1201 // 12)
    company.settle_down(first, second)
    assert len(first.owned) == len(second.owned) == 600


def test_a_changed_subscription_is_followed() -> None:
    company = Company()
    other = company.world.create_topic("other", 2)
    (member,) = company.joined("a")
    member.beat(subscribed_topic_names=["other"])
    company.settle_down(member)
    assert member.owned == [(other, 0), (other, 1)]


def test_a_regular_expression_picks_topics_also_later_ones() -> None:
    company = Company()
    company.world.create_topic("sales-eu", 1)
    member = company.member("a", topics=None, regex="sales-.*")
    member.join()
    assert len(member.owned) == 1
    company.world.create_topic("sales-us", 2)
    company.settle_down(member)
    assert len(member.owned) == 3


def test_the_range_assignor_gives_ranges() -> None:
    company = Company(partitions=5)
    first, second = company.joined("a", "b", assignor="range")
    assert (first.partitions, second.partitions) == ([0, 1, 2], [3, 4])


# ---------------------------------------------------------------------------------------------- static


def test_a_static_member_comes_back_to_its_partitions() -> None:
    company = Company()
    first, second = company.joined("a", instance="one") + company.joined("b")
    company.settle_down(first, second)
    had = first.partitions
    epoch = company.newer().epoch
    assert first.leave(-2) is ErrorCode.NONE
    again = company.member("c", instance="one")
    again.join()
    assert again.partitions == had
    assert company.newer().epoch == epoch, "nobody else has to move anything"
    assert list(company.newer().members) == ["b", "c"]
    assert first.beat().error is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_members_place_cannot_be_taken_while_it_is_there() -> None:
    company = Company()
    company.joined("a", instance="one")
    assert company.member("b", instance="one").join().error is ErrorCode.UNRELEASED_INSTANCE_ID


def test_a_static_member_that_does_not_come_back_is_out_after_its_session() -> None:
    company = Company()
    (member,) = company.joined("a", instance="one")
    member.leave(-2)
    company.world.advance(SESSION_MS)
    assert company.newer().state is GroupState.EMPTY


# ------------------------------------------------------------------------------------------- hostile input


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": "x" * 20_000}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": ["x" * 1000] * 300}, ErrorCode.NONE),
        ({"subscribed_topic_names": [f"{n:01000}" for n in range(300)]}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "mine"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "(a"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": "((a{100}){100}){100}"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], error: ErrorCode) -> None:
    company = Company()
    pending = company.member("a").join(**fields)
    assert pending.error is error
    assert error is ErrorCode.NONE or pending.reply.error_message


@pytest.mark.parametrize("epoch", [-3, 1])
def test_a_stranger_cannot_begin_with_another_epoch(epoch: int) -> None:
    error = Company().member("a").send(epoch).error
    assert error is (ErrorCode.INVALID_REQUEST if epoch < 0 else ErrorCode.GROUP_ID_NOT_FOUND)


def test_before_version_1_the_broker_gives_out_ids() -> None:
    member = Company().member("", version=0)
    assert member.join().error is ErrorCode.NONE
    assert len(member.member_id) == 36


def test_a_full_group_takes_nobody_else() -> None:
    company = Company(group_consumer_max_size="2")
    first, _ = company.joined("a", "b")
    assert company.member("c").join().error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert first.beat().error is ErrorCode.NONE


def test_past_the_bound_on_memory_nobody_is_taken() -> None:
    company = Company(group_coordinator_state_max_bytes=str(2**20))
    names = [f"{n:0250}" for n in range(400)]
    errors = [company.member(f"m{n}", names).join().error for n in range(12)]
    assert errors[0] is ErrorCode.NONE
    assert errors[-1] is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_leaving_gives_back_all_memory() -> None:
    company = Company()
    before = company.state().held.size_bytes
    members = company.joined("a", "b", "c")
    for member in members:
        member.leave()
    assert company.delete("g") == [ErrorCode.NONE]
    assert company.state().held.size_bytes == before
