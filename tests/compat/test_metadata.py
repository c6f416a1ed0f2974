"""How a client finds its way: brokers, leaders, topics that are made when they are first written to."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError
from kafka.protocol.metadata import MetadataRequest

from gapless.wire.errors import ErrorCode

from .admins.confluent import ConfluentAdmin
from .clients import Client
from .clients.confluent import Confluent
from .clients.kcat import Kcat
from .conftest import MakeClient, NewTopic
from .peers import Peer
from .raw import RawClient
from .sample import Record


def test_the_first_write_makes_the_topic(
    client: Client, reader: Confluent, raw: RawClient, bootstrap: str, topic_name: Callable[[], str]
) -> None:
    """With the broker's number of partitions; auto.create.topics.enable is on, as in Kafka."""
    topic = topic_name()
    client.produce(topic, [Record(b"first")])
    assert [record.value for record in reader.read(topic, 0, 0, 1)] == [b"first"]
    raw.wait_for_leaders(topic, 1)
    assert len(ConfluentAdmin(bootstrap).describe(topic)) == 1


def test_a_reader_does_not_make_the_topic(
    reader: Confluent, bootstrap: str, topic_name: Callable[[], str]
) -> None:
    topic = topic_name()
    with reader.consumer() as consumer:
        error = consumer.list_topics(topic, timeout=10).topics[topic].error
    assert error is not None
    assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert topic not in ConfluentAdmin(bootstrap).topics()


@pytest.mark.parametrize("allowed", [True, False])
def test_asking_makes_a_topic_only_if_the_asker_allows_it(
    raw: RawClient, bootstrap: str, topic_name: Callable[[], str], *, allowed: bool
) -> None:
    topic = topic_name()
    wanted = [MetadataRequest.MetadataRequestTopic(name=topic)]
    (found,) = raw.ask(MetadataRequest(topics=wanted, allow_auto_topic_creation=allowed, version=9)).topics
    if allowed:
        assert found.error_code in {
            ErrorCode.NONE,
            ErrorCode.LEADER_NOT_AVAILABLE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        raw.wait_for_leaders(topic, 1)
    else:
        assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (topic in ConfluentAdmin(bootstrap).topics()) is allowed


def test_an_unlawful_name_is_refused_and_not_made(raw: RawClient) -> None:
    wanted = [MetadataRequest.MetadataRequestTopic(name="not lawful")]
    (found,) = raw.ask(MetadataRequest(topics=wanted, allow_auto_topic_creation=True, version=9)).topics
    assert found.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.kcat
def test_kcat_lists_brokers_topics_and_leaders(
    make_client: MakeClient, bootstrap: str, peer: Peer, new_topic: NewTopic
) -> None:
    """Claim A8: any broker tells who leads which partition."""
    kcat = make_client("kcat")
    assert isinstance(kcat, Kcat)
    topic = new_topic(3)
    listed = json.loads(kcat.run("-L", "-J", "-t", topic))
    assert {broker["name"] for broker in listed["brokers"]} == set(bootstrap.split(","))
    (found,) = listed["topics"]
    assert [place["partition"] for place in found["partitions"]] == [0, 1, 2]
    for place in found["partitions"]:
        replicas = [replica["id"] for replica in place["replicas"]]
        assert place["leader"] == replicas[0]
        assert len(replicas) == peer.replicas
        assert set(replicas) <= {broker["id"] for broker in listed["brokers"]}
        assert sorted(replica["id"] for replica in place["isrs"]) == sorted(replicas)


def test_a_topic_has_an_id_that_a_namesake_does_not_inherit(
    raw: RawClient, bootstrap: str, topic_name: Callable[[], str]
) -> None:
    admin, topic = ConfluentAdmin(bootstrap), topic_name()
    ids = set()
    for _ in range(2):
        admin.create_topic(topic)
        raw.wait_for_leaders(topic, 1)
        ids.add(raw.topic_id(topic))
        admin.delete_topic(topic)
        raw.wait_until_unknown(topic)
    assert len(ids) == 2


def test_a_topic_is_found_by_its_id(raw: RawClient, new_topic: NewTopic) -> None:
    topic = new_topic()
    wanted = [MetadataRequest.MetadataRequestTopic(topic_id=raw.topic_id(topic), name=None)]
    (found,) = raw.ask(MetadataRequest(topics=wanted, allow_auto_topic_creation=False, version=12)).topics
    assert (found.error_code, found.name) == (ErrorCode.NONE, topic)
