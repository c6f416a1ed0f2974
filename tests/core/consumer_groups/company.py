"""Members of groups of the newer protocol as tests steer them, each heartbeat through real bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gapless.core.consumer_groups.group import ConsumerGroup
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tests.core.groups.crowd import RESPONSES, Crowd, Pending

RESPONSES[ApiKey.CONSUMER_GROUP_HEARTBEAT] = ConsumerGroupHeartbeatResponse
RESPONSES[ApiKey.CONSUMER_GROUP_DESCRIBE] = ConsumerGroupDescribeResponse

SESSION_MS = 45_000
REBALANCE_MS = 30_000


class Company(Crowd):
    """A broker with a topic `t` of four partitions, and members of the newer protocol."""

    def __init__(self, partitions: int = 4, **settings: str) -> None:
        super().__init__(found=True, **settings)  # type: ignore[arg-type]
        self.topic_id = self.world.create_topic("t", partitions)

    def member(self, member_id: str, topics: Sequence[str] | None = ("t",), **options: Any) -> Worker:
        return Worker(self, member_id, topics, **options)

    def joined(self, *member_ids: str, **options: Any) -> list[Worker]:
        """Members that have all that they are to have."""
        members = [self.member(member_id, **options) for member_id in member_ids]
        for member in members:
            member.join()
        self.settle_down(*members)
        return members

    def settle_down(self, *members: Worker) -> None:
        """Heartbeats until nothing changes any more."""
        for _ in range(10):
            before = [(member.epoch, list(member.owned)) for member in members]
            for member in members:
                member.beat()
            if before == [(member.epoch, list(member.owned)) for member in members]:
                return
        raise AssertionError("the group does not settle down")

    def newer(self, group: str = "g") -> ConsumerGroup:
        return self.state(group).consumer_groups.groups[group]

    def describe_newer(self, *groups: str, version: int = 1) -> list[Any]:
        body = ConsumerGroupDescribeRequest(group_ids=list(groups), include_authorized_operations=True)
        found: list[Any] = self.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, version, body).reply.groups
        return found


class Worker:
    """One consumer. What it is told to have it has at once, unless it is told to be slow."""

    def __init__(
        self,
        company: Company,
        member_id: str,
        topics: Sequence[str] | None,
        *,
        group: str = "g",
        instance: str | None = None,
        assignor: str | None = None,
        regex: str | None = None,
        version: int = 1,
    ) -> None:
        self.company = company
        self.member_id = member_id
        self.topics = topics
        self.group = group
        self.instance = instance
        self.assignor = assignor
        self.regex = regex
        self.version = version
        self.epoch = 0
        self.owned: list[tuple[Any, int]] = []

    @property
    def partitions(self) -> list[int]:
        return sorted(partition for _, partition in self.owned)

    def send(self, epoch: int, **fields: Any) -> Pending:
        values = {"group_id": self.group, "member_id": self.member_id, "member_epoch": epoch} | fields
        if self.instance is not None:
            values.setdefault("instance_id", self.instance)
        body = ConsumerGroupHeartbeatRequest(**values)
        return self.company.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, self.version, body)

    def join(self, **fields: Any) -> Pending:
        self.owned = []
        values: dict[str, Any] = {
            "rebalance_timeout_ms": REBALANCE_MS,
            "subscribed_topic_names": None if self.topics is None else list(self.topics),
            "server_assignor": self.assignor,
            "topic_partitions": [],
        }
        if self.regex is not None:
            values["subscribed_topic_regex"] = self.regex
        return self._take(self.send(0, **(values | fields)))

    def beat(self, **fields: Any) -> Pending:
        """Tell what it has, and take over what it is told."""
        fields.setdefault("topic_partitions", self.owned_by_topic())
        return self._take(self.send(self.epoch, **fields))

    def owned_by_topic(self) -> list[Any]:
        kind = ConsumerGroupHeartbeatRequest.TopicPartitions
        topics = {topic_id: [p for t, p in self.owned if t == topic_id] for topic_id, _ in self.owned}
        return [kind(topic_id=topic_id, partitions=parts) for topic_id, parts in topics.items()]

    def _take(self, pending: Pending) -> Pending:
        if pending.is_answered() and pending.error is ErrorCode.NONE:
            reply = pending.reply
            self.member_id = reply.member_id
            self.epoch = reply.member_epoch
            if reply.assignment is not None:
                self.owned = [
                    (t.topic_id, p) for t in reply.assignment.topic_partitions for p in t.partitions
                ]
        return pending

    def leave(self, epoch: int = -1) -> ErrorCode:
        return self.send(epoch).error
