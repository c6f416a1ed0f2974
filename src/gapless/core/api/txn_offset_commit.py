"""TxnOffsetCommit: a group's offsets as part of a transaction (claim C8); they show when it commits.

Version notes: 3 knows members and generations, so that a consumer that lost its partitions cannot commit for
them (KIP-447); from 5 on the broker adds the partition with the offsets to the transaction itself (KIP-890).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gapless.core.api.group_membership import find_groups
from gapless.core.api.registry import handles
from gapless.core.contract import Request
from gapless.core.groups.commits import Committer, NewOffset, commit_in_transaction
from gapless.core.groups.replies import coordinator_error
from gapless.core.groups.state import GroupsState
from gapless.core.shard import CoordinatorError
from gapless.core.transactions.joining import Joined, Joining, join
from gapless.core.transactions.replies import offsets_error
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse

if TYPE_CHECKING:
    from gapless.core.node import Node

KNOWS_MEMBERS_FROM = 3
BROKER_ADDS_FROM = 5

TopicResult = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
PartitionResult = TopicResult.TxnOffsetCommitResponsePartition


@handles(ApiKey.TXN_OFFSET_COMMIT, 0, 5)
def txn_offset_commit(node: Node, request: Request) -> Any | None:
    """Commit offsets of partitions that exist; the others are refused one by one."""
    return _OffsetCommit(node, request).begin()


class _OffsetCommit:
    """One request, and its reply in the making."""

    def __init__(self, node: Node, request: Request) -> None:
        self._node = node
        self._request = request
        self._body: TxnOffsetCommitRequest = request.body
        self._version = request.header.api_version
        self._producer = self._body.producer_id, self._body.producer_epoch
        self._offsets: list[NewOffset] = []
        self._places: list[PartitionResult] = []
        topics = [self._take_topic(topic) for topic in self._body.topics]
        self._message = TxnOffsetCommitResponse(throttle_time_ms=0, topics=topics)

    def _take_topic(self, asked: TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic) -> TopicResult:
        topic = self._node.topic(asked.name, None)
        places = []
        for part in asked.partitions:
            index = part.partition_index
            place = PartitionResult(partition_index=index, error_code=0)
            places.append(place)
            if topic is None or not 0 <= index < len(topic.partitions):
                place.error_code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                continue
            epoch = part.committed_leader_epoch if self._version >= 2 else -1
            new = NewOffset(asked.name, index, part.committed_offset, epoch, part.committed_metadata)
            self._offsets.append(new)
            self._places.append(place)
        return TopicResult(name=asked.name, partitions=places)

    def begin(self) -> TxnOffsetCommitResponse | None:
        """The reply if nothing is left to do; else it follows."""
        if not self._offsets:
            return self._message
        try:
            groups = find_groups(self._node, self._body.group_id)
        except CoordinatorError as error:
            return self._failed(error.code)
        partition = groups.shard.partition
        if partition.producers.has_open(*self._producer):
            self._commit(groups)
            return None

        def joined(decisions: Joined) -> None:
            decision = decisions[partition.name]
            error = decision if isinstance(decision, ErrorCode) else partition.admission_error(decision)
            if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                error = ErrorCode.NOT_COORDINATOR
            if error:
                self._node.reply(self._request, self._failed(offsets_error(error, self._version)))
            else:
                self._commit(groups)

        adds = self._version >= BROKER_ADDS_FROM
        joining = Joining(self._body.transactional_id, self._producer, [partition.name], adds)
        join(self._node, joining, joined)
        return None

    def _commit(self, groups: GroupsState) -> None:
        committer = Committer()
        if self._version >= KNOWS_MEMBERS_FROM:
            committer = Committer(
                self._body.member_id, self._body.group_instance_id, self._body.generation_id
            )
        try:
            groups.shard.check_ready()
            results = commit_in_transaction(
                groups, self._body.group_id, committer, self._producer, self._offsets
            )
        except CoordinatorError as error:
            self._node.reply(self._request, self._failed(error.code))
            return
        for place, result in zip(self._places, results, strict=True):
            place.error_code = int(result)
        groups.shard.answer(
            self._request, self._message, failed=lambda error: self._failed(coordinator_error(error))
        )

    def _failed(self, error: ErrorCode) -> TxnOffsetCommitResponse:
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and self._version < 2:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE  # old clients do not know the other
        for place in self._places:
            place.error_code = int(error)
        return self._message
