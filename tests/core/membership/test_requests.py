"""What clients can ask of a cluster: its brokers and leaders, elections, moves of partitions (A6, D6)."""

from __future__ import annotations

from collections import Counter
from typing import Any

from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import (
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    ListPartitionReassignmentsRequest,
    MetadataRequest,
)
from tests.core.cluster_harness import ClusterWorld
from tests.core.harness import batch


def ask(world: ClusterWorld, node_id: int, key: ApiKey, version: int, body: Any) -> Any:
    answer = world.send(node_id, key, version, body)
    world.run_until(lambda: answer.done, 1000)
    world.run(5)
    return answer.message


def guarded(brokers: int = 3) -> ClusterWorld:
    return ClusterWorld(brokers, min_insync_replicas="2")


def metadata(world: ClusterWorld, node_id: int) -> Any:
    body = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    return ask(world, node_id, ApiKey.METADATA, 12, body)


def create(world: ClusterWorld, node_id: int, partitions: int, factor: int, name: str = "t") -> Any:
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=factor, assignments=[], configs=[]
    )
    body = CreateTopicsRequest(topics=[topic], timeout_ms=1000, validate_only=False)
    return ask(world, node_id, ApiKey.CREATE_TOPICS, 7, body).topics[0]


def reassign(
    world: ClusterWorld,
    replicas: list[int] | None,
    *,
    node_id: int = 2,
    version: int = 0,
    resize: bool = True,
) -> ErrorCode:
    topic_type = AlterPartitionReassignmentsRequest.ReassignableTopic
    partition = topic_type.ReassignablePartition(partition_index=0, replicas=replicas)
    body = AlterPartitionReassignmentsRequest(
        timeout_ms=1000,
        allow_replication_factor_change=resize,
        topics=[topic_type(name="t", partitions=[partition])],
    )
    message = ask(world, node_id, ApiKey.ALTER_PARTITION_REASSIGNMENTS, version, body)
    return ErrorCode(message.responses[0].partitions[0].error_code)


def elect(world: ClusterWorld, kind: int, node_id: int = 2, *, everything: bool = False) -> list[ErrorCode]:
    topic = ElectLeadersRequest.TopicPartitions(topic="t", partitions=[0])
    body = ElectLeadersRequest(
        election_type=kind, topic_partitions=None if everything else [topic], timeout_ms=1000
    )
    message = ask(world, node_id, ApiKey.ELECT_LEADERS, 2, body)
    return [
        ErrorCode(result.error_code)
        for topic in message.replica_election_results
        for result in topic.partition_result
    ]


def test_metadata_names_live_brokers_the_controller_and_who_is_offline() -> None:
    world = guarded()
    world.create_topic()
    world.crash(1)
    world.run(10_000)  # clients may hear of a broker a little longer than it lives
    for node_id in (2, 3):
        message = metadata(world, node_id)
        assert [broker.node_id for broker in message.brokers] == [2, 3]
        assert message.controller_id == 2
        (partition,) = message.topics[0].partitions
        assert (partition.leader_id, partition.isr_nodes, partition.offline_replicas) == (2, [2, 3], [1])
        assert partition.error_code == 0


def test_the_fenced_are_named_to_those_who_ask() -> None:
    world = ClusterWorld(3)
    world.crash(3)
    world.run(20)
    for fenced, expected in ((False, [(1, False), (2, False)]), (True, [(1, False), (2, False), (3, True)])):
        body = DescribeClusterRequest(include_fenced_brokers=fenced, endpoint_type=1)
        message = ask(world, 2, ApiKey.DESCRIBE_CLUSTER, 2, body)
        assert [(b.broker_id, b.is_fenced) for b in message.brokers] == expected
        assert message.controller_id == 1


def test_a_partition_that_nobody_leads_is_told_with_those_who_could() -> None:
    world = guarded()
    world.create_topic(replicas=(1, 2))
    world.crash(1)
    world.crash(2)
    world.run(50)
    (partition,) = metadata(world, 3).topics[0].partitions
    assert partition.error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert (partition.leader_id, partition.isr_nodes, partition.offline_replicas) == (-1, [], [1, 2])
    body = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=100, cursor=None)
    (partition,) = ask(world, 3, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, body).topics[0].partitions
    assert partition.eligible_leader_replicas == [1, 2]
    assert len(partition.last_known_elr) == 1


