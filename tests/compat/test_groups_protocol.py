"""The group protocol message by message: states, fields and error codes are Kafka's.

Everything here holds for Apache Kafka as it does for us (run with `--peer apache`).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from struct import pack
from typing import Any

import pytest
from kafka.protocol.admin.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer.group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)

from gapless.wire.errors import ErrorCode

from .clients import Deadline
from .conftest import NewTopic
from .raw import GROUP, RawClient, connected

SESSION_MS = 6_000
_numbers = itertools.count()


def subscription(*topics: str) -> bytes:
    names = b"".join(pack(">h", len(topic)) + topic.encode() for topic in topics)
    return pack(">hi", 0, len(topics)) + names + pack(">i", -1)


class Member:
    """One client that speaks the group protocol."""

    def __init__(self, client: RawClient, group: str, topic: str, instance: str | None = None) -> None:
        self.client = client
        self.group = group
        self.topic = topic
        self.instance = instance
        self.protocols = {"range": subscription(topic)}
        self.member_id = ""
        self.generation = -1

    def send_join(self, *, version: int = 9, **overrides: Any) -> None:
        values: dict[str, Any] = {
            "group_id": self.group,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": 30_000,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            "protocol_type": "consumer",
            "protocols": [
                JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name, metadata in self.protocols.items()
            ],
            "reason": None,
        }
        self.client.send(JoinGroupRequest(**(values | overrides), version=version))

    def join(self, *, version: int = 9, **overrides: Any) -> Any:
        """Join in two steps if need be; the last reply."""
        self.send_join(version=version, **overrides)
        reply = self.joined()
        if reply.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.send_join(version=version, **overrides)
            reply = self.joined()
        return reply

    def joined(self) -> Any:
        reply = self.client.receive()
        if reply.error_code in (0, ErrorCode.MEMBER_ID_REQUIRED):
            self.member_id = reply.member_id
            self.generation = reply.generation_id
        return reply

    def send_sync(self, assignments: dict[str, bytes] | None = None, **overrides: Any) -> None:
        values: dict[str, Any] = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                for member_id, assignment in (assignments or {}).items()
            ],
        }
        self.client.send(SyncGroupRequest(**(values | overrides), version=5))

    def sync(self, assignments: dict[str, bytes] | None = None, **overrides: Any) -> Any:
        self.send_sync(assignments, **overrides)
        return self.client.receive()

    def heartbeat(self, **overrides: Any) -> ErrorCode:
        values: dict[str, Any] = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
        }
        return ErrorCode(self.client.ask(HeartbeatRequest(**(values | overrides), version=4)).error_code)

    def leave(self) -> Any:
        member = LeaveGroupRequest.MemberIdentity(
            member_id=self.member_id, group_instance_id=self.instance, reason=None
        )
        return self.client.ask(LeaveGroupRequest(group_id=self.group, members=[member], version=5))

    def commit(self, offset: int = 1, *, version: int = 8, **overrides: Any) -> ErrorCode:
        topic = OffsetCommitRequest.OffsetCommitRequestTopic
        partition = {
            "partition_index": overrides.pop("partition", 0),
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": overrides.pop("metadata", "m"),
        }
        values: dict[str, Any] = {
            "group_id": self.group,
            "generation_id_or_member_epoch": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            "topics": [
                topic(
                    name=overrides.pop("topic", self.topic),
                    partitions=[topic.OffsetCommitRequestPartition(**partition)],
                )
            ],
        }
        reply = self.client.ask(OffsetCommitRequest(**(values | overrides), version=version))
        return ErrorCode(reply.topics[0].partitions[0].error_code)

    def describe(self, group: str | None = None, version: int = 5) -> Any:
        asked = DescribeGroupsRequest(
            groups=[group or self.group], include_authorized_operations=False, version=version
        )
        (answer,) = self.client.ask(asked).groups
        return answer


NewMember = Callable[..., Member]


@pytest.fixture
def new_member(bootstrap: str, new_topic: NewTopic) -> Iterator[NewMember]:
    """Members of one group of its own, each with connections of its own; the topic has one partition."""
    topic = new_topic()
    default = f"raw-group-{os.getpid()}-{next(_numbers)}"
    with ExitStack() as connections:

        def make(instance: str | None = None, group: str | None = None) -> Member:
            client = connections.enter_context(connected(bootstrap))
            return Member(client, default if group is None else group, topic, instance)

        yield make


def unknown_group(member: Member) -> str:
    """Return the name of a group that does not exist and has the same coordinator as the member's group."""
    names = (f"nobody-knows-{number}" for number in itertools.count())
    own = member.client.coordinator(GROUP, member.group)
    return next(name for name in names if member.client.coordinator(GROUP, name) is own)


