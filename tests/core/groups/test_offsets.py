"""Committed offsets: who may commit, what is read back, and what is refused."""

from __future__ import annotations

import pytest

from gapless.core.groups.group import GroupState
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import OffsetCommitRequest, OffsetFetchRequest
from tests.core.groups.crowd import REBALANCE_MS, SESSION_MS, Crowd, subscription


@pytest.fixture
def crowd() -> Crowd:
    crowd = Crowd()
    crowd.world.create_topic("t", partitions=3)
    crowd.world.create_topic("u")
    return crowd


@pytest.mark.parametrize("version", range(2, 10))
def test_every_version_commits(crowd: Crowd, version: int) -> None:
    codes = crowd.commit({("t", 0): 5, ("u", 0): 7}, version=version, metadata="here")
    assert codes == [ErrorCode.NONE, ErrorCode.NONE]
    assert crowd.fetch(("t", 0), ("t", 1), ("u", 0)) == {("t", 0): 5, ("t", 1): -1, ("u", 0): 7}


@pytest.mark.parametrize("version", range(1, 10))
def test_every_version_fetches(crowd: Crowd, version: int) -> None:
    crowd.commit({("t", 0): 5, ("u", 0): 7}, metadata="here")
    assert crowd.fetch(("t", 0), ("t", 2), version=version) == {("t", 0): 5, ("t", 2): -1}
    reply = crowd.fetching(("t", 0), version=version).reply
    (part,) = (reply.groups[0] if version >= 8 else reply).topics[0].partitions
    assert part.metadata == "here"
    if version >= 5:
        assert part.committed_leader_epoch == 3
    if version >= 2:
        assert crowd.fetch(version=version, everything=True) == {("t", 0): 5, ("u", 0): 7}


def test_topic_ids_work_as_names_do(crowd: Crowd) -> None:
    topic_id = crowd.world.node.image.topics["t"].topic_id
    unknown = crowd.world.node.new_uuid()
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    part = topic.OffsetCommitRequestPartition(
        partition_index=1, committed_offset=11, committed_leader_epoch=-1, committed_metadata=None
    )
    body = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[
            topic(topic_id=topic_id, partitions=[part]),
            topic(topic_id=unknown, partitions=[part]),
        ],
    )
    reply = crowd.ask(ApiKey.OFFSET_COMMIT, 10, body).reply
    assert [(each.topic_id, each.partitions[0].error_code) for each in reply.topics] == [
        (topic_id, 0),
        (unknown, ErrorCode.UNKNOWN_TOPIC_ID),
    ]
    group = OffsetFetchRequest.OffsetFetchRequestGroup
    wanted = [
        group.OffsetFetchRequestTopics(topic_id=each, partition_indexes=[1]) for each in (topic_id, unknown)
    ]
    for topics in (wanted, None):
        asked = OffsetFetchRequest(groups=[group(group_id="g", topics=topics)], require_stable=False)
        (answer,) = crowd.ask(ApiKey.OFFSET_FETCH, 10, asked).reply.groups
        found = {each.topic_id: each.partitions[0] for each in answer.topics}
        assert found[topic_id].committed_offset == 11
        if topics is not None:
            assert found[unknown].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_many_groups_are_asked_for_at_once(crowd: Crowd) -> None:
    groups = [f"group-{number}" for number in range(6)]
    for number, group in enumerate(groups):
        crowd.commit({("t", 0): number}, group)
    kind = OffsetFetchRequest.OffsetFetchRequestGroup
    asked = [kind(group_id=group, topics=None) for group in [*groups, "nobody"]]
    body = OffsetFetchRequest(groups=asked, require_stable=False)
    answers = crowd.ask(ApiKey.OFFSET_FETCH, 9, body).reply.groups
    assert [answer.group_id for answer in answers] == [*groups, "nobody"]
    found = [answer.topics[0].partitions[0].committed_offset for answer in answers[:-1]]
    assert found == list(range(6))
    assert answers[-1].topics == []