def test_any_broker_creates_topics_and_spreads_them_evenly() -> None:
    world = ClusterWorld(3)
    assert create(world, 3, 6, 3).error_code == 0
    partitions = [world.assignment(partition=index) for index in range(6)]
    assert Counter(p.leader for p in partitions) == {1: 2, 2: 2, 3: 2}
    assert Counter(p.replicas[:2] for p in partitions) == Counter({p.replicas[:2]: 1 for p in partitions})
    assert create(world, 1, 1, 3, "u").error_code == 0
    assert create(world, 1, 1, 3, "v").error_code == 0
    assert world.assignment("u").leader != world.assignment("v").leader, "topics take turns, too"


def test_a_fenced_broker_gets_new_replicas_only_if_the_live_ones_do_not_suffice() -> None:
    world = ClusterWorld(3)
    create(world, 1, 2, 2)
    world.crash(3)
    world.run(20)
    assert create(world, 1, 4, 2, "u").error_code == 0
    assert all(3 not in world.assignment("u", index).replicas for index in range(4))
    assert create(world, 1, 1, 3, "v").error_code == 0
    placed = world.assignment("v", 0)
    assert (sorted(placed.replicas), sorted(placed.isr), placed.replicas[-1]) == ([1, 2, 3], [1, 2], 3)
    assert create(world, 1, 1, 4, "w").error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    topic = CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=5, assignments=None)
    body = CreatePartitionsRequest(topics=[topic], timeout_ms=1000, validate_only=False)
    assert ask(world, 1, ApiKey.CREATE_PARTITIONS, 3, body).results[0].error_code == 0
    assert all(3 not in world.assignment("t", index).replicas for index in range(2, 5))


def test_a_manual_assignment_to_a_dead_broker_begins_without_it() -> None:
    world = ClusterWorld(3)
    world.crash(3)
    world.run(20)
    topic_type = CreateTopicsRequest.CreatableTopic
    for replicas, code in (([3, 1], 0), ([3], ErrorCode.INVALID_REPLICA_ASSIGNMENT)):
        placed = topic_type.CreatableReplicaAssignment(partition_index=0, broker_ids=replicas)
        topic = topic_type(
            name=f"t{len(replicas)}",
            num_partitions=-1,
            replication_factor=-1,
            assignments=[placed],
            configs=[],
        )
        body = CreateTopicsRequest(topics=[topic], timeout_ms=1000, validate_only=False)
        assert ask(world, 1, ApiKey.CREATE_TOPICS, 7, body).topics[0].error_code == code
    assert (world.assignment("t2").leader, world.assignment("t2").isr) == (1, (1,))


# -------------------------------------------------------------------------------------------- ElectLeaders


def test_the_preferred_leader_is_elected_on_request() -> None:
    world = ClusterWorld(3)
    world.create_topic(leader=3)
    assert elect(world, 0) == [ErrorCode.NONE]
    assert (world.assignment().leader, world.assignment().leader_epoch) == (1, 1)
    assert elect(world, 0) == [ErrorCode.ELECTION_NOT_NEEDED]
    assert elect(world, 0, everything=True) == []


def test_a_preferred_leader_out_of_sync_is_not_elected() -> None:
    world = ClusterWorld(3)
    world.create_topic()
    world.crash(1)
    world.run(20)
    assert elect(world, 0) == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]


def test_an_unclean_election_on_request_is_told() -> None:
    """D6: whoever asks for it gets availability, and hears what it costs."""
    world = ClusterWorld(3)
    world.create_topic(isr=(1,))
    assert elect(world, 1) == [ErrorCode.ELECTION_NOT_NEEDED]
    world.isolate(2)
    world.isolate(3)
    world.change(isr=(1,))
    world.crash(1)
    world.run(20)
    assert world.assignment().leader == -1
    assert elect(world, 1) == [ErrorCode.NONE]
    assert any("unclean" in line for line in world.hosts[2].told)
    assert world.assignment().leader == 2