def stable(member: Member) -> Member:
    """A group of one, with its assignment."""
    assert member.join().error_code == 0
    assert member.sync({member.member_id: b"mine"}).error_code == 0
    return member


# ----------------------------------------------------------------------------------------------- the way


def test_a_life_in_a_group(new_member: NewMember) -> None:
    member = new_member()
    member.send_join()
    first = member.joined()
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert first.member_id.startswith("compat-raw-")
    assert (first.generation_id, first.protocol_name, first.leader, first.members) == (-1, None, "", [])
    second = member.join()
    assert (second.error_code, second.generation_id) == (0, 1)
    assert (second.protocol_type, second.protocol_name, second.skip_assignment) == (
        "consumer",
        "range",
        False,
    )
    assert second.leader == second.member_id == first.member_id
    (described,) = second.members
    assert (described.member_id, bytes(described.metadata)) == (
        member.member_id,
        subscription(member.topic),
    )
    assert member.describe().group_state == "CompletingRebalance"
    assert member.commit() is ErrorCode.REBALANCE_IN_PROGRESS
    synced = member.sync({member.member_id: b"mine"})
    assert (synced.error_code, synced.protocol_type, synced.protocol_name) == (0, "consumer", "range")
    assert bytes(synced.assignment) == b"mine"
    assert member.heartbeat() is ErrorCode.NONE
    assert member.commit() is ErrorCode.NONE
    told = member.describe()
    assert (told.group_state, told.protocol_type, told.protocol_data) == ("Stable", "consumer", "range")
    (shown,) = told.members
    assert (shown.member_id, shown.client_id, shown.client_host) == (
        member.member_id,
        "compat-raw",
        "/127.0.0.1",
    )
    assert bytes(shown.member_assignment) == b"mine"
    left = member.leave()
    assert (left.error_code, [each.error_code for each in left.members]) == (0, [0])
    told = member.describe()
    assert (told.group_state, told.protocol_type, told.members) == ("Empty", "consumer", [])
    assert member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_newcomer_makes_the_others_join_again(new_member: NewMember) -> None:
    old, new = stable(new_member()), new_member()
    new.send_join()
    assert new.joined().error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert old.heartbeat() is ErrorCode.NONE, "an id that was given out is no reason to rebalance"
    new.send_join()
    deadline = Deadline("rebalance")
    while old.heartbeat() is not ErrorCode.REBALANCE_IN_PROGRESS:
        deadline.open()
    assert old.sync().error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert old.commit(5) is ErrorCode.NONE, "what it has done it may still commit"
    assert old.describe().group_state == "PreparingRebalance"
    leader = old.join()
    follower = new.joined()
    assert leader.generation_id == follower.generation_id == 2
    assert leader.leader == follower.leader == old.member_id
    assert {member.member_id for member in leader.members} == {old.member_id, new.member_id}
    assert follower.members == []
    new.send_sync()
    assert old.sync({old.member_id: b"0", new.member_id: b"1"}).error_code == 0
    assert bytes(new.client.receive().assignment) == b"1"
    assert new.heartbeat(generation_id=1) is ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize(("version", "leads"), [(9, True), (8, False)])
