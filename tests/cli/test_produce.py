"""`gapless produce`: every record has a receipt, and the exit code tells of the first one without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Gapless, NewTopic


def values_in(gapless: Gapless, topic: str) -> list[str]:
    return gapless("consume", topic).out.splitlines()


def test_each_line_is_a_record(gapless: Gapless, new_topic: NewTopic) -> None:
    topic = new_topic()
    ran = gapless("produce", topic, stdin="one\n\ndrei ö\nlast without newline".encode())
    assert ran.code == 0, ran.err
    assert ran.out.startswith("4 acknowledged, 0 failed")
    assert values_in(gapless, topic) == ["one", "", "drei ö", "last without newline"]


def test_a_file_is_sent_as_it_is(gapless: Gapless, new_topic: NewTopic, tmp_path: Path) -> None:
    topic = new_topic()
    file = tmp_path / "lines"
    file.write_bytes(b"a\r\n\xff\xfe\n")
    assert gapless("produce", topic, "--file", str(file)).code == 0
    records = [json.loads(line) for line in gapless("consume", topic, "--json").out.splitlines()]
    assert [record["value"] for record in records] == ["a\r", "//4="]
    assert "value_encoding" not in records[0]
    assert records[1]["value_encoding"] == "base64"


def test_keys_headers_and_partition_go_with_the_record(gapless: Gapless, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    argv = ["--key-separator", "::", "--header", "source=test", "--header", "n=1", "--partition", "2"]
    assert gapless("produce", topic, *argv, stdin=b"k::v::w\n").code == 0
    record = json.loads(gapless("consume", topic, "--json").out)
    assert (record["partition"], record["key"], record["value"]) == (2, "k", "v::w")
    assert record["headers"] == [{"name": "source", "value": "test"}, {"name": "n", "value": "1"}]


def test_a_line_without_separator_stops_and_what_was_before_it_is_sent(
    gapless: Gapless, new_topic: NewTopic
) -> None:
    topic = new_topic()
    ran = gapless("produce", topic, "--key-separator", ":", stdin=b"a:1\nbroken\nc:3\n")
    assert ran.code == 1
    assert ran.out.startswith("1 acknowledged")
    assert ran.err == "gapless: line 2 has no ':' between key and value; stopped there\n"
    assert values_in(gapless, topic) == ["1"]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_numbered_records_of_a_size(codec: str, gapless: Gapless, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    argv = ["--count", "1000", "--size", "20", "--compression", codec, "--json"]
    ran = gapless("produce", topic, *argv)
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)
    assert (report["acknowledged"], report["failed"], report["unknown"]) == (1000, 0, 0)
    values = values_in(gapless, topic)
    assert sorted(int(value[:3]) for value in values) == list(range(1000))
    assert {len(value) for value in values} == {20}


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement(acks: str, gapless: Gapless, new_topic: NewTopic) -> None:
    topic = new_topic()
    assert gapless("produce", topic, "--acks", acks, "--count", "10").code == 0


def test_acks_in_the_file_hold_unless_an_option_says_otherwise(
    gapless: Gapless, new_topic: NewTopic, tmp_path: Path
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("acks=1\n")
    topic = new_topic()
    assert gapless("produce", topic, "--count", "1", "--client-config", str(file)).code == 0
    assert gapless("produce", topic, "--count", "1", "--acks", "all", "--client-config", str(file)).code == 0


def test_records_that_the_broker_refuses_are_counted_and_the_exit_code_says_so(
    gapless: Gapless, new_topic: NewTopic
) -> None:
    topic = new_topic(1, "--config", "max.message.bytes=1000")
    ran = gapless("produce", topic, "--json", stdin=b"small\n" + b"x" * 5000 + b"\n")
    assert ran.code == 1
    report = json.loads(ran.out)
    assert report["failed"] >= 1
    assert report["acknowledged"] + report["failed"] == 2
    assert report["unknown"] == 0


def test_a_record_too_large_for_the_client_is_counted_too(gapless: Gapless, new_topic: NewTopic) -> None:
    topic = new_topic()
    ran = gapless("produce", topic, stdin=b"a\n" + b"x" * 2_000_000 + b"\nb\n")
    assert ran.code == 1
    assert ran.out.startswith("2 acknowledged, 1 failed")
    assert values_in(gapless, topic) == ["a", "b"]


def test_a_partition_that_is_not_there_is_refused_before_sending(
    gapless: Gapless, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    ran = gapless("produce", topic, "--partition", "2", "--count", "1")
    assert (ran.code, ran.err) == (2, f"gapless: {topic} has no partition 2: it has 0 to 1\n")
