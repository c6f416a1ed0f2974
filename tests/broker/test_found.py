"""What attacks have found, each kept as a test: requests that once hurt the broker, and must never again."""

from __future__ import annotations

import struct
import time
from typing import Any
from uuid import UUID

import pytest

from gapless.wire.errors import ErrorCode
from gapless.wire.messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from tests.broker.conftest import BrokerMaker
from tests.broker.process import Broker, unhurt, wait_until
from tests.broker.raw import (
    FetchResponse,
    MetadataRequest,
    MetadataResponse,
    RawClient,
    batch_of,
    fetch_request,
    frame_of,
    framed,
)
from tests.broker.test_retention import earliest

TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
LONG = "9" * 32_000


def new_topic(name: str, partitions: int = 1, **configs: str) -> Any:
    topic_type = CreateTopicsRequest.CreatableTopic
    return topic_type(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        assignments=[],
        configs=[
            topic_type.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )


def create_topics(client: RawClient, *topics: Any, version: int = 4) -> list[ErrorCode]:
    request = CreateTopicsRequest(topics=list(topics), timeout_ms=10_000, validate_only=False)
    reply = client.call(request, version, CreateTopicsResponse)
    return [ErrorCode(topic.error_code) for topic in reply.topics]


def set_config(client: RawClient, resource_type: int, resource: str, key: str, value: str) -> ErrorCode:
    resource_class = IncrementalAlterConfigsRequest.AlterConfigsResource
    config = resource_class.AlterableConfig(name=key, config_operation=0, value=value)
    asked = resource_class(resource_type=resource_type, resource_name=resource, configs=[config])
    request = IncrementalAlterConfigsRequest(resources=[asked], validate_only=False)
    reply = client.call(request, 1, IncrementalAlterConfigsResponse)
    return ErrorCode(reply.responses[0].error_code)


# ------------------------------------------------------------------------------ replies that did not fit


def test_an_error_that_quotes_a_long_value_still_fits_into_its_reply(broker: Broker) -> None:
    """Strings of old versions have 32,767 bytes at most; one more, and the reply could not be encoded."""
    resource_class = AlterConfigsRequest.AlterConfigsResource
    configs = [resource_class.AlterableConfig(name="retention.ms", value=LONG)]
    with unhurt(broker), broker.connect() as client:
        assert create_topics(client, new_topic("quoted", retention_ms=LONG)) == [ErrorCode.INVALID_CONFIG]
        client.metadata("quoted")
        resource = resource_class(resource_type=TOPIC_RESOURCE, resource_name="quoted", configs=configs)
        request = AlterConfigsRequest(resources=[resource], validate_only=False)
        reply = client.call(request, 1, AlterConfigsResponse)
        assert reply.responses[0].error_code == ErrorCode.INVALID_CONFIG
        asked = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=BROKER_RESOURCE, resource_name=LONG, configuration_keys=None
        )
        described = client.call(DescribeConfigsRequest(resources=[asked]), 1, DescribeConfigsResponse)
        assert described.results[0].error_code == ErrorCode.INVALID_REQUEST


def test_a_value_that_old_clients_cannot_be_told_is_refused(broker: Broker) -> None:
    endless = "delete," * 20_000 + "delete"
    with broker.connect() as client:
        client.metadata("endless")
        code = set_config(client, TOPIC_RESOURCE, "endless", "cleanup.policy", endless)
        assert code is ErrorCode.INVALID_CONFIG


def test_a_topic_without_name_in_a_version_that_answers_with_names(broker: Broker) -> None:
    for version in (10, 11, 12):
        asked = MetadataRequest.MetadataRequestTopic(name=None, topic_id=UUID(int=0))
        with broker.connect() as client:
            reply = client.call(MetadataRequest(topics=[asked]), version, MetadataResponse)
            assert reply.topics[0].error_code != 0
    assert "Traceback" not in broker.said()


# ------------------------------------------------------------------------------------------- duplicates


