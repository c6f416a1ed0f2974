"""Groups of the newer protocol beside those of the classic one: offsets, listings, deletion, restarts."""

from __future__ import annotations

from uuid import UUID

import pytest

from gapless.core.consumer_groups.group import GroupState, MemberState
from gapless.core.groups.commits import Committer, NewOffset, commit_in_transaction
from gapless.core.shard import CoordinatorError
from gapless.wire import consumer_group_records as records
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode, MalformedMessage
from gapless.wire.messages import OffsetFetchRequest

from .company import SESSION_MS, Company, Worker

ASKED = OffsetFetchRequest.OffsetFetchRequestGroup
WEEK_MS = 7 * 24 * 3600 * 1000


def fetch_error(company: Company, member_id: str | None, epoch: int) -> ErrorCode:
    asked = ASKED(group_id="g", member_id=member_id, member_epoch=epoch, topics=None)
    body = OffsetFetchRequest(groups=[asked], require_stable=False)
    (answer,) = company.ask(ApiKey.OFFSET_FETCH, 9, body).reply.groups
    return ErrorCode(answer.error_code)


# --------------------------------------------------------------------------------------------- offsets


def test_members_commit_for_their_epoch() -> None:
    company = Company()
    (member,) = company.joined("a")
    offsets = {("t", 0): 5}
    assert company.commit(offsets, member="a", generation=member.epoch, version=9) == [ErrorCode.NONE]
    assert company.commit(offsets, member="a", generation=member.epoch + 1, version=9) == [
        ErrorCode.STALE_MEMBER_EPOCH
    ]
    assert company.commit(offsets, member="b", generation=member.epoch, version=9) == [
        ErrorCode.UNKNOWN_MEMBER_ID
    ]
    assert company.commit(offsets, version=9) == [ErrorCode.UNKNOWN_MEMBER_ID], "the group is in use"
    assert company.fetch(("t", 0)) == {("t", 0): 5}