def test_allowing_unclean_elections_elects_at_once() -> None:
    world = ClusterWorld(3)
    world.create_topic(replicas=(3, 1), isr=(3,))
    world.crash(3)
    world.run(20)
    world.change(leader=-1, isr=(), eligible=(3,), last_leader=3)
    world.run(5)
    resource_type = IncrementalAlterConfigsRequest.AlterConfigsResource
    config = resource_type.AlterableConfig(
        name="unclean.leader.election.enable", config_operation=0, value="true"
    )
    resource = resource_type(resource_type=2, resource_name="t", configs=[config])
    body = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    assert ask(world, 2, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body).responses[0].error_code == 0
    world.run(10)
    assert world.assignment().leader == 1
    assert any("unclean" in line for line in world.hosts[1].told)


def test_a_lower_floor_ends_eligibility() -> None:
    world = guarded()
    world.create_topic(replicas=(1, 2))
    world.crash(2)
    world.run(20)
    assert world.assignment().eligible == (2,)
    resource_type = IncrementalAlterConfigsRequest.AlterConfigsResource
    config = resource_type.AlterableConfig(name="min.insync.replicas", config_operation=0, value="1")
    resource = resource_type(resource_type=2, resource_name="t", configs=[config])
    body = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    assert ask(world, 3, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body).responses[0].error_code == 0
    assert world.assignment().eligible == ()


# ---------------------------------------------------------------------------------------------- moving


def ongoing(world: ClusterWorld) -> list[Any]:
    body = ListPartitionReassignmentsRequest(timeout_ms=1000, topics=None)
    message = ask(world, 2, ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, body)
    return [partition for topic in message.topics for partition in topic.partitions]


def test_a_partition_moves_to_an_added_broker_with_all_its_records() -> None:
    """A6."""
    world = guarded()
    world.create_topic()
    for number in range(20):
        world.produce(1, "t", batch(str(number).encode()))
    world.run(100)
    world.add_host(4)
    world.start(4)
    world.run(50)
    assert reassign(world, [4, 2, 3]) is ErrorCode.NONE
    world.run_until(lambda: world.assignment().replicas == (4, 2, 3), 5000)
    moved = world.assignment()
    assert sorted(moved.isr) == [2, 3, 4]
    assert (moved.leader, moved.adding, moved.removing) == (4, (), ())
    world.run(100)
    assert world.values(4) == [str(number).encode() for number in range(20)]
    assert ongoing(world) == []


def test_a_move_that_cannot_end_is_listed_and_cancelled() -> None:
    world = ClusterWorld(4)
    world.create_topic()
    world.crash(4)
    world.run(20)
    assert reassign(world, [1, 2, 4]) is ErrorCode.NONE
    world.run(1000)
    (moving,) = ongoing(world)
    assert (moving.replicas, moving.adding_replicas, moving.removing_replicas) == ([1, 2, 4, 3], [4], [3])
    assert reassign(world, None) is ErrorCode.NONE
    assert world.assignment().replicas == (1, 2, 3)
    assert reassign(world, None) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_a_move_goes_on_when_the_controller_and_the_leader_die() -> None:
    world = ClusterWorld(5, min_insync_replicas="2")
    world.create_topic()
    world.produce(1, "t", batch(b"x"))
    world.run(100)
    world.pause(5)
    assert reassign(world, [4, 5]) is ErrorCode.NONE
    world.crash(1)
    world.run(100)
    assert world.assignment().leader in (2, 3, 4)
    world.resume(5)
    world.run_until(lambda: world.assignment().replicas == (4, 5), 20_000)
    world.run(200)
    assert world.values(4) == world.values(5) == [b"x"]


def test_senseless_moves_are_refused() -> None:
    world = ClusterWorld(3)
    world.create_topic()
    for replicas in ([], [1, 1], [1, 9]):
        assert reassign(world, replicas) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(world, [1], version=1, resize=False) is ErrorCode.INVALID_REPLICATION_FACTOR
    assert reassign(world, [1], version=1) is ErrorCode.NONE
    assert world.assignment().replicas == (1,)