def test_a_topic_that_is_asked_for_twice_is_made_once_and_keeps_its_data(start_broker: BrokerMaker) -> None:
    """It was made twice, under two ids; after a restart its folder was the other's and moved away."""
    broker = start_broker()
    with broker.connect() as client:
        assert len(client.metadata("twice", "twice", "twice").topics) == 1
        assert client.produce("twice", batch_of(b"kept")).error_code == 0
    broker.restart()
    with broker.connect() as client:
        assert b"kept" in client.fetch("twice", 0).records
        assert len(client.metadata().topics) == 1


def test_questions_asked_twice_are_answered_once(broker: Broker) -> None:
    """An answer can be hundreds of times as large as its question: a megabyte of them took gigabytes."""
    asked = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=BROKER_RESOURCE, resource_name="0", configuration_keys=None
    )
    with broker.connect() as client:
        client.metadata("repeated")
        client.produce("repeated", batch_of(b"x" * 1000))
        reply = client.call(DescribeConfigsRequest(resources=[asked] * 20_000), 1, DescribeConfigsResponse)
        assert len(reply.results) == 1
        assert len(client.metadata(*["repeated"] * 20_000).topics) == 1
        fetched = client.call(fetch_request("repeated", 0, copies=20_000), 11, FetchResponse)
        assert len(fetched.responses[0].partitions) == 1


def test_offsets_asked_for_twice_are_refused_as_by_kafka(broker: Broker) -> None:
    asked_class = ListOffsetsRequest.ListOffsetsTopic
    part = asked_class.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=5)
    with broker.connect() as client:
        client.metadata("offsets")
        topic = asked_class(name="offsets", partitions=[part] * 1000)
        request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic])
        reply = client.call(request, 5, ListOffsetsResponse)
        codes = {partition.error_code for partition in reply.topics[0].partitions}
        assert codes == {ErrorCode.INVALID_REQUEST}


def test_a_resource_that_is_altered_twice_in_a_request_is_refused(broker: Broker) -> None:
    resource_class = IncrementalAlterConfigsRequest.AlterConfigsResource
    with broker.connect() as client:
        client.metadata("altered")
        asked = resource_class(resource_type=TOPIC_RESOURCE, resource_name="altered", configs=[])
        request = IncrementalAlterConfigsRequest(resources=[asked, asked], validate_only=False)
        reply = client.call(request, 1, IncrementalAlterConfigsResponse)
        assert [each.error_code for each in reply.responses] == [ErrorCode.INVALID_REQUEST] * 2


# ------------------------------------------------------------------------------------------------ too much


def test_the_limit_of_partitions_holds_for_all_topics_of_a_request(
    start_broker: BrokerMaker,
) -> None:
    broker = start_broker()
    with unhurt(broker), broker.connect() as client:
        topics = [new_topic(f"many-{index}", 4999) for index in range(100)]
        request = CreateTopicsRequest(topics=topics, timeout_ms=10_000, validate_only=True)
        codes = [topic.error_code for topic in client.call(request, 4, CreateTopicsResponse).topics]
        assert codes.count(0) == 2
        assert set(codes) == {0, ErrorCode.INVALID_PARTITIONS}
        client.metadata("a", "b")
        asked_class = CreatePartitionsRequest.CreatePartitionsTopic
        asked = [asked_class(name=name, count=6000, assignments=None) for name in ("a", "b")]
        more = CreatePartitionsRequest(topics=asked, timeout_ms=10_000, validate_only=True)
        codes = [result.error_code for result in client.call(more, 1, CreatePartitionsResponse).results]
        assert codes == [0, ErrorCode.INVALID_PARTITIONS]


def test_many_topics_of_one_name_are_refused_in_no_time(broker: Broker) -> None:
    """Each name was compared with all others: a request of a megabyte took minutes."""
    with unhurt(broker), broker.connect() as client:
        before_s = broker.cpu_s()
        codes = create_topics(client, *[new_topic("same")] * 25_000)
        assert set(codes) == {ErrorCode.INVALID_REQUEST}
        assert broker.cpu_s() - before_s < 10


