"""`gapless consume`: what is there, from where to where one wants it, by assignment."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer

from gapless.cli.positions import Position, parse_position

from .conftest import Gapless, NewTopic


@pytest.fixture
def letters(gapless: Gapless, new_topic: NewTopic) -> str:
    """A topic with a to e in its one partition."""
    topic = new_topic()
    assert gapless("produce", topic, stdin=b"a\nb\nc\nd\ne\n").code == 0
    return topic


@pytest.mark.slow_variants("apache")
@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], "abcde"),
        (["--from", "beginning"], "abcde"),
        (["--from", "end"], ""),
        (["--from", "2"], "cde"),
        (["--from", "99"], ""),
        (["--to", "2"], "ab"),
        (["--to", "99"], "abcde"),
        (["--from", "1", "--to", "3"], "bc"),
        (["--from", "3", "--to", "1"], ""),
        (["--count", "2"], "ab"),
        (["--from", "1", "--count", "9"], "bcde"),
        (["--from", "2001-01-01"], "abcde"),
        (["--from", "2101-01-01T00:00Z"], ""),
        (["--to", "2001-01-01"], ""),
        (["--follow", "--to", "4"], "abcd"),
        (["--follow", "--count", "3"], "abc"),
        (["--isolation", "read_uncommitted"], "abcde"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_from_where_to_where(argv: list[str], expected: str, letters: str, gapless: Gapless) -> None:
    ran = gapless("consume", letters, *argv)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "".join(f"{letter}\n" for letter in expected)


def test_a_time_selects_the_records_from_then_on(
    bootstrap: str, gapless: Gapless, new_topic: NewTopic
) -> None:
    topic = new_topic()
    producer = Producer({"bootstrap.servers": bootstrap})
    noon_ms = int(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp() * 1000)
    for minute in range(4):
        producer.produce(topic, f"minute {minute}".encode(), timestamp=noon_ms + minute * 60_000)
        producer.flush()
    argv = ["--from", "2026-01-31T12:01Z", "--to", "2026-01-31T13:02:30+01:00"]
    assert gapless("consume", topic, *argv).out == "minute 1\nminute 2\n"


def test_partitions_can_be_chosen(gapless: Gapless, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    for partition in range(3):
        gapless("produce", topic, "--partition", str(partition), stdin=b"%d\n" % partition)
    assert sorted(gapless("consume", topic).out.split()) == ["0", "1", "2"]
    assert sorted(gapless("consume", topic, "--partition", "0", "--partition", "2").out.split()) == ["0", "2"]
    ran = gapless("consume", topic, "--partition", "3")
    assert (ran.code, ran.err) == (2, f"gapless: {topic} has no partition 3: it has 0 to 2\n")


def test_a_topic_that_is_not_there_is_an_error_and_is_not_created(gapless: Gapless) -> None:
    ran = gapless("consume", "nowhere-to-read")
    assert (ran.code, ran.out) == (1, "")
    assert "no such topic" in ran.err
    assert "nowhere-to-read" not in gapless("topics", "list").out


def test_json_has_all_of_a_record(bootstrap: str, gapless: Gapless, new_topic: NewTopic) -> None:
    topic = new_topic()
    producer = Producer({"bootstrap.servers": bootstrap})
    headers: list[tuple[str, str | bytes | None]] = [("a", b"1"), ("a", None), ("b", b"\xff")]
    producer.produce(topic, key=b"\x00\xff", value=None, headers=headers, timestamp=1_700_000_000_123)
    producer.flush()
    assert json.loads(gapless("consume", topic, "--json").out) == {
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp": 1_700_000_000_123,
        "timestamp_type": "create",
        "key": "AP8=",
        "key_encoding": "base64",
        "headers": [
            {"name": "a", "value": "1"},
            {"name": "a", "value": None},
            {"name": "b", "value": "/w==", "value_encoding": "base64"},
        ],
        "value": None,
    }


def test_a_format_of_ones_own(bootstrap: str, gapless: Gapless, new_topic: NewTopic) -> None:
    topic = new_topic()
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, key=b"k", value=b"v", headers=[("h", b"1")], timestamp=1_700_000_000_123)
    producer.flush()
    template = r"{topic}\t{partition}/{offset:04} {timestamp} {time} {key}={value} [{headers}] {{}}"
    expected = f"{topic}\t0/0000 1700000000123 2023-11-14T22:13:20.123+00:00 k=v [h=1] {{}}\n"
    assert gapless("consume", topic, "--format", template).out == expected


def test_following_shows_what_comes_later(bootstrap: str, gapless: Gapless, letters: str) -> None:
    command = [sys.executable, "-m", "gapless", "consume", letters, "--follow", "--bootstrap", bootstrap]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert [child.stdout.readline() for _ in range(5)] == [b"a\n", b"b\n", b"c\n", b"d\n", b"e\n"]
        gapless("produce", letters, stdin=b"later\n")
        assert child.stdout.readline() == b"later\n"
        child.send_signal(signal.SIGINT)
        child.wait(timeout=30)


def test_what_retention_took_is_said(bootstrap: str, gapless: Gapless, letters: str) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for deleted in admin.delete_records([TopicPartition(letters, 0, 3)]).values():
        deleted.result()
    ran = gapless("consume", letters, "--from", "1")
    assert (ran.code, ran.out) == (0, "d\ne\n")
    assert ran.err == f"gapless: {letters}/0 starts at 3: what was before it is no longer there\n"


def test_many_records_come_in_order(gapless: Gapless, new_topic: NewTopic) -> None:
    topic = new_topic()
    gapless("produce", topic, "--count", "50000")
    numbers = [int(line[:5]) for line in gapless("consume", topic).out.splitlines()]
    assert numbers == list(range(50_000))


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("beginning", Position(edge="beginning")),
        ("end", Position(edge="end")),
        ("17", Position(offset=17)),
        ("1970-01-01T00:00:01.5Z", Position(time_ms=1500)),
        ("1970-01-01T01:00:00+01:00", Position(time_ms=0)),
    ],
)
def test_positions_as_people_write_them(text: str, position: Position) -> None:
    assert parse_position(text, "--from") == position


def test_a_time_without_zone_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Etc/GMT-2")
    time.tzset()
    try:
        assert parse_position("1970-01-01T02:00:01", "--to") == Position(time_ms=1000)
    finally:
        monkeypatch.undo()
        time.tzset()
