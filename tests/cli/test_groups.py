"""`gapless groups`, on our broker and on Apache Kafka."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from .conftest import Gapless, NewTopic

_numbers = itertools.count()
PATIENCE_S = 20.0
STARTING = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
}


@pytest.fixture
def new_group() -> Callable[[], str]:
    return lambda: f"cli-group-{next(_numbers)}"


def commit(bootstrap: str, group: str, offsets: dict[tuple[str, int], int]) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    wanted = [TopicPartition(*place, offset) for place, offset in offsets.items()]
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            consumer.commit(offsets=wanted, asynchronous=False)
            break
        except KafkaException as error:  # Apache Kafka's first group waits for its internal topic
            if error.args[0].code() not in STARTING or time.monotonic() > deadline:
                raise
    consumer.close()


@contextmanager
def live(bootstrap: str, group: str, topic: str, **settings: str) -> Iterator[Consumer]:
    """A member that has its partitions."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, **settings})
    consumer.subscribe([topic])
    for _ in range(int(PATIENCE_S / 0.2)):
        consumer.poll(0.2)
        if consumer.assignment():
            break
    yield consumer
    consumer.close()


def described(gapless: Gapless, group: str) -> dict[str, Any]:
    ran = gapless("groups", "describe", group, "--json")
    assert ran.code == 0, ran.err
    told: dict[str, Any] = json.loads(ran.out)
    return told


def committed(gapless: Gapless, group: str) -> dict[int, int]:
    return {each["partition"]: each["committed"] for each in described(gapless, group)["partitions"]}


def test_a_group_is_listed_and_described_with_its_lag(
    gapless: Gapless, bootstrap: str, new_topic: NewTopic, new_group: Callable[[], str]
) -> None:
    topic, group = new_topic(2), new_group()
    gapless("produce", topic, "--partition", "0", "--count", "10")
    gapless("produce", topic, "--partition", "1", "--count", "5")
    commit(bootstrap, group, {(topic, 0): 4, (topic, 1): 5})
    listed = {row["group"]: row for row in json.loads(gapless("groups", "list", "--json").out)}
    assert listed[group] == {"group": group, "state": "empty", "protocol": "classic"}
    told = described(gapless, group)
    assert (told["state"], told["lag"], told["members"]) == ("empty", 6, [])
    lags = {each["partition"]: (each["committed"], each["end"], each["lag"]) for each in told["partitions"]}
    assert lags == {0: (4, 10, 6), 1: (5, 5, 0)}
    shown = gapless("groups", "describe", group).out
    assert shown.startswith(f"{group}  (empty, 0 members, 6 behind)")
    assert group in gapless("groups", "list").out


def test_members_are_shown_with_what_they_read(
    gapless: Gapless, bootstrap: str, new_topic: NewTopic, new_group: Callable[[], str]
) -> None:
    topic, group = new_topic(3), new_group()
    with live(bootstrap, group, topic, **{"client.id": "till", "group.instance.id": "box-1"}):
        told = described(gapless, group)
        assert (told["state"], told["assignor"]) == ("stable", "range")
        (member,) = told["members"]
        assert (member["client"], member["instance"], member["partitions"]) == ("till", "box-1", 3)
        assert member["host"] == "127.0.0.1"
        assert [each["member"] for each in told["partitions"]] == [member["member"]] * 3
        assert [each["lag"] for each in told["partitions"]] == [None] * 3
        assert "box-1" in gapless("groups", "describe", group).out


def test_reset_shows_what_it_would_do_and_does_it_when_told(
    gapless: Gapless, bootstrap: str, new_topic: NewTopic, new_group: Callable[[], str]
) -> None:
    """Claim E7: the group reads again from where it was put."""
    topic, group = new_topic(2), new_group()
    gapless("produce", topic, "--partition", "0", "--count", "10")
    commit(bootstrap, group, {(topic, 0): 10, (topic, 1): 0})
    dry = gapless("groups", "reset", group, "--to", "earliest")
    assert dry.code == 0
    assert "nothing was changed: add --yes to do it" in dry.err
    assert committed(gapless, group) == {0: 10, 1: 0}
    done = json.loads(gapless("groups", "reset", group, "--to", "earliest", "--yes", "--json").out)
    assert done["done"] is True
    assert [(each["partition"], each["committed"], each["new"]) for each in done["partitions"]] == [
        (0, 10, 0),
        (1, 0, 0),
    ]
    assert committed(gapless, group) == {0: 0, 1: 0}
    gapless("groups", "reset", group, "--to", "latest", "--yes")
    assert committed(gapless, group) == {0: 10, 1: 0}
    ran = gapless("groups", "reset", group, "--topic", f"{topic}:0", "--to", "3", "--yes")
    assert ran.out.endswith(f"{group} goes on from here\n")
    assert committed(gapless, group) == {0: 3, 1: 0}


