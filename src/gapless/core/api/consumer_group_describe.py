"""ConsumerGroupDescribe: groups of the newer protocol as an administrator sees them.

Version notes: 1 tells which protocol a member speaks; here all speak the newer one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from gapless.core.api.group_membership import find_groups
from gapless.core.api.registry import handles
from gapless.core.consumer_groups.group import ConsumerGroup, Member
from gapless.core.consumer_groups.heartbeat import preferred_assignor
from gapless.core.contract import Request
from gapless.core.groups.answering import Part, answer_together
from gapless.core.groups.state import GroupsState
from gapless.core.shard import CoordinatorError
from gapless.wire.apis import ApiKey
from gapless.wire.consumer_group_records import Assigned
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import ConsumerGroupDescribeResponse

if TYPE_CHECKING:
    from gapless.core.node import Node

NOT_ASKED = -(2**31)
GROUP_OPERATIONS = sum(1 << operation for operation in (3, 6, 8, 10, 11))
"""Read, delete, describe, and describe and alter configs."""
SPEAKS_NEWER_PROTOCOL = 1

Described = ConsumerGroupDescribeResponse.DescribedGroup
DescribedMember = Described.Member
Assignment = DescribedMember.Assignment


@handles(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1)
def consumer_group_describe(node: Node, request: Request) -> Any | None:
    answers: list[Any] = []
    parts: list[Part] = []
    for group_id in dict.fromkeys(request.body.group_ids):  # once each, however often it is asked for
        try:
            groups = find_groups(node, group_id)
            answer = _describe(node, groups, group_id)
        except CoordinatorError as error:
            answers.append(_failed(group_id, error.code, str(error)))
            continue
        if request.body.include_authorized_operations:
            answer.authorized_operations = GROUP_OPERATIONS
        answers.append(answer)
        parts.append(Part(groups.shard, partial(_undo, answer)))
    message = ConsumerGroupDescribeResponse(throttle_time_ms=0, groups=answers)
    return answer_together(node, request, message, parts)


def _describe(node: Node, groups: GroupsState, group_id: str) -> Any:
    group = groups.consumer_groups.get(group_id)
    if group is None:
        why = "is not a consumer group" if group_id in groups.groups else "not found"
        raise CoordinatorError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {why}.")
    return Described(
        error_code=0,
        error_message=None,
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=preferred_assignor([member.subscription for member in group.members.values()]),
        members=[_describe_member(node, group, member) for member in group.members.values()],
        authorized_operations=NOT_ASKED,
    )


def _describe_member(node: Node, group: ConsumerGroup, member: Member) -> Any:
    told = member.subscription
    return DescribedMember(
        member_id=member.member_id,
        instance_id=told.instance_id,
        rack_id=told.rack_id,
        member_epoch=member.current.epoch,
        client_id=told.client_id,
        client_host=told.client_host,
        subscribed_topic_names=list(told.topics),
        subscribed_topic_regex=told.regex or None,
        assignment=_describe_partitions(node, member.current.assigned),
        target_assignment=_describe_partitions(node, group.targets.get(member.member_id, {})),
        member_type=SPEAKS_NEWER_PROTOCOL,
    )


def _describe_partitions(node: Node, assigned: Assigned) -> Any:
    """Partitions by topic; topics that are gone meanwhile are left out."""
    return Assignment(
        topic_partitions=[
            Assignment.TopicPartitions(
                topic_id=topic_id,
                topic_name=node.image.topics_by_id[topic_id].name,
                partitions=list(partitions),
            )
            for topic_id, partitions in assigned.items()
            if topic_id in node.image.topics_by_id
        ]
    )


def _failed(group_id: str, error: ErrorCode, message: str) -> Any:
    return Described(
        error_code=int(error),
        error_message=message,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=[],
        authorized_operations=NOT_ASKED,
    )


def _undo(answer: Any, error: ErrorCode) -> None:
    answer.error_code = int(error)
    answer.group_state = answer.assignor_name = ""
    answer.members = []