# -------------------------------------------------------------------------------------------- who may commit


def test_a_member_commits_for_its_generation_only(crowd: Crowd) -> None:
    """A consumer that lost its partitions cannot overwrite what their new owner commits (claim E2)."""
    zombie, other = crowd.stable(2)
    assert zombie.commit(10) is ErrorCode.NONE
    crowd.world.advance(SESSION_MS - 1)
    assert other.heartbeat() is ErrorCode.NONE
    crowd.world.advance(1)  # the zombie's session is over
    other.join()
    other.sync({other.member_id: b"all"})
    assert other.commit(20) is ErrorCode.NONE
    assert zombie.commit(15) is ErrorCode.UNKNOWN_MEMBER_ID
    other_generation = other.generation
    assert other.commit(15, generation=other_generation - 1) is ErrorCode.ILLEGAL_GENERATION
    assert crowd.fetch(("t", 0)) == {("t", 0): 20}


def test_a_live_group_takes_no_commits_from_outside(crowd: Crowd) -> None:
    crowd.stable(1)
    assert crowd.commit({("t", 0): 1}) == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_without_members_anybody_may_commit(crowd: Crowd) -> None:
    """Claim E5: an application may keep track of its partitions itself and use the group for offsets only."""
    assert crowd.commit({("t", 0): 1}) == [ErrorCode.NONE]
    (member,) = crowd.stable(1)
    member.leave()
    assert crowd.commit({("t", 0): 2}) == [ErrorCode.NONE]
    assert crowd.group().state is GroupState.EMPTY


def test_a_rebalance_lets_members_commit_what_they_have_done(crowd: Crowd) -> None:
    leader, follower = crowd.stable(2)
    leader.join()
    assert crowd.group().state is GroupState.PREPARING
    assert follower.commit(4) is ErrorCode.NONE


