"""OffsetCommit and OffsetDelete: how far a group has come.

Version notes: OffsetCommit 2 to 4 may say how long offsets are kept, 7 knows static members, 9 tells a group
that is missing from a wrong generation, 10 knows topic ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gapless.core.api.group_membership import find_groups
from gapless.core.api.registry import handles
from gapless.core.contract import Request
from gapless.core.groups.commits import Committer, NewOffset, commit, delete_offsets
from gapless.core.groups.replies import coordinator_error
from gapless.core.shard import CoordinatorError
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.group_records import OffsetKey
from gapless.wire.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
)

if TYPE_CHECKING:
    from gapless.core.node import Node

TOPIC_IDS_FROM = 10

CommitTopic = OffsetCommitResponse.OffsetCommitResponseTopic
CommitPartition = CommitTopic.OffsetCommitResponsePartition
DeleteTopic = OffsetDeleteResponse.OffsetDeleteResponseTopic
DeletePartition = DeleteTopic.OffsetDeleteResponsePartition


# ------------------------------------------------------------------------------------------------ commit


@handles(ApiKey.OFFSET_COMMIT, 2, 10)
def offset_commit(node: Node, request: Request) -> Any | None:
    """Commit offsets of partitions that exist; the others are refused one by one."""
    body: OffsetCommitRequest = request.body
    answer = _CommitAnswer(node, request)
    if not answer.offsets:
        return answer.message
    try:
        groups = find_groups(node, body.group_id, may_be_unnamed=True)
        results = commit(
            groups,
            body.group_id,
            Committer(body.member_id, body.group_instance_id, body.generation_id_or_member_epoch),
            answer.offsets,
            expire_timestamp_ms=_expires_ms(node, request),
            group_missing=(
                ErrorCode.GROUP_ID_NOT_FOUND
                if request.header.api_version >= 9
                else ErrorCode.ILLEGAL_GENERATION
            ),
        )
    except CoordinatorError as error:
        return answer.failed(error.code)
    answer.set(results)
    groups.shard.answer(request, answer.message, failed=lambda error: answer.failed(coordinator_error(error)))
    return None


def _expires_ms(node: Node, request: Request) -> int:
    retention_ms: int = request.body.retention_time_ms if request.header.api_version <= 4 else -1
    return -1 if retention_ms == -1 else node.now_ms + retention_ms


class _CommitAnswer:
    """The reply in the order of the request, and the offsets in it that can be committed."""

    def __init__(self, node: Node, request: Request) -> None:
        by_id = request.header.api_version >= TOPIC_IDS_FROM
        self.offsets: list[NewOffset] = []
        self._places: list[CommitPartition] = []
        topics = []
        for asked in request.body.topics:
            topic = node.topic(None, asked.topic_id) if by_id else node.topic(asked.name, None)
            unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            partitions = []
            for part in asked.partitions:
                place = CommitPartition(partition_index=part.partition_index, error_code=0)
                partitions.append(place)
                if topic is None:
                    place.error_code = int(unknown)
                elif not 0 <= part.partition_index < len(topic.partitions):
                    place.error_code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                else:
                    self._places.append(place)
                    self.offsets.append(
                        NewOffset(
                            topic.name,
                            part.partition_index,
                            part.committed_offset,
                            part.committed_leader_epoch,
                            part.committed_metadata,
                        )
                    )
            if by_id:
                topics.append(CommitTopic(topic_id=asked.topic_id, partitions=partitions))
            else:
                topics.append(CommitTopic(name=asked.name, partitions=partitions))
        self.message = OffsetCommitResponse(throttle_time_ms=0, topics=topics)

    def set(self, results: list[ErrorCode]) -> None:
        for place, result in zip(self._places, results, strict=True):
            place.error_code = int(result)

    def failed(self, error: ErrorCode) -> OffsetCommitResponse:
        """The reply if nothing could be committed."""
        self.set([error for _ in self._places])
        return self.message


# ------------------------------------------------------------------------------------------------ delete


@handles(ApiKey.OFFSET_DELETE, 0, 0)
def offset_delete(node: Node, request: Request) -> Any | None:
    """Delete committed offsets of topics that the group does not consume (any more)."""
    body: OffsetDeleteRequest = request.body
    places: list[DeletePartition] = []
    keys: list[OffsetKey] = []
    topics = []
    for asked in body.topics:
        topic = node.topic(asked.name, None)
        partitions = []
        for part in asked.partitions:
            place = DeletePartition(partition_index=part.partition_index, error_code=0)
            partitions.append(place)
            if topic is None or not 0 <= part.partition_index < len(topic.partitions):
                place.error_code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                places.append(place)
                keys.append(OffsetKey(body.group_id, topic.name, part.partition_index))
        topics.append(DeleteTopic(name=asked.name, partitions=partitions))
    try:
        groups = find_groups(node, body.group_id)
        results = delete_offsets(groups, body.group_id, keys)
    except CoordinatorError as error:
        return _deletion_failed(error.code)
    for place, result in zip(places, results, strict=True):
        place.error_code = int(result)
    message = OffsetDeleteResponse(throttle_time_ms=0, error_code=0, topics=topics)
    groups.shard.answer(request, message, failed=lambda error: _deletion_failed(coordinator_error(error)))
    return None


def _deletion_failed(error: ErrorCode) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(throttle_time_ms=0, error_code=int(error), topics=[])
