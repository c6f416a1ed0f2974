"""Topics, partitions, settings and records, managed by every admin client that can."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .admins import EARLIEST, Admin, InsightfulAdmin, ModernAdmin, ReplacingAdmin, Setting
from .clients import Sending, eventually
from .clients.confluent import Confluent
from .conftest import INSIGHTFUL_ADMINS, MODERN_ADMINS, REPLACING_ADMINS, NewTopic
from .peers import Peer
from .raw import RawClient
from .sample import numbered, numbers


def test_a_topic_is_made_described_listed_and_deleted(
    admin: Admin, raw: RawClient, peer: Peer, topic_name: Callable[[], str]
) -> None:
    """Claims A1, A8: each partition has a leader among its replicas, which metadata tells."""
    topic = topic_name()
    admin.create_topic(topic, 3, settings={"retention.ms": "123456789"})
    raw.wait_for_leaders(topic, 3)
    assert topic in admin.topics()
    brokers = admin.cluster().brokers
    described = admin.describe(topic)
    assert sorted(described) == [0, 1, 2]
    for place in described.values():
        assert place.leader == place.replicas[0]
        assert len(set(place.replicas)) == len(place.replicas) == peer.replicas
        assert set(place.replicas) == set(place.in_sync) <= set(brokers)
    assert admin.settings(topic)["retention.ms"] == ("123456789", True)
    admin.delete_topic(topic)
    eventually(lambda: topic in admin.topics(), expected=False)


def test_a_topic_made_again_after_its_deletion_is_empty(
    admin: Admin, raw: RawClient, reader: Confluent, topic_name: Callable[[], str]
) -> None:
    topic = topic_name()
    admin.create_topic(topic)
    reader.produce(topic, numbered(10))
    admin.delete_topic(topic)
    raw.wait_until_unknown(topic)
    admin.create_topic(topic, 2)
    raw.wait_for_leaders(topic, 2)
    assert reader.bounds(topic, 0) == (0, 0)
    reader.produce(topic, numbered(3))
    assert numbers(reader.read(topic, 0, 0, 3)) == [0, 1, 2]


def test_validating_makes_no_topic(admin: Admin, topic_name: Callable[[], str]) -> None:
    topic = topic_name()
    admin.create_topic(topic, validate_only=True)
    assert topic not in admin.topics()


@pytest.mark.parametrize("admin", MODERN_ADMINS, indirect=True)
def test_the_broker_chooses_where_the_caller_does_not(
    admin: Admin, raw: RawClient, topic_name: Callable[[], str]
) -> None:
    """-1 partitions and -1 replicas mean the broker's own numbers."""
    topic = topic_name()
    admin.create_topic(topic, -1, replication_factor=-1)
    raw.wait_for_leaders(topic, 1)
    assert len(admin.describe(topic)) == 1


def test_partitions_are_added_and_old_ones_keep_their_records(
    admin: Admin, raw: RawClient, reader: Confluent, new_topic: NewTopic
) -> None:
    """Claim A1."""
    topic = new_topic()
    reader.produce(topic, numbered(10))
    admin.add_partitions(topic, 4)
    raw.wait_for_leaders(topic, 4)
    assert sorted(admin.describe(topic)) == [0, 1, 2, 3]
    reader.produce(topic, numbered(5, partition=3))
    assert reader.bounds(topic, 0) == (0, 10)
    assert reader.bounds(topic, 3) == (0, 5)


@pytest.mark.parametrize("admin", MODERN_ADMINS, indirect=True)
def test_one_setting_is_set_and_unset_and_others_stay(admin: ModernAdmin, new_topic: NewTopic) -> None:
    topic = new_topic(1, {"segment.ms": "7000000"})
    default = Setting("604800000", is_own=False)
    assert admin.settings(topic)["retention.ms"] == default
    admin.change_setting(topic, "retention.ms", "3600000")
    eventually(lambda: admin.settings(topic)["retention.ms"], Setting("3600000", is_own=True))
    admin.change_setting(topic, "retention.ms", None)
    eventually(lambda: admin.settings(topic)["retention.ms"], default)
    assert admin.settings(topic)["segment.ms"] == ("7000000", True)


