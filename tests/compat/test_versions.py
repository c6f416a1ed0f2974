"""Every version that the broker says it speaks is answered in that version, others as Kafka answers them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.admin import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    DescribeProducersRequest,
    DescribeTopicPartitionsRequest,
    IncrementalAlterConfigsRequest,
)
from kafka.protocol.consumer import OffsetForLeaderEpochRequest
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest

from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode

from .conftest import NewTopic
from .raw import (
    NEWEST_FETCH_BY_NAME,
    NEWEST_PRODUCE_BY_NAME,
    RawClient,
    batch,
    fetch_partition,
    fetch_request,
    list_offsets_request,
    records_in,
)

# What Apache Kafka 4.3.1 speaks of these; a broker may speak less at the old end only if no client needs it.
APIS = {
    ApiKey.PRODUCE: (0, 13),
    ApiKey.FETCH: (4, 18),
    ApiKey.LIST_OFFSETS: (1, 11),
    ApiKey.METADATA: (0, 13),
    ApiKey.FIND_COORDINATOR: (0, 6),
    ApiKey.API_VERSIONS: (0, 4),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.DELETE_TOPICS: (1, 6),
    ApiKey.DELETE_RECORDS: (0, 2),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.ALTER_CONFIGS: (0, 2),
    ApiKey.DESCRIBE_LOG_DIRS: (1, 5),
    ApiKey.CREATE_PARTITIONS: (0, 3),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    ApiKey.DESCRIBE_CLUSTER: (0, 2),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
}
FIRST_PRODUCE = 3
TOPIC_RESOURCE = 2


def test_the_broker_speaks_every_version_that_kafka_speaks(raw: RawClient) -> None:
    spoken = raw.api_versions()
    assert {api: spoken.get(api) for api in APIS} == APIS


@pytest.mark.parametrize("version", range(5))
def test_api_versions_are_told_in_every_version(raw: RawClient, version: int) -> None:
    answer = raw.ask(
        ApiVersionsRequest(client_software_name="compat", client_software_version="1", version=version)
    )
    assert answer.error_code == ErrorCode.NONE
    assert {api.api_key for api in answer.api_keys} >= set(APIS)


def test_a_version_of_the_future_is_answered_with_those_that_there_are(raw: RawClient) -> None:
    """KIP-511: in version 0, so that any client can read it."""
    body = struct.pack(">hhihB", ApiKey.API_VERSIONS, 99, 7, -1, 0)
    raw.first_broker.send_bytes(struct.pack(">i", len(body)) + body)
    raw.first_broker.expect(ApiVersionsRequest(version=0), correlation_id=7)
    answer = raw.first_broker.receive()
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert {api.api_key for api in answer.api_keys} >= {ApiKey.API_VERSIONS}


@pytest.mark.parametrize(("api", "version"), [(ApiKey.METADATA, 99), (999, 0), (ApiKey.PRODUCE, 2)])
def test_other_unknown_versions_and_requests_close_the_connection(
    raw: RawClient, api: int, version: int
) -> None:
    body = struct.pack(">hhih", api, version, 7, -1) + bytes(20)
    raw.first_broker.send_bytes(struct.pack(">i", len(body)) + body)
    assert raw.first_broker.is_closed_by_broker()


def test_bytes_after_a_request_are_not_minded(raw: RawClient) -> None:
    """librdkafka sends some after asking for the metadata of all topics."""
    body = struct.pack(">hhih", ApiKey.METADATA, 13, 1, -1) + bytes(5) + b"\1\0\0"
    raw.first_broker.send_bytes(struct.pack(">i", len(body)) + body)
    raw.first_broker.expect(MetadataRequest(version=13), correlation_id=1)
    assert raw.first_broker.receive().brokers


def test_answers_come_in_the_order_of_the_requests(raw: RawClient, new_topic: NewTopic) -> None:
    """Also if the first has to wait and the others need not."""
    topic = new_topic()
    leader = raw.leader(topic)
    leader.send(fetch_request({topic: [fetch_partition(0, 0)]}))
    leader.send(metadata(topic, 9))
    leader.send(list_offsets_request(topic, [0], version=7))
    kinds = [type(leader.receive()).__name__ for _ in range(3)]
    assert kinds == ["FetchResponse", "MetadataResponse", "ListOffsetsResponse"]


@pytest.mark.parametrize("version", range(FIRST_PRODUCE, 14))
def test_produce_in_every_version(raw: RawClient, new_topic: NewTopic, version: int) -> None:
    """From 13 on, topics have ids instead of names."""
    topic = new_topic()
    named: str | UUID = topic if version <= NEWEST_PRODUCE_BY_NAME else raw.topic_id(topic)
    outcome = raw.produce(named, batch([b"a", b"b"]), version=version)
    assert (outcome.error_code, outcome.base_offset) == (ErrorCode.NONE, 0)
    assert [record.value for record in records_in(raw.fetch(topic).records)] == [b"a", b"b"]


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_in_every_version(raw: RawClient, new_topic: NewTopic, version: int) -> None:
    """From 13 on, topics have ids instead of names."""
    topic = new_topic()
    raw.produce(topic, batch([b"a", b"b"]))
    wanted = [fetch_partition(0, 0)]
    if version <= NEWEST_FETCH_BY_NAME:
        answer = raw.ask(fetch_request({topic: wanted}, version=version))
    else:
        answer = raw.ask(fetch_request({raw.topic_id(topic): wanted}, version=version))
    ((outcome,),) = [responded.partitions for responded in answer.responses]
    assert (outcome.error_code, outcome.high_watermark, outcome.last_stable_offset) == (ErrorCode.NONE, 2, 2)
    assert [record.value for record in records_in(outcome.records)] == [b"a", b"b"]


def metadata(topic: str, version: int) -> Any:
    return MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)], version=version)


def create_topics(topic: str, version: int) -> Any:
    new = CreateTopicsRequest.CreatableTopic(
        name=f"{topic}-new-{version}", num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    return CreateTopicsRequest(topics=[new], timeout_ms=10_000, validate_only=False, version=version)


def delete_records(topic: str, version: int) -> Any:
    topics = DeleteRecordsRequest.DeleteRecordsTopic
    place = topics.DeleteRecordsPartition(partition_index=0, offset=0)
    return DeleteRecordsRequest(
        topics=[topics(name=topic, partitions=[place])], timeout_ms=10_000, version=version
    )


def leader_epoch(topic: str, version: int) -> Any:
    topics = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    place = topics.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    return OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[topics(topic=topic, partitions=[place])], version=version
    )


def describe_configs(topic: str, version: int) -> Any:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=None
    )
    return DescribeConfigsRequest(
        resources=[resource], include_synonyms=True, include_documentation=False, version=version
    )


def alter_configs(topic: str, version: int) -> Any:
    resources = AlterConfigsRequest.AlterConfigsResource
    change = resources.AlterableConfig(name="retention.ms", value="3600000")
    resource = resources(resource_type=TOPIC_RESOURCE, resource_name=topic, configs=[change])
    return AlterConfigsRequest(resources=[resource], validate_only=False, version=version)


def incremental_alter_configs(topic: str, version: int) -> Any:
    resources = IncrementalAlterConfigsRequest.AlterConfigsResource
    change = resources.AlterableConfig(name="retention.ms", config_operation=0, value="3600000")
    resource = resources(resource_type=TOPIC_RESOURCE, resource_name=topic, configs=[change])
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=False, version=version)


def describe_log_dirs(topic: str, version: int) -> Any:
    wanted = DescribeLogDirsRequest.DescribableLogDirTopic(topic=topic, partitions=[0])
    return DescribeLogDirsRequest(topics=[wanted], version=version)


def create_partitions(topic: str, version: int) -> Any:
    wanted = CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=2 + version, assignments=None)
    return CreatePartitionsRequest(topics=[wanted], timeout_ms=10_000, validate_only=False, version=version)


def describe_producers(topic: str, version: int) -> Any:
    wanted = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[0])
    return DescribeProducersRequest(topics=[wanted], version=version)


def describe_topic_partitions(topic: str, version: int) -> Any:
    wanted = DescribeTopicPartitionsRequest.TopicRequest(name=topic)
    return DescribeTopicPartitionsRequest(
        topics=[wanted], response_partition_limit=100, cursor=None, version=version
    )


REQUESTS: dict[ApiKey, Callable[[str, int], Any]] = {
    ApiKey.METADATA: metadata,
    ApiKey.LIST_OFFSETS: lambda topic, version: list_offsets_request(topic, [0], version=version),
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.DELETE_RECORDS: delete_records,
    ApiKey.INIT_PRODUCER_ID: lambda _, version: InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=1_000, version=version
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: leader_epoch,
    ApiKey.DESCRIBE_CONFIGS: describe_configs,
    ApiKey.ALTER_CONFIGS: alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
    ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs,
    ApiKey.CREATE_PARTITIONS: create_partitions,
    ApiKey.DESCRIBE_CLUSTER: lambda _, version: DescribeClusterRequest(version=version),
    ApiKey.DESCRIBE_PRODUCERS: describe_producers,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions,
}


@pytest.mark.parametrize(
    ("api", "version"),
    [(api, version) for api in REQUESTS for version in range(APIS[api][0], APIS[api][1] + 1)],
    ids=lambda part: part.name.lower() if isinstance(part, ApiKey) else str(part),
)
def test_every_version_is_answered_without_an_error(
    raw: RawClient, new_topic: NewTopic, api: ApiKey, version: int
) -> None:
    answer = raw.ask(REQUESTS[api](new_topic(), version))
    assert {code for code in error_codes(answer.to_dict()) if code} == set(), answer


@pytest.mark.parametrize("version", range(7))
def test_coordinators_are_asked_for_in_every_version(raw: RawClient, version: int) -> None:
    """There may be none, but a broker that is not asked is taken for one from before lz4."""
    named = {"key": "a-group"} if version < 4 else {"coordinator_keys": ["a-group"]}
    answer = raw.ask(FindCoordinatorRequest(key_type=0, version=version, **named))
    (code,) = error_codes(answer.to_dict())
    assert code in {ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE}


@pytest.mark.parametrize("version", range(1, 7))
def test_topics_are_deleted_in_every_version(raw: RawClient, new_topic: NewTopic, version: int) -> None:
    """From 6 on, by name or by id."""
    topic = new_topic()
    if version < 6:
        request = DeleteTopicsRequest(topic_names=[topic], timeout_ms=10_000, version=version)
    else:
        state = DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=raw.topic_id(topic))
        request = DeleteTopicsRequest(topics=[state], timeout_ms=10_000, version=version)
    ((outcome,),) = [raw.ask(request).responses]
    assert (outcome.name, outcome.error_code) == (topic, ErrorCode.NONE)


def error_codes(answer: Any) -> list[int]:
    """All error codes in an answer, however deep."""
    if isinstance(answer, list):
        return [code for part in answer for code in error_codes(part)]
    if isinstance(answer, dict):
        own = [code for name, code in answer.items() if name.endswith("error_code")]
        return own + error_codes(list(answer.values()))
    return []
