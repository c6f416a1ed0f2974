"""ElectLeaders: give partitions back to their first replicas, or let anybody lead what nobody leads.

Version 0 knows the first kind only. Asked for all partitions, those are left out that need no election.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gapless.core.api.refusals import Refusal
from gapless.core.api.registry import handles
from gapless.core.changes import Decision
from gapless.core.contract import Request
from gapless.core.membership.decisions import can_be_preferred, preferred, unclean_line
from gapless.core.membership.elections import NOBODY, Election, elected_uncleanly, sealed
from gapless.core.records import MetadataRecord, PartitionChanged
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import ElectLeadersRequest, ElectLeadersResponse

if TYPE_CHECKING:
    from gapless.core.node import Node

PREFERRED, UNCLEAN = 0, 1
TopicAnswer = ElectLeadersResponse.ReplicaElectionResult
Answer = TopicAnswer.PartitionResult


@handles(ApiKey.ELECT_LEADERS, 0, 2)
def elect_leaders(node: Node, request: Request) -> ElectLeadersResponse | None:
    """Elect where it is needed; each partition has its own verdict."""
    body: ElectLeadersRequest = request.body
    kind = body.election_type if request.header.api_version >= 1 else PREFERRED
    if kind not in (PREFERRED, UNCLEAN):
        return ElectLeadersResponse(
            throttle_time_ms=0, error_code=int(ErrorCode.INVALID_REQUEST), replica_election_results=[]
        )

    def decide() -> Decision:
        records: list[MetadataRecord] = []
        lines: list[str] = []
        topics: dict[str, TopicAnswer] = {}
        for name, index in _wanted(node, body):
            try:
                before, election = _elect(node, kind, name, index)
                record = sealed(before, election.partition)
                records.extend([record] if record is not None else [])
                lines.extend([unclean_line(name, before, election.partition)] if election.unclean else [])
                answer = Answer(partition_id=index, error_code=0, error_message=None)
            except Refusal as error:
                if body.topic_partitions is None and error.code is ErrorCode.ELECTION_NOT_NEEDED:
                    continue
                answer = Answer(partition_id=index, error_code=int(error.code), error_message=str(error))
            topics.setdefault(name, TopicAnswer(topic=name, partition_result=[])).partition_result.append(
                answer
            )

        def reply() -> ElectLeadersResponse:
            for line in lines:
                node.tell(line, is_problem=True)
            return ElectLeadersResponse(
                throttle_time_ms=0, error_code=0, replica_election_results=list(topics.values())
            )

        return Decision(records, reply)

    def failed(_reason: str) -> ElectLeadersResponse:
        code = int(ErrorCode.UNKNOWN_SERVER_ERROR)
        return ElectLeadersResponse(throttle_time_ms=0, error_code=code, replica_election_results=[])

    node.change(request, decide, failed)
    return None


def _wanted(node: Node, body: ElectLeadersRequest) -> Iterator[tuple[str, int]]:
    if body.topic_partitions is None:
        for topic in node.image.topics.values():
            yield from ((topic.name, partition.partition) for partition in topic.partitions)
    else:
        yield from dict.fromkeys(
            (asked.topic, index) for asked in body.topic_partitions for index in asked.partitions
        )


def _elect(node: Node, kind: int, name: str, index: int) -> tuple[PartitionChanged, Election]:
    topic = node.image.topics.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {name}-{index}.")
    partition = topic.partitions[index]
    if kind == PREFERRED:
        if partition.leader == partition.replicas[0]:
            raise Refusal(ErrorCode.ELECTION_NOT_NEEDED, "The preferred replica leads already.")
        if not can_be_preferred(node.image, partition):
            raise Refusal(
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                f"Broker {partition.replicas[0]} is not live and in sync.",
            )
        return partition, Election(preferred(partition))
    if partition.leader != NOBODY:
        raise Refusal(ErrorCode.ELECTION_NOT_NEEDED, f"Broker {partition.leader} leads already.")
    election = elected_uncleanly(partition, node.image.is_live, node.membership.policy(name))
    if election.partition.leader == NOBODY:
        raise Refusal(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "None of the replicas is live.")
    return partition, election