def test_in_a_transaction_an_outdated_member_is_told_of_its_generation() -> None:
    company = Company()
    (member,) = company.joined("a")
    offsets = [NewOffset("t", 0, 5)]
    for committer, error in (
        (Committer("a", None, member.epoch + 1), ErrorCode.ILLEGAL_GENERATION),
        (Committer("b", None, member.epoch), ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        with pytest.raises(CoordinatorError) as refused:
            commit_in_transaction(company.state(), "g", committer, (1, 0), offsets)
        assert refused.value.code is error


def test_anybody_commits_while_there_are_no_members() -> None:
    company = Company()
    (member,) = company.joined("a")
    member.leave()
    assert company.commit({("t", 0): 5}, version=9) == [ErrorCode.NONE]


def test_members_read_offsets_with_their_epoch() -> None:
    company = Company()
    (member,) = company.joined("a")
    assert fetch_error(company, "a", member.epoch) is ErrorCode.NONE
    assert fetch_error(company, "a", member.epoch - 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert fetch_error(company, "b", member.epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert fetch_error(company, None, -1) is ErrorCode.NONE


def test_offsets_of_topics_in_use_are_not_deleted() -> None:
    company = Company()
    company.world.create_topic("other")
    (member,) = company.joined("a")
    company.commit({("t", 0): 5, ("other", 0): 6}, member="a", generation=member.epoch, version=9)
    reply = company.delete_offsets(("t", 0), ("other", 0))
    codes = [ErrorCode(part.error_code) for topic in reply.topics for part in topic.partitions]
    assert codes == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]
    assert company.fetch(everything=True) == {("t", 0): 5}


def test_an_unused_group_expires_with_its_offsets() -> None:
    company = Company()
    (member,) = company.joined("a")
    company.commit({("t", 0): 5}, member="a", generation=member.epoch, version=9)
    member.leave()
    company.world.advance(WEEK_MS // 2)
    assert company.fetch(("t", 0)) == {("t", 0): 5}
    company.world.advance(WEEK_MS)
    assert company.fetch(("t", 0)) == {("t", 0): -1}
    assert company.list_groups() == []


# ------------------------------------------------------------------------------------------ two protocols


def test_a_group_in_use_belongs_to_its_protocol() -> None:
    company = Company()
    company.stable(1, group="old")
    assert company.member("a", group="old").join().error is ErrorCode.GROUP_ID_NOT_FOUND
    company.joined("a")
    assert company.newcomer("g").join().error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_an_empty_group_may_change_its_protocol_and_keeps_its_offsets() -> None:
    company = Company()
    company.commit({("t", 0): 5})
    (member,) = company.joined("a")
    assert company.fetch(("t", 0)) == {("t", 0): 5}
    assert [group.group_type for group in company.list_groups()] == ["consumer"]
    company.restart()
    assert [group.group_type for group in company.list_groups()] == ["consumer"]
    member.leave()
    company.stable(1)
    assert [group.group_type for group in company.list_groups()] == ["classic"]
    company.restart()
    assert [group.group_type for group in company.list_groups()] == ["classic"]
    assert company.fetch(("t", 0)) == {("t", 0): 5}


def test_each_protocol_describes_its_own_groups() -> None:
    company = Company()
    company.joined("a")
    company.stable(1, group="old")
    (described,) = company.describe("g")
    assert ErrorCode(described.error_code) is ErrorCode.GROUP_ID_NOT_FOUND
    newer, old, missing = company.describe_newer("g", "old", "none")
    assert ErrorCode(old.error_code) is ErrorCode(missing.error_code) is ErrorCode.GROUP_ID_NOT_FOUND
    assert (newer.group_state, newer.group_epoch, newer.assignment_epoch) == ("Stable", 1, 1)
    assert newer.assignor_name == "uniform"
    (member,) = newer.members
    assert (member.member_id, member.member_epoch, member.subscribed_topic_names) == ("a", 1, ["t"])
    (topic,) = member.assignment.topic_partitions
    assert (topic.topic_name, topic.topic_id, topic.partitions) == ("t", company.topic_id, [0, 1, 2, 3])
    (target,) = member.target_assignment.topic_partitions
    assert target.to_dict() == topic.to_dict()


def test_groups_are_listed_by_type_and_state() -> None:
    company = Company()
    company.joined("a")
    company.commit({("t", 0): 1}, "old")
    assert [group.group_id for group in company.list_groups()] == ["g", "old"]
    assert [group.group_id for group in company.list_groups(types=["Consumer"])] == ["g"]
    assert [group.group_id for group in company.list_groups(types=["classic"])] == ["old"]
    assert [group.group_id for group in company.list_groups(states=["Empty"])] == ["old"]


def test_a_group_is_deleted_only_when_nobody_uses_it() -> None:
    company = Company()
    (member,) = company.joined("a")
    assert company.delete("g") == [ErrorCode.NON_EMPTY_GROUP]
    member.leave()
    assert company.delete("g") == [ErrorCode.NONE]
    company.restart()
    assert company.list_groups() == []


# ----------------------------------------------------------------------------------------------- restarts


def test_a_restart_goes_unnoticed() -> None:
    company = Company()
    first, second = company.joined("a", "b")
    before = company.describe_newer("g")
    company.restart()
    assert company.describe_newer("g") == before
    assert first.beat().reply.assignment is None
    assert second.beat().error is ErrorCode.NONE
    assert company.newer().state is GroupState.STABLE


def test_a_restart_amid_a_rebalance_gives_no_partition_to_two() -> None:
    company = Company()
    (first,) = company.joined("a")
    second = company.member("b")
    second.join()
    first.send(first.epoch)
    company.restart()
    assert company.newer().members["a"].current.state == MemberState.UNREVOKED_PARTITIONS
    second.beat()
    assert second.partitions == []
    first.owned = first.owned[:2]
    company.settle_down(first, second)
    assert (len(first.owned), len(second.owned)) == (2, 2)


def test_after_a_restart_sessions_run_again() -> None:
    company = Company()
    first, _ = company.joined("a", "b")
    company.restart()
    company.world.advance(SESSION_MS - 1)
    first.beat()
    company.world.advance(1)
    assert list(company.newer().members) == ["a"]


def test_an_answer_waits_until_what_it_rests_on_is_durable() -> None:
    company = Company()
    partition = company.state().shard.partition
    partition.config = company.world.node.settings.topic_config({"flush.messages": "1"}, {}, {})
    company.world.hold_flushes = True
    pending = Worker(company, "a", ("t",)).join()
    assert not pending.is_answered()
    company.world.finish_flushes()
    assert pending.error is ErrorCode.NONE


# ------------------------------------------------------------------------------------------------- records


def test_records_are_read_back_as_they_were_written() -> None:
    topic_id = UUID(int=7)
    told = records.Subscription("i", "r", "c", "/h", ("a", "b"), "x.*", 300, "range")
    key, value = records.member_subscription("g", "m", told)
    assert records.decode_key(key) == records.ConsumerGroupKey(records.MEMBER, "g", "m")
    assert records.decode_subscription(value or b"") == told
    epoch = records.GroupEpoch(5, -77)
    assert records.decode_group_epoch(records.group_epoch("g", epoch)[1] or b"") == epoch
    assert records.decode_target_epoch(records.target_epoch("g", 9)[1] or b"") == 9
    assert records.decode_target(records.target("g", "m", {topic_id: [1, 2]})[1] or b"") == {topic_id: [1, 2]}
    current = records.CurrentAssignment(3, 2, 1, {topic_id: [0]}, {topic_id: [4]})
    assert records.decode_current(records.current("g", "m", current)[1] or b"") == current


def test_a_torn_record_is_told_from_a_whole_one() -> None:
    current = records.CurrentAssignment(3, 2, 1, {UUID(int=7): [0]}, {})
    key, value = records.current("g", "m", current)
    for end in range(len(key)):
        with pytest.raises(MalformedMessage):
            records.decode_key(key[:end])
    for end in range(len(value or b"") - 1):
        with pytest.raises(MalformedMessage):
            records.decode_current((value or b"")[:end])
    assert records.decode_key(b"\0\4\0\1g") is None