def test_until_it_knows_its_partitions_a_member_cannot_commit(crowd: Crowd) -> None:
    member = crowd.newcomer()
    member.join()
    crowd.world.advance(0)
    member.member_id = member.joining.reply.member_id
    assert member.commit(1) is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("version", "error"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_a_generation_of_a_group_that_is_not_there(crowd: Crowd, version: int, error: ErrorCode) -> None:
    assert crowd.commit({("t", 0): 1}, generation=3, member="me", version=version) == [error]
    assert crowd.list_groups() == []


# ----------------------------------------------------------------------------------------------- refusals


def test_offsets_of_unknown_partitions_are_refused_and_the_others_committed(crowd: Crowd) -> None:
    codes = crowd.commit({("t", 2): 1, ("t", 3): 1, ("t", -1): 1, ("nowhere", 0): 1})
    assert codes == [ErrorCode.NONE] + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 3
    assert crowd.fetch(everything=True) == {("t", 2): 1}


def test_metadata_has_a_limit(crowd: Crowd) -> None:
    assert crowd.commit({("t", 0): 1}, metadata="x" * 4097) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert crowd.commit({("t", 0): 1}, metadata="x" * 4096) == [ErrorCode.NONE]
    assert crowd.commit({("t", 1): 1}, metadata=None) == [ErrorCode.NONE]


def test_a_commit_that_would_make_too_large_a_batch_is_refused() -> None:
    crowd = Crowd(message_max_bytes="5000")
    crowd.world.create_topic("t", partitions=100)
    offsets = {("t", index): 1 for index in range(100)}
    assert set(crowd.commit(offsets)) == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
    assert crowd.fetch(everything=True) == {}


def test_a_commit_is_answered_when_it_is_durable(crowd: Crowd) -> None:
    partition = crowd.state().shard.partition
    partition.config = crowd.world.node.settings.topic_config({"flush.messages": "1"}, {}, {})
    crowd.world.hold_flushes = True
    commit = crowd.committing({("t", 0): 1})
    fetch = crowd.fetching(("t", 0))
    assert not commit.is_answered()
    assert not fetch.is_answered(), "what might be lost in a crash is not told either"
    crowd.world.finish_flushes()
    assert commit.reply.topics[0].partitions[0].error_code == 0
    assert fetch.reply.groups[0].topics[0].partitions[0].committed_offset == 1


def test_a_commit_that_the_disk_loses_is_not_acknowledged(crowd: Crowd) -> None:
    partition = crowd.state().shard.partition
    partition.config = crowd.world.node.settings.topic_config({"flush.messages": "1"}, {}, {})
    crowd.world.hold_flushes = True
    commit = crowd.committing({("t", 0): 1})
    crowd.world.fail_flushes("broken")
    code = commit.reply.topics[0].partitions[0].error_code
    assert code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    reply = crowd.fetching(("t", 0)).reply
    assert reply.groups[0].error_code == ErrorCode.NOT_COORDINATOR


def test_a_commit_that_takes_too_long_sends_the_client_looking_again(crowd: Crowd) -> None:
    partition = crowd.state().shard.partition
    partition.config = crowd.world.node.settings.topic_config({"flush.messages": "1"}, {}, {})
    crowd.world.hold_flushes = True
    commit = crowd.committing({("t", 0): 1})
    many = crowd.fetching(("t", 0))
    crowd.world.advance(5000)
    assert commit.reply.topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert many.reply.groups[0].error_code == ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("version", [1, 2, 7, 8])
def test_where_nobody_coordinates_an_error_is_told_in_every_version(version: int) -> None:
    crowd = Crowd(found=False)
    reply = crowd.fetching(("t", 0), version=version).reply
    if version == 1:
        code = reply.topics[0].partitions[0].error_code
    else:
        code = reply.error_code if version < 8 else reply.groups[0].error_code
    assert code == ErrorCode.NOT_COORDINATOR


# ----------------------------------------------------------------------------------------------- deletion


def test_offsets_of_an_empty_group_can_be_deleted(crowd: Crowd) -> None:
    crowd.commit({("t", 0): 1, ("t", 1): 2, ("u", 0): 3})
    reply = crowd.delete_offsets(("t", 0), ("t", 2), ("nowhere", 0))
    codes = [topic.partitions[0].error_code for topic in reply.topics]
    assert (reply.error_code, codes) == (0, [0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
    assert crowd.fetch(everything=True) == {("t", 1): 2, ("u", 0): 3}


def test_a_live_group_keeps_the_offsets_of_what_it_subscribes_to(crowd: Crowd) -> None:
    crowd.commit({("t", 0): 1, ("u", 0): 3})
    crowd.stable(1, protocols={"range": subscription("t")})
    reply = crowd.delete_offsets(("t", 0), ("u", 0))
    codes = [topic.partitions[0].error_code for topic in reply.topics]
    assert codes == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, 0]
    assert crowd.fetch(everything=True) == {("t", 0): 1}


def test_offsets_of_groups_that_cannot_tell_what_they_use_stay(crowd: Crowd) -> None:
    assert crowd.delete_offsets(("t", 0)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert crowd.delete_offsets(("t", 0), group="").error_code == ErrorCode.INVALID_GROUP_ID
    crowd.stable(1, "connect", protocol_type="connect")
    assert crowd.delete_offsets(("t", 0), group="connect").error_code == ErrorCode.NON_EMPTY_GROUP
    crowd.stable(1, "vague", protocols={"range": b"no subscription"})
    crowd.world.advance(0)
    reply = crowd.delete_offsets(("t", 0), group="vague")
    assert reply.topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def test_deleting_a_topic_deletes_its_offsets_in_all_groups(crowd: Crowd) -> None:
    """What was committed for a topic must not be taken for a later one of the same name."""
    from gapless.wire.messages import DeleteTopicsRequest

    for group in ("g", "h", "i"):
        crowd.commit({("t", 1): 5, ("u", 0): 6}, group)
    body = DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000)
    crowd.world.call(ApiKey.DELETE_TOPICS, 5, body)
    crowd.world.create_topic("t", partitions=3)
    for restarted in (False, True):
        if restarted:
            crowd.restart()
        for group in ("g", "h", "i"):
            assert crowd.fetch(everything=True, group=group) == {("u", 0): 6}


def test_a_crash_right_after_a_topics_deletion_leaves_no_offsets_behind(crowd: Crowd) -> None:
    from gapless.core.records import TopicDeleted

    crowd.commit({("t", 1): 5, ("u", 0): 6})
    topic_id = crowd.world.node.image.topics["t"].topic_id
    crowd.world.journal.append([TopicDeleted(topic_id)])
    crowd.restart()
    crowd.world.create_topic("t", partitions=3)
    assert crowd.fetch(everything=True) == {("u", 0): 6}


# -------------------------------------------------------------------------------------------- administration


def test_groups_are_described_as_they_are(crowd: Crowd) -> None:
    crowd.commit({("t", 0): 1}, "simple")
    leader, follower = crowd.stable(2)
    simple, live, missing = crowd.describe("simple", "g", "nobody")
    assert (simple.group_state, simple.protocol_type, simple.members) == ("Empty", "", [])
    assert (live.group_state, live.protocol_type, live.protocol_data) == ("Stable", "consumer", "range")
    assert [member.member_id for member in live.members] == [leader.member_id, follower.member_id]
    member = live.members[1]
    assert (member.client_id, member.client_host) == ("client", "/127.0.0.1")
    assert bytes(member.member_metadata) == subscription("t")
    assert bytes(member.member_assignment) == b"part-1"
    assert (missing.group_state, missing.error_code) == ("Dead", ErrorCode.GROUP_ID_NOT_FOUND)
    (missing,) = crowd.describe("nobody", version=5)
    assert (missing.group_state, missing.error_code) == ("Dead", 0)
    leader.join()
    (live,) = crowd.describe("g", version=0)
    assert (live.group_state, live.protocol_data) == ("PreparingRebalance", "")


def test_groups_are_listed_by_state_and_type(crowd: Crowd) -> None:
    crowd.commit({("t", 0): 1}, "simple")
    crowd.stable(1, "live")
    assert [(each.group_id, each.protocol_type) for each in crowd.list_groups(version=0)] == [
        ("live", "consumer"),
        ("simple", ""),
    ]
    listed = crowd.list_groups()
    assert [(each.group_state, each.group_type) for each in listed] == [
        ("Stable", "classic"),
        ("Empty", "classic"),
    ]
    assert [each.group_id for each in crowd.list_groups(states=["stable", "Dead"])] == ["live"]
    assert [each.group_id for each in crowd.list_groups(types=["Classic"])] == ["live", "simple"]
    assert crowd.list_groups(types=["consumer"]) == []


def test_only_groups_without_members_are_deleted_with_their_offsets(crowd: Crowd) -> None:
    crowd.commit({("t", 0): 1, ("t", 1): 2}, "simple")
    crowd.stable(1, "live")
    assert crowd.delete("live", "simple", "nobody") == [
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.NONE,
        ErrorCode.GROUP_ID_NOT_FOUND,
    ]
    assert [each.group_id for each in crowd.list_groups()] == ["live"]
    assert crowd.fetch(everything=True, group="simple") == {}
    crowd.restart()
    assert [each.group_id for each in crowd.list_groups()] == ["live"]
    assert crowd.fetch(everything=True, group="simple") == {}


def test_a_rewound_group_reads_again(crowd: Crowd) -> None:
    """Claim E7: rewinding the offset delivers again; nothing in the broker can tell a second time."""
    (member,) = crowd.stable(1)
    assert member.commit(100) is ErrorCode.NONE
    member.leave()
    crowd.world.advance(REBALANCE_MS)
    assert crowd.commit({("t", 0): 40}) == [ErrorCode.NONE]
    assert crowd.fetch(("t", 0)) == {("t", 0): 40}
