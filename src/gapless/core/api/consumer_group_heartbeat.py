"""ConsumerGroupHeartbeat: how members of groups of the newer protocol join, stay and leave (KIP-848).

Version notes: from 1 on clients choose their member ids and may subscribe by a regular expression.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gapless.core.api.group_membership import find_groups
from gapless.core.api.registry import handles
from gapless.core.consumer_groups.heartbeat import Answer, heartbeat
from gapless.core.contract import Request
from gapless.core.groups.replies import coordinator_error
from gapless.core.shard import CoordinatorError
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import ConsumerGroupHeartbeatResponse

if TYPE_CHECKING:
    from gapless.core.node import Node

Assignment = ConsumerGroupHeartbeatResponse.Assignment


@handles(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1)
def consumer_group_heartbeat(node: Node, request: Request) -> Any | None:
    try:
        if not request.body.group_id:
            raise CoordinatorError(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
        groups = find_groups(node, request.body.group_id)
        answer = heartbeat(groups, request)
    except CoordinatorError as error:
        return _refusal(error.code, str(error))
    groups.shard.answer(request, _reply(node, answer), failed=_failure)
    return None


def _reply(node: Node, answer: Answer) -> ConsumerGroupHeartbeatResponse:
    interval_ms = node.settings.get("group.consumer.heartbeat.interval.ms") if answer.is_member else 0
    assignment = None
    if answer.assignment is not None:
        assignment = Assignment(
            topic_partitions=[
                Assignment.TopicPartitions(topic_id=topic_id, partitions=list(partitions))
                for topic_id, partitions in answer.assignment.items()
            ]
        )
    return ConsumerGroupHeartbeatResponse(
        throttle_time_ms=0,
        error_code=0,
        error_message=None,
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=interval_ms,
        assignment=assignment,
    )


def _failure(error: ErrorCode) -> ConsumerGroupHeartbeatResponse:
    told = coordinator_error(error)
    return _refusal(told, told.name)


def _refusal(error: ErrorCode, message: str) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        throttle_time_ms=0,
        error_code=int(error),
        error_message=message,
        member_id=None,
        member_epoch=0,
        heartbeat_interval_ms=0,
        assignment=None,
    )
