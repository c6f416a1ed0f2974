"""`topics describe --replicas` and `topics reassign`: on any Kafka, wrong wishes are refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Gapless, NewTopic


def test_every_replica_tells_of_its_own_log(gapless: Gapless, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    gapless("produce", topic, "--count", "10")
    shown = json.loads(gapless("topics", "describe", topic, "--replicas", "--json").out)
    assert [partition["partition"] for partition in shown["partitions"]] == [0, 1]
    ends = 0
    for partition in shown["partitions"]:
        (replica,) = partition["replicas"]
        assert (replica["role"], replica["broker"]) == ("leader", partition["leader"])
        assert partition["isr"] == [partition["leader"]]
        assert replica["log_end"] == replica["high_watermark"]
        ends += replica["log_end"]
    assert ends == 10
    table = gapless("topics", "describe", topic, "--replicas").out
    assert "HIGH WATERMARK" in table


def test_a_topic_that_is_where_it_should_be_is_moved_at_once(gapless: Gapless, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    ran = gapless("topics", "reassign", topic, "--brokers", "1")
    assert (ran.code, ran.out) == (0, f"{topic}: moved 2 partitions\n")


@pytest.mark.parametrize(
    ("options", "code", "line"),
    [
        (("--brokers", "7"), 1, "cannot reassign partition 0 of"),
        (("--replicas", "9=1"), 1, "has no partition 9"),
        (("--cancel",), 1, "no replicas are being moved"),
        ((), 2, "give one of --brokers, --replicas and --cancel"),
        (("--brokers", "1", "--cancel"), 2, "give one of --brokers, --replicas and --cancel"),
        (("--brokers", "one"), 2, "expects broker ids separated by commas, found: one"),
        (("--brokers", "1,1"), 2, "names a broker twice"),
        (("--replicas", "0"), 2, "expects PARTITION=ID,ID,…, found: 0"),
        (("--replicas", "0=1", "--replicas", "0=1"), 2, "names partition 0 twice"),
    ],
)
def test_wrong_wishes_are_refused_in_one_line(
    options: tuple[str, ...], code: int, line: str, gapless: Gapless, new_topic: NewTopic
) -> None:
    ran = gapless("topics", "reassign", new_topic(), *options)
    assert (ran.code, ran.out) == (code, "")
    assert line in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    "command", [("describe", "nope", "--replicas"), ("reassign", "nope", "--brokers", "1")]
)
def test_a_topic_that_is_not_there_is_an_error(command: tuple[str, ...], gapless: Gapless) -> None:
    ran = gapless("topics", *command)
    assert (ran.code, ran.out) == (1, "")
    assert "there is no such topic" in ran.err


def test_a_cluster_that_does_not_answer_is_told_in_one_line(run_gapless: Gapless) -> None:
    ran = run_gapless("topics", "describe", "t", "--replicas", "--bootstrap", "127.0.0.1:1")
    assert (ran.code, ran.out) == (3, "")
    assert "cannot reach a Kafka broker at 127.0.0.1:1" in ran.err
    assert ran.err.count("\n") == 1


def test_properties_that_have_no_counterpart_are_refused(run_gapless: Gapless, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("sasl.oauthbearer.config=x\n")
    ran = run_gapless("topics", "describe", "t", "--replicas", "--client-config", str(file))
    assert (ran.code, ran.out) == (2, "")
    assert "sasl.oauthbearer.config" in ran.err
