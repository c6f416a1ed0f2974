"""Topics, partitions and settings: decided on the image, in force once the journal has them."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from gapless.core.api.topics import MAX_PARTITIONS
from gapless.core.configs import Settings, TopicConfig
from gapless.core.contract import TopicPartition
from gapless.core.records import TopicCreated, from_json, to_json
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    InitProducerIdRequest,
    MetadataRequest,
)
from tests.core.harness import World, batch

Asked = CreateTopicsRequest.CreatableTopic


def _create(world: World, *topics: Any, validate_only: bool = False) -> list[Any]:
    body = CreateTopicsRequest(topics=list(topics), timeout_ms=1000, validate_only=validate_only)
    results: list[Any] = world.call(ApiKey.CREATE_TOPICS, 7, body).topics
    return results


def _topic(name: str, partitions: int = 1, factor: int = 1, **configs: str) -> Any:
    settings = [Asked.CreatableTopicConfig(name=k.replace("_", "."), value=v) for k, v in configs.items()]
    return Asked(
        name=name, num_partitions=partitions, replication_factor=factor, assignments=[], configs=settings
    )


def _metadata(world: World, *names: str, auto: bool = False) -> list[Any]:
    topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names] or None
    body = MetadataRequest(topics=topics, allow_auto_topic_creation=auto)
    found: list[Any] = world.call(ApiKey.METADATA, 12, body).topics
    return found


def test_a_created_topic_is_there_with_its_partitions() -> None:
    world = World()
    (result,) = _create(world, _topic("orders", 3))
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 3, 1)
    (topic,) = _metadata(world, "orders")
    assert [part.leader_id for part in topic.partitions] == [0, 0, 0]
    assert topic.topic_id == result.topic_id


def test_nothing_is_there_before_the_journal_has_it() -> None:
    world = World()
    world.hold_journal = True
    body = CreateTopicsRequest(topics=[_topic("t")], timeout_ms=1000, validate_only=False)
    request = world.send(ApiKey.CREATE_TOPICS, 7, body)
    assert not world.answered(request)
    assert world.node.partitions == {}
    world.commit()
    assert world.reply(request).topics[0].error_code == 0
    assert TopicPartition("t", 0) in world.node.partitions


def test_a_journal_that_cannot_be_written_is_an_error_and_changes_nothing() -> None:
    world = World()
    world.hold_journal = True
    body = CreateTopicsRequest(topics=[_topic("t")], timeout_ms=1000, validate_only=False)
    request = world.send(ApiKey.CREATE_TOPICS, 7, body)
    world.refuse("disk full")
    result = world.reply(request).topics[0]
    assert (result.error_code, result.error_message) == (ErrorCode.UNKNOWN_SERVER_ERROR, "disk full")
    assert world.node.image.topics == {}


def test_a_change_is_decided_again_when_somebody_else_was_first() -> None:
    world = World()
    world.hold_journal = True
    body = CreateTopicsRequest(topics=[_topic("t")], timeout_ms=1000, validate_only=False)
    request = world.send(ApiKey.CREATE_TOPICS, 7, body)
    world.commit_foreign([TopicCreated("t", world.node.new_uuid())])
    world.commit()
    assert world.reply(request).topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (_topic("no/slash"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (_topic(".."), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (_topic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (_topic("t", 0), ErrorCode.INVALID_PARTITIONS),
        (_topic("t", 2**31 - 1), ErrorCode.INVALID_PARTITIONS),
        (_topic("t", MAX_PARTITIONS + 1), ErrorCode.INVALID_PARTITIONS),
        (_topic("t", 1, 2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (_topic("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (_topic("t", retention_ms="soon"), ErrorCode.INVALID_CONFIG),
        (_topic("t", retention_ms="-2"), ErrorCode.INVALID_CONFIG),
        (_topic("t", no_such_key="1"), ErrorCode.INVALID_CONFIG),
        (_topic("t", cleanup_policy="burn"), ErrorCode.INVALID_CONFIG),
    ],
)
def test_what_cannot_be_is_refused(topic: Any, error: ErrorCode) -> None:
    world = World()
    (result,) = _create(world, topic)
    assert result.error_code == error
    assert result.error_message
    assert world.node.image.topics == {}


def test_names_that_differ_only_in_dot_and_underscore_collide() -> None:
    world = World()
    _create(world, _topic("a.b"))
    (result,) = _create(world, _topic("a_b"))
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_one_name_twice_in_a_request_is_refused_for_both() -> None:
    results = _create(World(), _topic("t"), _topic("t"))
    assert [result.error_code for result in results] == [ErrorCode.INVALID_REQUEST] * 2


def test_validate_only_changes_nothing() -> None:
    world = World()
    (result,) = _create(world, _topic("t"), validate_only=True)
    assert result.error_code == 0
    assert world.node.image.topics == {}


def test_a_deleted_topic_is_gone_and_can_be_made_anew() -> None:
    world = World()
    first = world.create_topic("t")
    world.produce("t", batch(b"x"))
    body = DeleteTopicsRequest(topic_names=["t", "u"], timeout_ms=1000)
    errors = [r.error_code for r in world.call(ApiKey.DELETE_TOPICS, 5, body).responses]
    assert errors == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert world.create_topic("t") != first
    assert world.partition("t").log.end_offset == 0


def test_deletion_can_be_forbidden() -> None:
    world = World(delete_topic_enable="false")
    world.create_topic("t")
    body = DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000)
    (result,) = world.call(ApiKey.DELETE_TOPICS, 5, body).responses
    assert result.error_code == ErrorCode.TOPIC_DELETION_DISABLED


def test_partitions_can_be_added_but_not_taken_away() -> None:
    world = World()
    world.create_topic("t", partitions=2)

    def grow(count: int) -> int:
        asked = CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=count, assignments=None)
        body = CreatePartitionsRequest(topics=[asked], timeout_ms=1000, validate_only=False)
        return int(world.call(ApiKey.CREATE_PARTITIONS, 3, body).results[0].error_code)

    assert grow(4) == 0
    assert world.produce("t", batch(b"x"), partition=3).error == 0
    assert grow(4) == ErrorCode.INVALID_PARTITIONS
    assert grow(1) == ErrorCode.INVALID_PARTITIONS


def test_a_topic_is_created_on_demand_and_answered_at_once() -> None:
    world = World(num_partitions="2")
    (topic,) = _metadata(world, "new", auto=True)
    assert topic.error_code == 0
    assert len(topic.partitions) == 2


def test_on_demand_creation_needs_both_sides() -> None:
    (topic,) = _metadata(World(), "new", auto=False)
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    (topic,) = _metadata(World(auto_create_topics_enable="false"), "new", auto=True)
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    (topic,) = _metadata(World(), "in valid", auto=True)
    assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_settings_take_effect_at_once_and_say_where_they_come_from() -> None:
    world = World(log_retention_hours="1")
    world.create_topic("t")
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=2, resource_name="t", configuration_keys=["retention.ms"]
    )

    def retention() -> tuple[str, int]:
        body = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True)
        (config,) = world.call(ApiKey.DESCRIBE_CONFIGS, 4, body).results[0].configs
        return config.value, config.config_source

    assert retention() == ("3600000", 4)
    altered = IncrementalAlterConfigsRequest.AlterConfigsResource
    change = altered.AlterableConfig(name="retention.ms", config_operation=0, value="5000")
    body = IncrementalAlterConfigsRequest(
        resources=[altered(resource_type=2, resource_name="t", configs=[change])], validate_only=False
    )
    assert world.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body).responses[0].error_code == 0
    assert retention() == ("5000", 1)
    assert world.partition("t").config.retention_ms == 5000
    world.restart()
    assert world.partition("t").config.retention_ms == 5000


def test_producer_ids_are_never_given_twice_even_across_restarts() -> None:
    world = World()
    body = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
    given = []
    for _ in range(3):
        given += [world.call(ApiKey.INIT_PRODUCER_ID, 4, body).producer_id for _ in range(1100)]
        world.restart()
    assert len(set(given)) == 3300


def test_a_restart_leads_under_a_new_epoch() -> None:
    world = World()
    world.create_topic("t")
    before = world.partition("t").leader_epoch
    world.restart()
    assert world.partition("t").leader_epoch == before + 1


def test_records_survive_the_journal_as_json_and_an_image_its_snapshot() -> None:
    world = World()
    world.create_topic("t", partitions=2, retention_ms="1")
    world.create_topic("gone")
    world.call(ApiKey.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=["gone"], timeout_ms=1000))
    world.call(
        ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
    )
    before = world.node.image
    snapshot = [from_json(to_json(record)) for record in before.snapshot()]
    world.journal = [snapshot]
    world.restart()
    after = world.node.image
    assert after.configs == before.configs
    assert after.next_producer_id == before.next_producer_id
    assert {name: topic.topic_id for name, topic in after.topics.items()} == {
        "t": before.topics["t"].topic_id
    }


def test_a_topic_counts_as_flushed_only_if_it_was_from_its_first_record_on() -> None:
    world = World(log_flush_interval_messages="1")
    world.create_topic("always", flush_messages="1")
    world.create_topic("broken", flush_messages="1")
    world.create_topic("later")
    world.create_topic("by_the_brokers_file")
    _configure(world, "broken", "10")
    _configure(world, "broken", "1")
    _configure(world, "later", "1")
    world.journal = [[from_json(to_json(record)) for record in world.node.image.snapshot()]]
    world.restart()
    flushed = {name: world.node.membership.policy(name).flushed for name in world.node.image.topics}
    assert flushed == {"always": True, "broken": False, "later": False, "by_the_brokers_file": False}


def _configure(world: World, topic: str, flush_messages: str) -> None:
    altered = IncrementalAlterConfigsRequest.AlterConfigsResource
    change = altered.AlterableConfig(name="flush.messages", config_operation=0, value=flush_messages)
    body = IncrementalAlterConfigsRequest(
        resources=[altered(resource_type=2, resource_name=topic, configs=[change])], validate_only=False
    )
    assert world.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body).responses[0].error_code == 0


def test_settings_that_are_kept_are_bounded_and_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers can give topics any settings: what is remembered of them must not grow."""
    monkeypatch.setattr("gapless.core.configs.MAX_KEPT_CONFIGS", 3)
    settings = Settings()

    def config(number: int) -> TopicConfig:
        return settings.topic_config({"retention.ms": str(number)}, {}, {})

    def in_memory() -> int:
        return sum(isinstance(each, TopicConfig) for each in gc.get_objects())

    before = in_memory()
    for number in (*range(10, 20), 10):
        assert config(number).retention_ms == number
        assert config(number) is config(number)  # cached
    assert 1 <= in_memory() - before <= 3