def test_a_static_member_takes_its_place_again(new_member: NewMember, version: int, leads: bool) -> None:
    former = stable(new_member("box"))
    again = new_member("box")
    reply = again.join(version=version)
    assert (reply.error_code, reply.generation_id) == (0, former.generation)
    assert reply.member_id != former.member_id
    assert reply.leader == (reply.member_id if leads else former.member_id)
    if leads:
        assert reply.skip_assignment is True
        assert len(reply.members) == 1
    assert bytes(again.sync().assignment) == b"mine"
    assert former.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert former.commit() is ErrorCode.FENCED_INSTANCE_ID
    assert former.sync().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert former.join().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert former.leave().members[0].error_code == ErrorCode.FENCED_INSTANCE_ID
    assert again.commit() is ErrorCode.NONE


def test_a_follower_that_joins_again_unchanged_gets_its_generation(new_member: NewMember) -> None:
    leader, follower = stable(new_member()), new_member()
    follower.send_join()
    assert follower.joined().error_code == ErrorCode.MEMBER_ID_REQUIRED
    follower.send_join()
    deadline = Deadline("rebalance")
    while leader.heartbeat() is not ErrorCode.REBALANCE_IN_PROGRESS:
        deadline.open()
    assert leader.join().error_code == follower.joined().error_code == 0
    follower.send_sync()
    leader.sync({})
    assert follower.client.receive().error_code == 0
    generation = follower.generation
    assert follower.join().generation_id == generation
    assert leader.heartbeat() is ErrorCode.NONE


