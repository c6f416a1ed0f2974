"""Mistakes get the error that Kafka gives, under each client's own name for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gapless.wire.errors import ErrorCode

from .admins import Admin, ModernAdmin, ReplacingAdmin
from .clients import BrokerRefused, Client, Sending
from .clients.confluent import Confluent
from .conftest import ADMINS, MODERN_ADMINS, REPLACING_ADMINS, NewTopic
from .sample import Record, numbered


def code_of(mistake: Callable[..., Any], *arguments: Any, **more: Any) -> ErrorCode:
    with pytest.raises(BrokerRefused) as refusal:
        mistake(*arguments, **more)
    return refusal.value.code


def test_a_topic_cannot_be_made_twice(admin: Admin, new_topic: NewTopic) -> None:
    assert code_of(admin.create_topic, new_topic()) == ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize("name", ["a b", "slash/ed", "..", "x" * 250])
def test_a_topic_must_have_a_lawful_name(admin: Admin, name: str) -> None:
    assert code_of(admin.create_topic, name) == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_topics_that_differ_only_in_dots_and_underscores_collide(
    admin: Admin, topic_name: Callable[[], str]
) -> None:
    """Their metrics would have the same name."""
    base = topic_name()
    admin.create_topic(f"{base}.a_b")
    assert code_of(admin.create_topic, f"{base}_a.b") == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_there_cannot_be_more_replicas_than_brokers(admin: Admin, topic_name: Callable[[], str]) -> None:
    too_many = len(admin.cluster().brokers) + 1
    code = code_of(admin.create_topic, topic_name(), replication_factor=too_many)
    assert code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_a_topic_needs_a_partition(admin: Admin, topic_name: Callable[[], str]) -> None:
    assert code_of(admin.create_topic, topic_name(), 0) == ErrorCode.INVALID_PARTITIONS


@pytest.mark.parametrize(
    "settings",
    [
        {"retention.ms": "soon"},
        {"retention.ms": "-2"},
        {"cleanup.policy": "forget"},
        {"compression.type": "arj"},
        {"no.such.setting": "1"},
        {"min.insync.replicas": "0"},
    ],
    ids=lambda settings: "=".join(next(iter(settings.items()))),
)
def test_a_setting_must_exist_and_have_a_lawful_value(
    admin: Admin, topic_name: Callable[[], str], settings: Mapping[str, str]
) -> None:
    topic = topic_name()
    assert code_of(admin.create_topic, topic, settings=settings) == ErrorCode.INVALID_CONFIG
    assert topic not in admin.topics()


@pytest.mark.parametrize("admin", MODERN_ADMINS, indirect=True)
def test_a_refused_change_changes_nothing(admin: ModernAdmin, new_topic: NewTopic) -> None:
    topic = new_topic(1, {"retention.ms": "3600000"})
    assert code_of(admin.change_setting, topic, "retention.ms", "soon") == ErrorCode.INVALID_CONFIG
    assert admin.settings(topic)["retention.ms"] == ("3600000", True)


def test_partitions_are_never_taken_away(admin: Admin, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    assert code_of(admin.add_partitions, topic, 2) == ErrorCode.INVALID_PARTITIONS
    assert code_of(admin.add_partitions, topic, 3) == ErrorCode.INVALID_PARTITIONS
    assert len(admin.describe(topic)) == 3


def test_what_is_not_there_is_unknown(admin: Admin, topic_name: Callable[[], str]) -> None:
    topic, unknown = topic_name(), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code_of(admin.delete_topic, topic) == unknown
    assert code_of(admin.add_partitions, topic, 4) == unknown


@pytest.mark.parametrize("admin", [name for name in ADMINS if name != "kafka-python"], indirect=True)
def test_an_unknown_topic_has_no_settings(admin: Admin, topic_name: Callable[[], str]) -> None:
    """kafka-python does not look at this error."""
    assert code_of(admin.settings, topic_name()) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("admin", REPLACING_ADMINS, indirect=True)
def test_settings_of_an_unknown_topic_cannot_be_replaced(
    admin: ReplacingAdmin, topic_name: Callable[[], str]
) -> None:
    code = code_of(admin.replace_settings, topic_name(), {"retention.ms": "1"})
    assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("admin", ["confluent", "java-4.3", "java-3.9"], indirect=True)
def test_describing_an_unknown_topic_does_not_make_it(admin: Admin, topic_name: Callable[[], str]) -> None:
    topic = topic_name()
    assert code_of(admin.describe, topic) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert topic not in admin.topics()


@pytest.mark.parametrize("admin", MODERN_ADMINS, indirect=True)
def test_records_beyond_the_end_cannot_be_deleted(
    admin: ModernAdmin, reader: Confluent, new_topic: NewTopic
) -> None:
    topic = new_topic()
    reader.produce(topic, numbered(10))
    assert code_of(admin.delete_records, topic, 0, 11) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert reader.bounds(topic, 0) == (0, 10)


def test_a_record_larger_than_the_topic_allows_is_refused_and_others_are_not(
    client: Client, reader: Confluent, new_topic: NewTopic
) -> None:
    """The producer would send it: the refusal is the broker's."""
    topic = new_topic(1, {"max.message.bytes": "100000"})
    how = Sending(request_bytes_max=5_000_000)
    client.produce(topic, [Record(b"." * 99_000)], how)
    if client.name == "kcat":
        with pytest.raises(RuntimeError, match="Message size too large"):
            client.produce(topic, [Record(b"." * 101_000)], how)
    else:
        assert code_of(client.produce, topic, [Record(b"." * 101_000)], how) == ErrorCode.MESSAGE_TOO_LARGE
    client.produce(topic, [Record(b"small")], how)
    first, end = reader.bounds(topic, 0)
    assert [len(record.value or b"") for record in reader.read(topic, 0, first, end)] == [99_000, 5]
