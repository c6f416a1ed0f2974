"""`gapless audit`: the verdict as a table, as JSON and as an exit code; and what is lost comes again (F3)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from gapless import Producer
from gapless.audit import Counts, Fault, Finding, Hop, Report
from gapless.cli.audit.showing import show
from gapless.client.formats import Interval
from gapless.client.producing.resending import Resending
from gapless.client.spool.inspect import status

from .conftest import Gapless, NewTopic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def filled(bootstrap: str, new_topic: NewTopic, tmp_path: Path) -> tuple[str, Path]:
    """A topic with a hundred records, and the spool from which they were sent."""
    topic, spool = new_topic(2), tmp_path / "spool"
    with Producer(bootstrap, topic, "exactly-once", spool=spool) as producer:
        for number in range(100):
            producer.send(topic, b"%d" % number, partition=number % 2)
    return topic, spool


def test_a_clean_topic(spark: SparkSession, gapless: Gapless, filled: tuple[str, Path]) -> None:
    topic, spool = filled
    ran = gapless("audit", "--topic", topic, "--spool", str(spool))
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0] == "producers → topic"
    assert lines[1].split() == ["SOURCE", "PROMISED", "PRESENT", "LOST", "DUPLICATED", "REORDERED"]
    assert lines[2].split() == [topic, "100", "100", "0", "0", "0"]
    assert lines[-1] == "clean: all 100 promised records are there, once"
    told = json.loads(gapless("audit", "--topic", topic, "--json").out)
    assert told["verdict"] == "clean"
    assert told["hops"][0]["sources"][topic]["present"] == 100


def test_what_is_lost_is_named_and_comes_again(
    spark: SparkSession, gapless: Gapless, filled: tuple[str, Path], bootstrap: str
) -> None:
    topic, spool = filled
    make_anew(bootstrap, gapless, topic)
    incarnation = status(spool).incarnation
    with Resending(spool, {"bootstrap.servers": bootstrap}) as resending:
        resending.send({incarnation: [Interval(topic, 0, 0, 9), Interval(topic, 0, 12, 30)]})
    ran = gapless("audit", "--topic", topic)
    assert ran.code == 1, ran.err
    assert f"lost: {topic} ({incarnation.hex()[:8]}) {topic}-0 10 to 11, between offsets 9 and 10" in ran.out
    assert f"{topic}-1 0 to 49, with nothing else of it there" in ran.out
    assert ran.out.splitlines()[-1] == "not clean: 71 lost, 0 duplicated, 0 reordered"

    repaired = gapless("audit", "--topic", topic, "--spool", str(spool), "--repair")
    assert repaired.code == 0, repaired.out + repaired.err
    assert "sent 71 lost records again" in repaired.err
    assert repaired.out.splitlines()[-1] == "clean: all 100 promised records are there, once"
    again = gapless("audit", "--topic", topic, "--spool", str(spool), "--repair")
    assert again.code == 0
    assert "again" not in again.err


def test_only_aborted_records_are_not_clean_either(capfd: pytest.CaptureFixture[str]) -> None:
    aborted = Finding(Fault.ABORTED, "(no identity)", "", "orders", 0, 5, 6, 2, 5, 6, None, None)
    clean = Hop("producers → topic", {"till": Counts(promised=3, present=3)})
    sink = Hop("orders → delta:x", {"till": Counts(promised=3, present=3, aborted=2)}, [aborted])
    show(Report("orders", "there:9092", 0, [clean, sink]))
    said = capfd.readouterr().out.splitlines()
    assert said[-1] == "not clean: 0 lost, 0 duplicated, 0 reordered, 2 aborted"
    assert "aborted: (no identity) orders-0 5 to 6, of offsets 5 to 6" in said


def make_anew(bootstrap: str, gapless: Gapless, topic: str) -> None:
    """A topic of the same name, with nothing in it."""
    assert gapless("topics", "delete", topic, "--yes").code == 0
    admin = AdminClient({"bootstrap.servers": bootstrap})
    deadline_s = time.monotonic() + 30
    while topic in admin.list_topics(timeout=10).topics and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert gapless("topics", "create", topic, "--partitions", "2").code == 0


def test_without_promises_nobody_can_tell(spark: SparkSession, gapless: Gapless, new_topic: NewTopic) -> None:
    ran = gapless("audit", "--topic", new_topic())
    assert ran.code == 2, ran.err
    assert ran.out.splitlines()[-1] == "could not tell whether all is there"


def test_usage(gapless: Gapless) -> None:
    for options, said in (
        (["--where", "true"], "--sink: name one"),
        (["--sink", "delta:x", "--window", "5 minutes"], "--window and --sink-time go together"),
        (["--watch", "--foreign"], "--watch goes by promises"),
        (["--watch", "--sink", "kafka:x", "--by", "key"], "--watch compares by offset or identity"),
        (["--sink-keeps", "7d"], "--sink: name one"),
        (["--sink", "kafka:x", "--sink-keeps", "long"], "is no duration"),
        (["--metrics-port", "9400"], "go with --watch"),
        (["--html", "no/such/folder/page.html"], "there is no folder no/such/folder"),
        (["--sink", "mysql:x"], "names no sink"),
        (["--repair"], "--repair needs the --spool"),
    ):
        ran = gapless("audit", "--topic", "orders", *options)
        assert (ran.code, ran.out) == (2, "")
        assert said in ran.err
        assert ran.err.count("\n") == 1
    ran = gapless("audit", "--topic", "nowhere")
    assert ran.code == 2
    assert "there is no topic nowhere" in ran.err
