"""`gapless topics`, the life of a topic."""

from __future__ import annotations

import json

from .conftest import Gapless, NewTopic


def test_a_created_topic_is_listed_with_its_records(gapless: Gapless, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    gapless("produce", topic, "--count", "10")
    listed = {row["topic"]: row for row in json.loads(gapless("topics", "list", "--json").out)}
    assert listed[topic] == {"topic": topic, "partitions": 3, "replicas": 1, "records": 10}
    assert topic in gapless("topics", "list").out


def test_internal_topics_are_listed_only_when_asked_for(gapless: Gapless) -> None:
    assert gapless("topics", "create", "__inner", "--if-not-exists").code == 0
    assert "__inner" not in gapless("topics", "list").out
    assert "__inner" in gapless("topics", "list", "--all").out


def test_an_existing_topic_is_an_error_unless_it_may_exist(gapless: Gapless, new_topic: NewTopic) -> None:
    topic = new_topic()
    again = gapless("topics", "create", topic)
    assert again.code == 1
    assert again.err.startswith(f"gapless: cannot create {topic}: ")
    assert gapless("topics", "create", topic, "--if-not-exists").code == 0


def test_what_the_cluster_refuses_is_said_in_its_words(gapless: Gapless) -> None:
    unknown = gapless("topics", "create", "t", "--config", "no.such.setting=1")
    assert (unknown.code, unknown.out) == (1, "")
    assert "no.such.setting" in unknown.err
    too_many = gapless("topics", "create", "t", "--replication-factor", "7")
    assert (too_many.code, too_many.out) == (1, "")
    assert too_many.err.count("\n") == 1


def test_describe_shows_partitions_offsets_and_settings(gapless: Gapless, new_topic: NewTopic) -> None:
    topic = new_topic(2, "--config", "retention.ms=123456")
    gapless("produce", topic, "--partition", "1", stdin=b"a\nb\n")
    told = json.loads(gapless("topics", "describe", topic, "--json").out)
    assert told["topic"] == topic
    assert told["configs"]["retention.ms"] == "123456"
    first, second = told["partitions"]
    assert (first["partition"], first["start"], first["end"], first["records"]) == (0, 0, 0, 0)
    assert (second["partition"], second["start"], second["end"], second["records"]) == (1, 0, 2, 2)
    assert [first["leader"]] == first["replicas"] == first["isr"]
    shown = gapless("topics", "describe", topic).out
    assert "retention.ms" in shown
    assert "123456" in shown


def test_describe_of_a_topic_that_is_not_there(gapless: Gapless) -> None:
    ran = gapless("topics", "describe", "nowhere")
    assert (ran.code, ran.err) == (
        1,
        "gapless: cannot describe nowhere: there is no such topic or partition\n",
    )


def test_alter_adds_partitions_and_changes_settings(gapless: Gapless, new_topic: NewTopic) -> None:
    topic = new_topic(2, "--config", "retention.ms=5000")
    ran = gapless(
        *("topics", "alter", topic, "--partitions", "5"),
        *("--config", "segment.bytes=2000000", "--delete-config", "retention.ms"),
    )
    assert ran.code == 0, ran.err
    told = json.loads(gapless("topics", "describe", topic, "--json").out)
    assert len(told["partitions"]) == 5
    assert told["configs"]["segment.bytes"] == "2000000"
    assert told["configs"].get("retention.ms") != "5000"


def test_partitions_cannot_be_removed(gapless: Gapless, new_topic: NewTopic) -> None:
    ran = gapless("topics", "alter", new_topic(3), "--partitions", "2")
    assert ran.code == 1
    assert "partitions can be added, never removed" in ran.err


def test_delete_deletes_what_is_there_and_reports_what_is_not(gapless: Gapless, new_topic: NewTopic) -> None:
    topic = new_topic()
    ran = gapless("topics", "delete", topic, "nowhere", "--yes")
    assert (ran.code, ran.out) == (1, f"deleted {topic}\n")
    assert ran.err == "gapless: cannot delete nowhere: there is no such topic or partition\n"
    assert topic not in gapless("topics", "list").out