@pytest.mark.parametrize("admin", REPLACING_ADMINS, indirect=True)
def test_settings_are_replaced_as_a_whole(admin: ReplacingAdmin, new_topic: NewTopic) -> None:
    topic = new_topic(1, {"segment.ms": "7000000", "retention.ms": "3600000"})
    admin.replace_settings(topic, {"max.message.bytes": "2000000"})
    eventually(
        lambda: [
            f"{name}={setting.value}" for name, setting in admin.settings(topic).items() if setting.is_own
        ],
        ["max.message.bytes=2000000"],
    )


def test_settings_that_tools_ask_for_are_all_described(admin: Admin, peer: Peer, new_topic: NewTopic) -> None:
    described = admin.settings(new_topic())
    expected = {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "flush.messages": "9223372036854775807",
        "flush.ms": "9223372036854775807",
        "index.interval.bytes": "4096",
        "max.message.bytes": "1048588",
        "message.timestamp.type": "CreateTime",
        "min.insync.replicas": str(peer.min_insync_replicas),
        "retention.bytes": "-1",
        "retention.ms": "604800000",
        "segment.bytes": "1073741824",
        "segment.ms": "604800000",
        "unclean.leader.election.enable": "false",
    }
    assert {name: described[name].value for name in expected} == expected


def test_deleted_records_are_gone_and_the_rest_keep_their_offsets(
    admin: Admin, reader: Confluent, new_topic: NewTopic
) -> None:
    """Claim A7: data goes only when it is removed, and not because it was read."""
    topic = new_topic()
    reader.produce(topic, numbered(100), Sending(batch_bytes=300))
    assert admin.delete_records(topic, 0, 37) == 37
    assert reader.bounds(topic, 0) == (37, 100)
    found = reader.read(topic, 0, 37, 63)
    assert numbers(found) == list(range(37, 100))
    assert admin.delete_records(topic, 0, 10) == 37, "the beginning does not move back"
    all_of_them = -1
    assert admin.delete_records(topic, 0, all_of_them) == 100
    assert reader.bounds(topic, 0) == (100, 100)


@pytest.mark.parametrize("admin", MODERN_ADMINS, indirect=True)
def test_the_earliest_offset_follows_deletion(
    admin: ModernAdmin, reader: Confluent, new_topic: NewTopic
) -> None:
    topic = new_topic()
    reader.produce(topic, numbered(10))
    admin.delete_records(topic, 0, 4)
    assert admin.offset_of(topic, 0, EARLIEST) == (4, -1)


def test_the_cluster_describes_itself(admin: Admin, bootstrap: str) -> None:
    """Claim A8: clients learn from any broker who the brokers are."""
    cluster = admin.cluster()
    assert {f"{host}:{port}" for host, port in cluster.brokers.values()} == set(bootstrap.split(","))
    assert cluster.controller in cluster.brokers
    assert len(cluster.cluster_id) == 22


@pytest.mark.parametrize("admin", INSIGHTFUL_ADMINS, indirect=True)
def test_log_directories_tell_the_size_of_each_partition(
    admin: InsightfulAdmin, peer: Peer, reader: Confluent, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    reader.produce(topic, numbered(10, partition=1, size_bytes=1_000))

    def are_as_written() -> list[bool]:
        sizes = admin.log_sizes_bytes(topic)
        assert sizes[0] == [0] * peer.replicas
        return [10_000 < size < 11_000 for size in sizes[1]]

    # A replica that is not needed for the acknowledgement may have less for a moment.
    eventually(are_as_written, [True] * peer.replicas)


@pytest.mark.parametrize("admin", INSIGHTFUL_ADMINS, indirect=True)
def test_the_broker_tells_which_producers_it_remembers(
    admin: InsightfulAdmin, reader: Confluent, new_topic: NewTopic
) -> None:
    """Claim C4: one last sequence number for each producer and partition; none without idempotence."""
    topic = new_topic(2)
    reader.produce(topic, numbered(7), Sending(idempotent=False))
    assert admin.producers(topic, 0) == []
    reader.produce(topic, numbered(10), Sending(idempotent=True))
    reader.produce(topic, numbered(20), Sending(idempotent=True))
    assert admin.producers(topic, 1) == []
    known = admin.producers(topic, 0)
    assert sorted(state.last_sequence for state in known) == [9, 19]
    assert {state.epoch for state in known} == {0}
    assert len({state.producer_id for state in known}) == 2
