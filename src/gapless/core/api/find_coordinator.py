"""FindCoordinator: which broker coordinates a group or a transactional id.

Version notes: 1 tells groups from transactional ids, 3 is flexible, 4 asks for many at once, 6 knows share
groups (which are not offered here). The internal topic is created when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gapless.core.api.registry import handles
from gapless.core.api.topics import Plan, TopicError, new_topic_records
from gapless.core.changes import Decision
from gapless.core.contract import Request
from gapless.core.coordinators import CONSUMER_OFFSETS, INTERNAL_TOPIC_SHAPES, TRANSACTION_STATE
from gapless.core.shard import shard_of
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from gapless.core.node import Node

TOPIC_OF_KEY_TYPE = {0: CONSUMER_OFFSETS, 1: TRANSACTION_STATE}


@handles(ApiKey.FIND_COORDINATOR, 0, 6)
def find_coordinator(node: Node, request: Request) -> Any | None:
    """The leader of the internal partition that a key belongs to."""
    body: FindCoordinatorRequest = request.body
    topic = TOPIC_OF_KEY_TYPE.get(body.key_type)
    if topic is None or topic in node.image.topics:
        departures = node.membership.departures
        return departures.answer_when_settled(request, lambda: _answer(node, request, topic))

    def decide() -> Decision:
        return Decision(_creation(node, topic), lambda: _answer(node, request, topic))

    node.change(request, decide, failed=lambda _reason: _answer(node, request, topic))
    return None


def _creation(node: Node, topic: str) -> list[Any]:
    if topic in node.image.topics:
        return []
    shape = INTERNAL_TOPIC_SHAPES[topic]
    partitions = node.settings.get(shape.partitions_setting)
    factor = node.settings.get(shape.replication_setting)
    try:
        return list(new_topic_records(node, Plan(node), topic, partitions, factor, {}, shape.configs))
    except TopicError:
        return []  # answered as not available; the client tries again


def _answer(node: Node, request: Request, topic: str | None) -> FindCoordinatorResponse:
    body: FindCoordinatorRequest = request.body
    if request.header.api_version >= 4:
        return FindCoordinatorResponse(
            throttle_time_ms=0, coordinators=[_coordinator(node, topic, key) for key in body.coordinator_keys]
        )
    found = _coordinator(node, topic, body.key)
    return FindCoordinatorResponse(
        throttle_time_ms=0,
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _coordinator(node: Node, topic: str | None, key: str) -> FindCoordinatorResponse.Coordinator:
    error, node_id = ErrorCode.NONE, -1
    if topic is None or (topic == TRANSACTION_STATE and not key):
        error = ErrorCode.INVALID_REQUEST
    elif topic not in node.image.topics:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    else:
        partitions = node.image.topics[topic].partitions
        node_id = partitions[shard_of(key, len(partitions))].leader
    broker = node.image.brokers.get(node_id)
    if broker is None and error is ErrorCode.NONE:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return FindCoordinatorResponse.Coordinator(
        key=key,
        node_id=-1 if broker is None else broker.node_id,
        host="" if broker is None else broker.host,
        port=-1 if broker is None else broker.port,
        error_code=int(error),
        error_message=None if error is ErrorCode.NONE else error.name,
    )
