"""Members of groups as tests steer them: each says one thing at a time, through real bytes.

Every request is encoded and decoded as on the wire, and so is every reply, in the version that is asked for:
what a rule answers must also be something that can be sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import pack
from typing import Any

from gapless.core.contract import Request
from gapless.core.coordinators import CONSUMER_OFFSETS
from gapless.core.groups.group import Group
from gapless.core.groups.state import GroupsState, groups_of
from gapless.core.shard import shard_of
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from gapless.wire.request import RequestHeader, decode_body, encode_reply
from tests.core.harness import World

RESPONSES: dict[ApiKey, Any] = {
    ApiKey.JOIN_GROUP: JoinGroupResponse,
    ApiKey.SYNC_GROUP: SyncGroupResponse,
    ApiKey.HEARTBEAT: HeartbeatResponse,
    ApiKey.LEAVE_GROUP: LeaveGroupResponse,
    ApiKey.OFFSET_COMMIT: OffsetCommitResponse,
    ApiKey.OFFSET_FETCH: OffsetFetchResponse,
    ApiKey.OFFSET_DELETE: OffsetDeleteResponse,
    ApiKey.DESCRIBE_GROUPS: DescribeGroupsResponse,
    ApiKey.LIST_GROUPS: ListGroupsResponse,
    ApiKey.DELETE_GROUPS: DeleteGroupsResponse,
}
SESSION_MS = 10_000
REBALANCE_MS = 30_000


def subscription(*topics: str) -> bytes:
    """What a consumer that subscribes to these topics says of itself."""
    names = b"".join(pack(">h", len(topic)) + topic.encode() for topic in topics)
    return pack(">hi", 0, len(topics)) + names + pack(">i", -1)


class Pending:
    """A request that may still be waiting for its reply."""

    def __init__(self, crowd: Crowd, key: ApiKey, version: int, request: Request) -> None:
        self._crowd = crowd
        self._key = key
        self._version = version
        self.request = request

    def is_answered(self) -> bool:
        return self._crowd.world.answered(self.request)

    @property
    def reply(self) -> Any:
        """The reply as the client reads it; fails if there is none yet."""
        message = self._crowd.world.reply(self.request)
        (frame,) = encode_reply(self.request.header, message)
        assert isinstance(frame, bytes | bytearray)
        response = RESPONSES[self._key]
        start = 9 if response.flexible_version_q(self._version) else 8
        return response.decode(bytes(frame[start:]), version=self._version)

    @property
    def error(self) -> ErrorCode:
        return ErrorCode(self.reply.error_code)


class Crowd:
    """A broker and everybody who talks to its groups."""

    def __init__(self, *, found: bool = True, seed: int = 7, **settings: str) -> None:
        settings.setdefault("offsets_topic_num_partitions", "2")
        options: dict[str, Any] = dict(settings)
        self.world = World(seed=seed, **options)
        self.connections = 100
        self._requests: list[Request] = []  # kept, because the harness knows them by identity
        if found:
            self.find_coordinator()

    def find_coordinator(self) -> None:
        body = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
        self.world.call(ApiKey.FIND_COORDINATOR, 4, body)
        self.world.advance(0)  # the shards load

    def restart(self) -> None:
        """The broker dies and comes back; its groups are read back from the log."""
        self.crash()
        self.world.advance(0)

    def crash(self) -> None:
        """The broker dies and comes back, and has not read back its groups yet."""
        replies = self.world.replies
        self.world.restart()
        self.world.replies.update(replies)  # what clients have been told they know

    def ask(
        self, key: ApiKey, version: int, body: Any, connection: int = 1, client_id: str = "test"
    ) -> Pending:
        header = RequestHeader(int(key), version, 0, client_id)
        decoded = decode_body(header, memoryview(bytearray(body.encode(version=version))), 0)
        request = Request(connection, header, decoded, "/127.0.0.1")
        self._requests.append(request)
        self.world.replies.pop(id(request), None)  # of a forgotten one at the same address
        self.world.step(request)
        return Pending(self, key, version, request)

    # -------------------------------------------------------------------------------------------- members

    def newcomer(self, group: str = "g", **options: Any) -> Consumer:
        self.connections += 1
        return Consumer(self, group, self.connections, **options)

    def stable(self, size: int, group: str = "g", **options: Any) -> list[Consumer]:
        """A stable group of so many members, the leader first."""
        members = [self.newcomer(group, **options) for _ in range(size)]
        self.settle(*members)
        return members

    def settle(self, *members: Consumer) -> None:
        """Let all of them join, and the leader assign `part-0`, `part-1`, …"""
        for member in members:
            member.join()
        self.world.advance(0)
        for member in members:  # newcomers have made those before them join again
            generation = self.group(member.group).generation
            if member.joining.is_answered() and member.joining.reply.generation_id != generation:
                member.join()
        self.world.advance(0)
        for member in members:
            assert member.joining.error is ErrorCode.NONE, member.joining.error
            member.member_id = member.joining.reply.member_id
        leader = next(member for member in members if member.leads)
        for member in members:
            if member is not leader:
                member.sync()
        leader.sync({member.member_id: f"part-{n}".encode() for n, member in enumerate(members)})
        for member in members:
            assert member.syncing.error is ErrorCode.NONE

    # --------------------------------------------------------------------------------------- administration

    def state(self, group: str = "g") -> GroupsState:
        partitions = self.world.node.image.topics[CONSUMER_OFFSETS].partitions
        index = shard_of(group, len(partitions))
        return groups_of(self.world.node.shards[CONSUMER_OFFSETS, index])

    def group(self, group: str = "g") -> Group:
        return self.state(group).groups[group]

    def describe(self, *groups: str, version: int = 6) -> list[Any]:
        body = DescribeGroupsRequest(groups=list(groups), include_authorized_operations=False)
        found: list[Any] = self.ask(ApiKey.DESCRIBE_GROUPS, version, body).reply.groups
        return found

    def list_groups(
        self, states: Sequence[str] = (), types: Sequence[str] = (), version: int = 5
    ) -> list[Any]:
        body = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
        reply = self.ask(ApiKey.LIST_GROUPS, version, body).reply
        assert not reply.error_code
        return sorted(reply.groups, key=lambda listed: str(listed.group_id))

    def delete(self, *groups: str, version: int = 2) -> list[ErrorCode]:
        reply = self.ask(ApiKey.DELETE_GROUPS, version, DeleteGroupsRequest(groups_names=list(groups))).reply
        assert [result.group_id for result in reply.results] == list(groups)
        return [ErrorCode(result.error_code) for result in reply.results]

    # -------------------------------------------------------------------------------------------- offsets

    def commit(
        self,
        offsets: Mapping[tuple[str, int], int],
        group: str = "g",
        *,
        member: str = "",
        instance: str | None = None,
        generation: int = -1,
        metadata: str | None = "",
        version: int = 8,
        retention_ms: int = -1,
    ) -> list[ErrorCode]:
        """Commit; the codes in the order of the offsets."""
        pending = self.committing(
            offsets,
            group,
            member=member,
            instance=instance,
            generation=generation,
            metadata=metadata,
            version=version,
            retention_ms=retention_ms,
        )
        return [ErrorCode(part.error_code) for topic in pending.reply.topics for part in topic.partitions]

    def committing(
        self,
        offsets: Mapping[tuple[str, int], int],
        group: str = "g",
        *,
        member: str = "",
        instance: str | None = None,
        generation: int = -1,
        metadata: str | None = "",
        version: int = 8,
        retention_ms: int = -1,
    ) -> Pending:
        topic_type = OffsetCommitRequest.OffsetCommitRequestTopic
        body = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member,
            group_instance_id=instance,
            retention_time_ms=retention_ms,
            topics=[
                topic_type(
                    name=topic,
                    partitions=[
                        topic_type.OffsetCommitRequestPartition(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_leader_epoch=3,
                            commit_timestamp=-1,
                            committed_metadata=metadata,
                        )
                    ],
                )
                for (topic, partition), offset in offsets.items()
            ],
        )
        return self.ask(ApiKey.OFFSET_COMMIT, version, body)

    def fetch(
        self,
        *wanted: tuple[str, int],
        group: str = "g",
        version: int = 9,
        stable: bool = False,
        everything: bool = False,
    ) -> dict[tuple[str, int], Any]:
        """What is committed, by topic and partition: offsets, or error codes. -1 where there is nothing."""
        reply = self.fetching(
            *wanted, group=group, version=version, stable=stable, everything=everything
        ).reply
        if version >= 8:
            (answer,) = reply.groups
            assert answer.group_id == group
            reply = answer
        assert version < 2 or not reply.error_code, ErrorCode(reply.error_code)
        return {
            (topic.name, part.partition_index): ErrorCode(part.error_code)
            if part.error_code
            else part.committed_offset
            for topic in reply.topics
            for part in topic.partitions
        }

    def fetching(
        self,
        *wanted: tuple[str, int],
        group: str = "g",
        version: int = 9,
        stable: bool = False,
        everything: bool = False,
    ) -> Pending:
        many = OffsetFetchRequest.OffsetFetchRequestGroup
        if version >= 8:
            topics = [many.OffsetFetchRequestTopics(name=name, partition_indexes=[p]) for name, p in wanted]
            asked = many(
                group_id=group, member_id=None, member_epoch=-1, topics=None if everything else topics
            )
            body = OffsetFetchRequest(groups=[asked], require_stable=stable)
        else:
            one = OffsetFetchRequest.OffsetFetchRequestTopic
            only = [one(name=name, partition_indexes=[partition]) for name, partition in wanted]
            body = OffsetFetchRequest(
                group_id=group, topics=None if everything else only, require_stable=stable
            )
        return self.ask(ApiKey.OFFSET_FETCH, version, body)

    def delete_offsets(self, *wanted: tuple[str, int], group: str = "g") -> Any:
        topic_type = OffsetDeleteRequest.OffsetDeleteRequestTopic
        body = OffsetDeleteRequest(
            group_id=group,
            topics=[
                topic_type(
                    name=name,
                    partitions=[topic_type.OffsetDeleteRequestPartition(partition_index=partition)],
                )
                for name, partition in wanted
            ],
        )
        return self.ask(ApiKey.OFFSET_DELETE, 0, body).reply


class Consumer:
    """One process that takes part in a group."""

    def __init__(
        self,
        crowd: Crowd,
        group: str,
        connection: int,
        *,
        instance: str | None = None,
        protocols: Mapping[str, bytes] | None = None,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        version: int = 9,
        client_id: str = "client",
    ) -> None:
        self.crowd = crowd
        self.group = group
        self.connection = connection
        self.instance = instance
        self.protocols = dict(protocols if protocols is not None else {"range": subscription("t")})
        self.protocol_type = protocol_type
        self.session_ms = session_ms
        self.rebalance_ms = rebalance_ms
        self.version = version
        self.client_id = client_id
        self.member_id = ""
        self.joining: Pending
        self.syncing: Pending

    def join(self) -> Pending:
        """Join, if need be in two steps: first for an id, then with it."""
        self.joining = self.send_join()
        if self.joining.is_answered() and self.joining.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = self.joining.reply.member_id
            self.joining = self.send_join()
        return self.joining

    def send_join(self) -> Pending:
        body = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=self.rebalance_ms,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type=self.protocol_type,
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name, metadata in self.protocols.items()
            ],
            reason="a test",
        )
        return self.crowd.ask(ApiKey.JOIN_GROUP, self.version, body, self.connection, self.client_id)

    @property
    def generation(self) -> int:
        generation: int = self.joining.reply.generation_id
        return generation

    @property
    def leads(self) -> bool:
        reply = self.joining.reply
        self.member_id = reply.member_id
        return bool(reply.leader == reply.member_id)

    def sync(
        self, assignments: Mapping[str, bytes] | None = None, *, version: int = 5, **overrides: Any
    ) -> Pending:
        values: dict[str, Any] = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id or self.joining.reply.member_id,
            "group_instance_id": self.instance,
            "protocol_type": self.protocol_type,
            "protocol_name": self.joining.reply.protocol_name,
            "assignments": [
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                for member_id, assignment in (assignments or {}).items()
            ],
        }
        body = SyncGroupRequest(**(values | overrides))
        self.syncing = self.crowd.ask(ApiKey.SYNC_GROUP, version, body, self.connection)
        return self.syncing

    def heartbeat(self, *, generation: int | None = None, version: int = 4) -> ErrorCode:
        body = HeartbeatRequest(
            group_id=self.group,
            generation_id=self.generation if generation is None else generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
        )
        return self.crowd.ask(ApiKey.HEARTBEAT, version, body, self.connection).error

    def leave(self, *, version: int = 5) -> ErrorCode:
        member = LeaveGroupRequest.MemberIdentity(
            member_id=self.member_id, group_instance_id=self.instance, reason="a test"
        )
        body = LeaveGroupRequest(group_id=self.group, member_id=self.member_id, members=[member])
        reply = self.crowd.ask(ApiKey.LEAVE_GROUP, version, body, self.connection).reply
        return ErrorCode(reply.error_code or (reply.members[0].error_code if version >= 3 else 0))

    def commit(self, offset: int, **overrides: Any) -> ErrorCode:
        values = {"member": self.member_id, "instance": self.instance, "generation": self.generation}
        (code,) = self.crowd.commit({("t", 0): offset}, self.group, **(values | overrides))
        return code