@pytest.mark.parametrize(
    ("api_key", "version", "body"),
    [
        (3, 1, struct.pack(">i", 30_001) + b"\x00\x00" * 30_001),
        (1, 4, bytes(17) + struct.pack(">i", 30_001) + bytes(6) * 30_001),
        (0, 3, struct.pack(">hhii", -1, 1, 1000, 30_001) + bytes(6) * 30_001),
        (
            0,
            3,
            struct.pack(">hhii", -1, 1, 1000, 1) + b"\x00\x01t" + struct.pack(">i", 40_000) + bytes(320_000),
        ),
    ],
    ids=["metadata", "fetch", "topics to produce to", "partitions to produce to"],
)
def test_a_request_of_too_many_items_costs_its_sender_the_connection(
    broker: Broker, api_key: int, version: int, body: bytes
) -> None:
    """Each item takes microseconds and hundreds of bytes: a large request of them took over a minute."""
    with unhurt(broker), broker.connect() as client:
        client.send(framed(struct.pack(">hhih", api_key, version, 1, -1) + body))
        client.wait_until_closed()
        (line,) = broker.lines_about(client)
    assert "more than 30000 items" in line


# ------------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize("value", ["-1", "9223372036854775807"])
def test_retention_without_a_limit_in_any_unit(start_broker: BrokerMaker, value: str) -> None:
    """Minus one hour is no lawful number of milliseconds, nor is the largest number times 3,600,000."""
    broker = start_broker(config={"log.retention.minutes": value})
    with broker.connect() as client:
        client.metadata("kept")
        assert set_config(client, BROKER_RESOURCE, "1", "log.retention.hours", value) is ErrorCode.NONE
        assert client.produce("kept", batch_of(b"record", timestamp_ms=1)).error_code == 0
    broker.restart()
    with broker.connect() as client:
        assert b"record" in client.fetch("kept", 0).records


def test_a_reply_goes_out_though_a_request_before_it_was_cut_off(broker: Broker) -> None:
    """One connection's trouble stays its own, in whatever state it left the broker."""
    with unhurt(broker):
        for _ in range(20):
            with broker.connect() as client:
                client.send(frame_of(fetch_request(f"gone-{time.time_ns()}", 0, max_wait_ms=1000), 11))
                client.send(frame_of(MetadataRequest(topics=None), 9)[:9])


def await_a_check(client: RawClient, topic: str) -> None:
    """Until the broker has looked for what is too old: it removes a segment that was written just now."""
    assert create_topics(client, new_topic(topic, retention_ms="3600000", segment_bytes="2000")) == [0]
    for age in ({"timestamp_ms": 1}, {}):
        assert client.produce(topic, batch_of(bytes(1500), **age)).error_code == 0
    wait_until(lambda: earliest(client, topic) == 1, "an old segment is gone")


def test_a_producer_of_old_records_is_not_forgotten_before_its_time(start_broker: BrokerMaker) -> None:
    """Who sends last year's records is not silent since last year: a retry must find its first try."""
    broker = start_broker(config={"log.retention.check.interval.ms": "10", "log.retention.ms": "-1"})
    old = batch_of(b"old", timestamp_ms=1, producer_id=5, producer_epoch=0, base_sequence=0)
    with broker.connect() as client:
        client.metadata("history")
        assert client.produce("history", old).base_offset == 0
        await_a_check(client, "first")
        assert client.produce("history", old).base_offset == 0
        assert client.fetch("history", 0).high_watermark == 1
    broker.restart()
    with broker.connect() as client:
        await_a_check(client, "second")
        assert client.produce("history", old).base_offset == 0


def test_a_producer_that_is_silent_for_long_is_forgotten(start_broker: BrokerMaker) -> None:
    config = {"log.retention.check.interval.ms": "10", "producer.id.expiration.ms": "100"}
    broker = start_broker(config=config)
    request = DescribeProducersRequest(
        topics=[DescribeProducersRequest.TopicRequest(name="silent", partition_indexes=[0])]
    )
    with broker.connect() as client:
        client.metadata("silent")
        client.produce("silent", batch_of(b"x", producer_id=5, producer_epoch=0, base_sequence=0))

        def known() -> int:
            reply = client.call(request, 0, DescribeProducersResponse)
            return len(reply.topics[0].partitions[0].active_producers)

        wait_until(lambda: known() == 0, "it is forgotten")