# ---------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("mistake", "error"),
    [
        ({"session_timeout_ms": 10}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 2_000_000}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_who_may_not_join_a_group_that_is_not_there(
    new_member: NewMember, mistake: dict[str, Any], error: ErrorCode
) -> None:
    assert new_member().join(**mistake).error_code == error


@pytest.mark.parametrize(
    ("mistake", "error"),
    [
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "stranger", "group_instance_id": "box"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (
            {"protocols": [JoinGroupRequest.JoinGroupRequestProtocol(name="sticky", metadata=b"")]},
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ),
    ],
)
def test_who_may_not_join_a_live_group(
    new_member: NewMember, mistake: dict[str, Any], error: ErrorCode
) -> None:
    stable(new_member())
    assert new_member().join(**mistake).error_code == error


@pytest.mark.parametrize(
    ("mistake", "error"),
    [
        ({"generation_id": 99}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_id": "nowhere"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_instance_id": "box"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_syncs_and_heartbeats_of_others(
    new_member: NewMember, mistake: dict[str, Any], error: ErrorCode
) -> None:
    member = stable(new_member())
    assert member.heartbeat(**mistake) is error
    assert member.sync(**mistake).error_code == error


@pytest.mark.parametrize("mistake", [{"protocol_type": "connect"}, {"protocol_name": "sticky"}])
def test_a_sync_names_the_protocol_that_was_chosen(new_member: NewMember, mistake: dict[str, Any]) -> None:
    member = stable(new_member())
    assert member.sync(**mistake).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize(
    ("mistake", "error"),
    [
        ({"generation_id_or_member_epoch": 99}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_id_or_member_epoch": -1}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "", "generation_id_or_member_epoch": -1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"topic": "nowhere"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition": 7}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"metadata": "x" * 4097}, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        ({"group_id": "nowhere"}, ErrorCode.ILLEGAL_GENERATION),
        ({"group_id": "nowhere", "version": 9}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_commits_that_must_not_be(new_member: NewMember, mistake: dict[str, Any], error: ErrorCode) -> None:
    assert stable(new_member()).commit(**mistake) is error


def test_what_a_group_without_members_allows(new_member: NewMember) -> None:
    """Claim E5: the low level interface, in which an application keeps its place itself."""
    outsider = new_member()
    assert outsider.commit(5, metadata=None) is ErrorCode.NONE
    assert outsider.describe().protocol_type == ""
    one = OffsetFetchRequest.OffsetFetchRequestTopic
    for version in (1, 5, 7):
        wanted = one(name=outsider.topic, partition_indexes=[0, 9])
        asked = OffsetFetchRequest(
            group_id=outsider.group, topics=[wanted], require_stable=True, version=version
        )
        found = outsider.client.ask(asked).topics[0].partitions
        assert [(each.committed_offset, each.metadata, each.error_code) for each in found] == [
            (5, "", 0),
            (-1, "", 0),
        ]
    many = OffsetFetchRequest.OffsetFetchRequestGroup
    asked = OffsetFetchRequest(
        groups=[many(group_id=name, topics=None) for name in (outsider.group, unknown_group(outsider))],
        require_stable=False,
        version=9,
    )
    known, unknown = outsider.client.ask(asked).groups
    assert [topic.name for topic in known.topics] == [outsider.topic]
    assert (unknown.error_code, unknown.topics) == (0, [])


def test_administration_of_groups_that_live_and_that_are_not_there(new_member: NewMember) -> None:
    member = stable(new_member())
    client = member.client
    for version, expected in ((5, ErrorCode.NONE), (6, ErrorCode.GROUP_ID_NOT_FOUND)):
        missing = member.describe("nobody-knows", version)
        assert (missing.error_code, missing.group_state, missing.members) == (expected, "Dead", [])
    unknown = unknown_group(member)
    deleted = client.ask(DeleteGroupsRequest(groups_names=[member.group, unknown], version=2))
    assert {each.group_id: each.error_code for each in deleted.results} == {
        member.group: ErrorCode.NON_EMPTY_GROUP,
        unknown: ErrorCode.GROUP_ID_NOT_FOUND,
    }
    topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
    places = [
        topic(name=name, partitions=[topic.OffsetDeleteRequestPartition(partition_index=0)])
        for name in (member.topic, "nowhere")
    ]
    reply = client.ask(OffsetDeleteRequest(group_id=member.group, topics=places, version=0))
    assert {each.name: each.partitions[0].error_code for each in reply.topics} == {
        member.topic: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        "nowhere": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    reply = client.ask(OffsetDeleteRequest(group_id="nobody-knows", topics=[places[0]], version=0))
    assert reply.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_groups_are_listed_by_state_and_type(new_member: NewMember) -> None:
    member = stable(new_member())

    def listed(states: list[str], types: list[str]) -> dict[str, tuple[str, str, str]]:
        asked = ListGroupsRequest(states_filter=states, types_filter=types, version=5)
        return {
            each.group_id: (each.protocol_type, each.group_state, each.group_type)
            for each in member.client.coordinator(GROUP, member.group).ask(asked).groups
        }

    expected = ("consumer", "Stable", "classic")
    for states, types in ([], []), (["Stable"], []), (["stable", "empty"], ["Classic"]):
        assert listed(states, types)[member.group] == expected
    for states, types in (["Empty"], []), ([], ["consumer"]), (["Dead"], ["classic"]):
        assert member.group not in listed(states, types)


@pytest.mark.parametrize("version", [0, 2, 3, 5])
def test_leaving_what_one_is_not_in(new_member: NewMember, version: int) -> None:
    member = stable(new_member())
    for group, member_id in ((member.group, "stranger"), ("nobody-knows", member.member_id)):
        identity = LeaveGroupRequest.MemberIdentity(member_id=member_id, group_instance_id=None, reason=None)
        asked = LeaveGroupRequest(group_id=group, member_id=member_id, members=[identity], version=version)
        reply = member.client.ask(asked)
        error = reply.members[0].error_code if version >= 3 else reply.error_code
        assert error == ErrorCode.UNKNOWN_MEMBER_ID