def test_reset_to_a_time_goes_to_the_first_record_not_older(
    gapless: Gapless, bootstrap: str, new_topic: NewTopic, new_group: Callable[[], str]
) -> None:
    topic, group = new_topic(), new_group()
    gapless("produce", topic, "--count", "3")
    commit(bootstrap, group, {(topic, 0): 1})
    gapless("groups", "reset", group, "--to", "2020-01-01T00:00", "--yes")
    assert committed(gapless, group) == {0: 0}
    gapless("groups", "reset", group, "--to", "2100-01-01T00:00", "--yes")
    assert committed(gapless, group) == {0: 3}


def test_an_offset_that_is_not_there_is_moved_to_the_nearest(
    gapless: Gapless, new_topic: NewTopic, new_group: Callable[[], str]
) -> None:
    topic, group = new_topic(), new_group()
    gapless("produce", topic, "--count", "3")
    ran = gapless("groups", "reset", group, "--topic", topic, "--to", "99", "--yes")
    assert ran.code == 0, ran.err
    assert f"{topic}, partition 0 has offsets 0 to 3: 3 instead of 99" in ran.err
    assert committed(gapless, group) == {0: 3}


def test_a_live_group_is_neither_reset_nor_deleted(
    gapless: Gapless, bootstrap: str, new_topic: NewTopic, new_group: Callable[[], str]
) -> None:
    topic, group = new_topic(), new_group()
    with live(bootstrap, group, topic):
        ran = gapless("groups", "reset", group, "--topic", topic, "--to", "earliest", "--yes")
        assert (ran.code, ran.out) == (1, "")
        assert ran.err == (
            f"gapless: {group} is stable with 1 member: "
            "stop its consumers first, they would overwrite the new offsets\n"
        )
        ran = gapless("groups", "delete", group, "--yes")
        assert (ran.code, ran.out) == (1, "")
        assert ran.err == f"gapless: cannot delete {group}: it has members, stop its consumers first\n"


def test_delete_deletes_what_is_there_and_reports_what_is_not(
    gapless: Gapless, bootstrap: str, new_topic: NewTopic, new_group: Callable[[], str]
) -> None:
    topic, group = new_topic(), new_group()
    commit(bootstrap, group, {(topic, 0): 0})
    ran = gapless("groups", "delete", group, "nobody", "--yes")
    assert (ran.code, ran.out) == (1, f"deleted {group}\n")
    assert ran.err == "gapless: cannot delete nobody: there is no such group\n"
    assert group not in gapless("groups", "list").out
    assert gapless("groups", "delete", group).err.startswith("gapless: nobody can be asked here")


def test_what_is_not_there_is_said_in_one_line(
    gapless: Gapless, new_topic: NewTopic, new_group: Callable[[], str]
) -> None:
    group = new_group()
    ran = gapless("groups", "describe", group)
    assert (ran.code, ran.err) == (1, f"gapless: there is no group {group} (see: gapless groups list)\n")
    ran = gapless("groups", "reset", group, "--to", "earliest")
    assert (ran.code, ran.err) == (
        2,
        f"gapless: {group} has committed nothing: say what to reset with --topic\n",
    )
    ran = gapless("groups", "reset", group, "--topic", "nowhere", "--to", "earliest")
    assert (ran.code, ran.err) == (1, "gapless: there is no topic nowhere\n")
    topic = new_topic(2)
    ran = gapless("groups", "reset", group, "--topic", f"{topic}:1,7", "--to", "earliest")
    assert (ran.code, ran.err) == (1, f"gapless: {topic} has no partition 7: it has 2\n")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--to", "somewhere"), "--to expects earliest, latest, an offset or a time"),
        (("--to", "earliest", "--topic", "t:x"), "--topic expects TOPIC or TOPIC:PARTITION"),
        ((), "Missing option '--to'"),
    ],
)
def test_wrong_options_are_usage_errors(
    options: tuple[str, ...], complaint: str, run_gapless: Gapless
) -> None:
    ran = run_gapless("groups", "reset", "g", *options)
    assert ran.code == 2
    assert complaint in ran.err
    assert ran.err.count("\n") == 1
