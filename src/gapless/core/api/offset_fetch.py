"""OffsetFetch: where a group goes on reading.

Version notes: 2 can ask for everything and has an error of its own, 7 can insist on offsets that no open
transaction is about to change, 8 asks for many groups at once, 9 tells a member's epoch, 10 knows topic ids.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from gapless.core.api.group_membership import find_groups
from gapless.core.api.registry import handles
from gapless.core.contract import Request
from gapless.core.groups.answering import Part, answer_together
from gapless.core.groups.state import GroupsState
from gapless.core.shard import CoordinatorError
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.group_records import OffsetKey
from gapless.wire.messages import OffsetFetchRequest, OffsetFetchResponse
from gapless.wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from gapless.core.node import Node

STABLE_FROM = 7
MANY_GROUPS_FROM = 8
TOPIC_IDS_FROM = 10

GroupAnswer = OffsetFetchResponse.OffsetFetchResponseGroup
TopicAnswer = GroupAnswer.OffsetFetchResponseTopics
PartitionAnswer = TopicAnswer.OffsetFetchResponsePartitions
OnlyTopicAnswer = OffsetFetchResponse.OffsetFetchResponseTopic
OnlyPartitionAnswer = OnlyTopicAnswer.OffsetFetchResponsePartition
Partitions = list[PartitionAnswer] | list[OnlyPartitionAnswer]


class Wanted(NamedTuple):
    """Partitions of one topic. `name` is None if the topic's id means nothing here."""

    name: str | None
    topic_id: UUID
    partitions: list[int]


@handles(ApiKey.OFFSET_FETCH, 1, 10)
def offset_fetch(node: Node, request: Request) -> Any | None:
    """The committed offsets of one group or many; -1 where nothing is committed."""
    if request.header.api_version >= MANY_GROUPS_FROM:
        return _fetch_of_many(node, request)
    return _fetch_of_one(node, request)


def _fetch_of_many(node: Node, request: Request) -> Any | None:
    body: OffsetFetchRequest = request.body
    answers: list[GroupAnswer] = []
    parts: list[Part] = []
    for asked in {asked.group_id: asked for asked in body.groups}.values():
        answer = GroupAnswer(group_id=asked.group_id, topics=[], error_code=0)
        answers.append(answer)
        try:
            groups = find_groups(node, asked.group_id, may_be_unnamed=True)
            _check_reader(groups, asked)
        except CoordinatorError as error:
            _fail(answer, error.code)
            continue
        for topic in _wanted(node, groups, asked, request):
            found = [
                _find(groups, asked.group_id, topic, index, body.require_stable, PartitionAnswer)
                for index in dict.fromkeys(topic.partitions)
            ]
            answer.topics.append(_topic_answer(topic, found))
        parts.append(Part(groups.shard, partial(_fail, answer)))
    return answer_together(node, request, OffsetFetchResponse(throttle_time_ms=0, groups=answers), parts)


def _check_reader(groups: GroupsState, asked: OffsetFetchRequest.OffsetFetchRequestGroup) -> None:
    """A member of a group of the newer protocol must be up to date; anybody else may look."""
    group = groups.consumer_groups.get(asked.group_id)
    if group is not None and (asked.member_id is not None or asked.member_epoch >= 0):
        group.check_epoch(asked.member_id or "", asked.member_epoch)


def _topic_answer(topic: Wanted, partitions: list[PartitionAnswer]) -> TopicAnswer:
    return TopicAnswer(name=topic.name or "", topic_id=topic.topic_id, partitions=partitions)


def _fail(answer: GroupAnswer | OffsetFetchResponse, error: ErrorCode) -> None:
    # Not every consumer knows the other code here; this one sends all of them to look for the coordinator.
    known = ErrorCode.NOT_COORDINATOR if error is ErrorCode.COORDINATOR_NOT_AVAILABLE else error
    answer.error_code = int(known)
    answer.topics = []


def _fetch_of_one(node: Node, request: Request) -> Any | None:
    body: OffsetFetchRequest = request.body
    message = OffsetFetchResponse(throttle_time_ms=0, error_code=0, topics=[])
    fail: Callable[[ErrorCode], None] = partial(_fail, message)
    if request.header.api_version < 2:
        fail = partial(_fail_everywhere, message, body)
    try:
        groups = find_groups(node, body.group_id, may_be_unnamed=True)
    except CoordinatorError as error:
        fail(error.code)
        return message
    stable = request.header.api_version >= STABLE_FROM and body.require_stable
    for topic in _wanted(node, groups, body, request):
        found = [
            _find(groups, body.group_id, topic, index, stable, OnlyPartitionAnswer)
            for index in dict.fromkeys(topic.partitions)
        ]
        message.topics.append(OnlyTopicAnswer(name=topic.name or "", partitions=found))
    return answer_together(node, request, message, [Part(groups.shard, fail)])


def _fail_everywhere(message: OffsetFetchResponse, body: OffsetFetchRequest, error: ErrorCode) -> None:
    """In version 1 there is no place for an error but with each partition."""
    message.topics = [
        OnlyTopicAnswer(
            name=topic.name,
            partitions=[
                _answer(OnlyPartitionAnswer, index, error=error) for index in topic.partition_indexes
            ],
        )
        for topic in body.topics or []
    ]


def _wanted(
    node: Node,
    groups: GroupsState,
    asked: OffsetFetchRequest | OffsetFetchRequest.OffsetFetchRequestGroup,
    request: Request,
) -> list[Wanted]:
    """The partitions asked for; without a list, all for which the group has committed something."""
    by_id = request.header.api_version >= TOPIC_IDS_FROM
    if asked.topics is None:
        found = []
        for name, partitions in groups.offsets.of_group(asked.group_id).items():
            topic = node.image.topics.get(name)
            found.append(Wanted(name, ZERO_UUID if topic is None else topic.topic_id, list(partitions)))
        return found
    if not by_id:
        return [Wanted(topic.name, ZERO_UUID, topic.partition_indexes) for topic in asked.topics]
    wanted = []
    for each in asked.topics:
        known = node.topic(None, each.topic_id)
        wanted.append(Wanted(None if known is None else known.name, each.topic_id, each.partition_indexes))
    return wanted


def _find(
    groups: GroupsState, group_id: str, topic: Wanted, partition: int, stable: bool, kind: type[Any]
) -> Any:
    if topic.name is None:
        return _answer(kind, partition, error=ErrorCode.UNKNOWN_TOPIC_ID)
    key = OffsetKey(group_id, topic.name, partition)
    if stable and groups.offsets.is_pending(key):
        return _answer(kind, partition, error=ErrorCode.UNSTABLE_OFFSET_COMMIT)
    commit = groups.offsets.get(key)
    if commit is None:
        return _answer(kind, partition)
    value = commit.value
    return _answer(kind, partition, value.offset, value.leader_epoch, value.metadata)


def _answer(
    kind: type[Any],
    partition: int,
    offset: int = -1,
    leader_epoch: int = -1,
    metadata: str = "",
    error: ErrorCode = ErrorCode.NONE,
) -> Any:
    return kind(
        partition_index=partition,
        committed_offset=offset,
        committed_leader_epoch=leader_epoch,
        metadata=metadata,
        error_code=int(error),
    )
