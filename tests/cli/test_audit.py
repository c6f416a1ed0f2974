"""`gapless audit`: the verdict as a table, as JSON and as an exit code; and what is lost comes again (F3)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from gapless import Producer
from gapless.audit import Counts, Fault, Finding, Hop, Report
from gapless.cli.audit.showing import show
from gapless.client.formats import SEQUENCE_HEADER, SOURCE_HEADER, Interval, sequence_header, source_header
from gapless.client.producing.resending import Resending
from gapless.client.spool.inspect import status
from gapless.pipeline import session
from gapless.testing.processes import free_ports

from .conftest import Gapless, NewTopic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Headers = list[tuple[str, str | bytes | None]]
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


@pytest.mark.slow_variants("apache")
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


def send(bootstrap: str, topic: str, headers: Iterable[Headers], end: str) -> None:
    """To partition 0, in one transaction that is committed or aborted."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for each in headers:
        producer.produce(topic, b"value", partition=0, headers=each)
    producer.flush()
    getattr(producer, f"{end}_transaction")(30)


def identities(source: str, spool: Path, numbers: Iterable[int]) -> list[Headers]:
    maker = source_header(source, status(spool).incarnation)
    return [[(SOURCE_HEADER, maker), (SEQUENCE_HEADER, sequence_header(number))] for number in numbers]


@pytest.mark.slow_variants("apache")
def test_a_page_is_written_of_topic_and_sink(
    spark: SparkSession, gapless: Gapless, filled: tuple[str, Path], new_topic: NewTopic, bootstrap: str
) -> None:
    topic, spool = filled
    copy, page = new_topic(), spool.with_name("report.html")
    every = identities(topic, spool, [number for number in range(50) for _ in (0, 1)])
    send(bootstrap, copy, every[:-1], "commit")
    page.write_text("what was there before")
    ran = gapless("audit", "--topic", topic, "--sink", f"kafka:{copy}", "--html", str(page))
    assert ran.code == 1, ran.err
    assert f"report: {page}" in ran.err
    text = page.read_text(encoding="utf-8")
    assert f"<h1>1 record lost ({topic} → kafka:{copy}).</h1>" in text
    assert text.count("<h3>By time</h3>") == text.count('class="plot time"') == 2
    assert "what was there before" not in text


@pytest.mark.slow_variants("apache")
def test_what_is_torn_is_named_and_comes_again(
    spark: SparkSession, gapless: Gapless, filled: tuple[str, Path], bootstrap: str
) -> None:
    topic, spool = filled
    make_anew(bootstrap, gapless, topic)
    send(bootstrap, topic, identities(topic, spool, range(10)), "abort")
    ran = gapless("audit", "--topic", topic)
    assert ran.code == 1, ran.err
    assert f"{topic}-0 0 to 9, aborted at offsets 0 to 9" in ran.out
    assert ran.out.splitlines()[-1] == "not clean: 90 lost, 0 duplicated, 0 reordered, 10 torn"
    repaired = gapless("audit", "--topic", topic, "--spool", str(spool), "--repair")
    assert repaired.code == 0, repaired.out + repaired.err
    assert "sent 100 lost records again" in repaired.err


@pytest.mark.slow_variants("apache")
def test_what_waits_in_a_spool_is_pending(
    spark: SparkSession, gapless: Gapless, filled: tuple[str, Path]
) -> None:
    topic, spool = filled
    (port,) = free_ports(1)
    producer = Producer(f"127.0.0.1:{port}", topic, "exactly-once", spool=spool)
    for _ in range(5):
        producer.send(topic, b"when the cluster is back", partition=0)
    producer.close(0)
    ran = gapless("audit", "--topic", topic, "--spool", str(spool), "--json")
    assert ran.code == 0, ran.out + ran.err
    counts = json.loads(ran.out)["hops"][0]["counts"]
    assert (counts["promised"], counts["pending"], counts["lost"]) == (100, 5, 0)


@pytest.mark.slow_variants("apache")
def test_a_sink_that_is_watched_ends_the_watch_when_it_loses_a_record(
    spark: SparkSession, gapless: Gapless, filled: tuple[str, Path], new_topic: NewTopic, bootstrap: str
) -> None:
    topic, spool = filled
    copy = new_topic()
    every = identities(topic, spool, [number for number in range(50) for _ in (0, 1)])
    send(bootstrap, copy, every[:-1], "commit")
    watched = ("audit", "--topic", topic, "--sink", f"kafka:{copy}", "--watch", "--every", "0.1")
    ran = gapless(*watched, "--grace", "0.1", "--until-finding")
    assert ran.code == 1, ran.out + ran.err
    first, *rest = (line.split("  ", 1)[1] for line in ran.out.splitlines())
    assert first.startswith("could not tell: 100 promised, 100 present")
    assert f"no record of {topic} is due in kafka:{copy} yet" in first
    assert f"lost: {topic} " in rest[0]
    assert f"{topic} 49" in rest[0]
    assert rest[-1].endswith(f"{topic} → kafka:{copy}: 100 promised, 99 present, 1 lost")


def test_only_aborted_records_are_not_clean_either(capfd: pytest.CaptureFixture[str]) -> None:
    aborted = Finding(Fault.ABORTED, "(no identity)", "", "orders", 0, 5, 6, 2, 5, 6, None, None)
    clean = Hop("producers → topic", {"till": Counts(promised=3, present=3)})
    sink = Hop("orders → delta:x", {"till": Counts(promised=3, present=3, aborted=2)}, [aborted])
    show(Report("orders", "there:9092", 0, [clean, sink]))
    said = capfd.readouterr().out.splitlines()
    assert said[-1] == "not clean: 0 lost, 0 duplicated, 0 reordered, 2 aborted (orders → delta:x)"
    assert "aborted: (no identity) orders-0 5 to 6, of offsets 5 to 6" in said


def test_faults_of_several_hops_are_not_added_up(capfd: pytest.CaptureFixture[str]) -> None:
    hops = [Hop(name, {"till": Counts(promised=9, duplicated=count)}) for name, count in (("a", 5), ("b", 4))]
    show(Report("orders", "there:9092", 0, [*hops, Hop("c", {"till": Counts(promised=9, present=9)})]))
    none = "0 lost, {} duplicated, 0 reordered"
    said = capfd.readouterr().out.splitlines()[-1]
    assert said == f"not clean: {none.format(5)} (a); {none.format(4)} (b)"


def test_what_is_pending_in_a_sink_is_said_beside_what_is_clean(capfd: pytest.CaptureFixture[str]) -> None:
    to_topic = Hop("producers → topic", {"till": Counts(promised=9, present=9)})
    to_sink = Hop("orders → delta:x", {"till": Counts(promised=9, present=5, pending=4)})
    show(Report("orders", "there:9092", 0, [to_topic, to_sink]))
    said = capfd.readouterr().out.splitlines()[-1]
    assert said == "clean: all 9 promised records are there, once; pending: 4 (orders → delta:x)"


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


@pytest.mark.slow_variants("apache")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--foreign", "--by", "nosuch"], "cannot compare records of {topic} by nosuch: A column"),
        (["--by", "key ="], "by key =: Syntax error"),
        (["--sink", "kafka:{topic}", "--where", "nosuch > 1"], "cannot compare {topic} with kafka:{topic}"),
        (
            ["--sink", "kafka:{topic}", "--where", "CAST(CAST(value AS STRING) AS DATE) IS NULL"],
            "cannot be cast",
        ),
        (["--sink", "kafka:{topic}", "--by", "key", "--sink-by", "nosuch"], "`nosuch` cannot be resolved"),
        (["--sink", "kafka:{topic}", "--window", "banana", "--sink-time", "timestamp"], "Unable to parse"),
        (["--sink", "kafka:{topic}", "--window", "1 hour", "--sink-time", "nosuch"], "cannot count kafka:"),
        (["--sink", "kafka:__consumer_offsets"], "__consumer_offsets is the brokers' own topic"),
    ],
)
def test_wrong_sql_is_told_in_one_line(
    spark: SparkSession, gapless: Gapless, filled: tuple[str, Path], options: list[str], said: str
) -> None:
    topic, _ = filled
    ran = gapless("audit", "--topic", topic, *(each.format(topic=topic) for each in options))
    assert (ran.code, ran.out) == (2, "")
    assert said.format(topic=topic) in ran.err
    assert ran.err.startswith("gapless: ")
    assert ran.err.count("\n") == 1


def test_what_keeps_an_audit_from_looking_is_no_finding(
    gapless: Gapless, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "find_spec", lambda _: None)
    ran = gapless("audit", "--topic", new_topic())
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("gapless: PySpark is not installed")


def test_usage(gapless: Gapless) -> None:
    for options, said in (
        (["--where", "true"], "--sink: name one"),
        (["--sink", "delta:x", "--window", "5 minutes"], "--window and --sink-time go together"),
        (
            ["--sink", "delta:x", "--window", "1 hour", "--sink-time", "t", "--by", "key"],
            "--window only counts",
        ),
        (["--by", "offset"], "--by offset is about a --sink: name one"),
        (["--foreign", "--by", "offset"], "--by offset is about a --sink: name one"),
        (["--foreign", "--by", "identity"], "--by identity is about a --sink: name one"),
        (["--sink", "delta:x", "--sink-by", "id"], "--sink-by and --one-per-key go with --by"),
        (["--sink", "delta:x", "--by", "offset", "--sink-by", "id"], "by offset they say nothing"),
        (["--sink", "delta:x", "--one-per-key"], "--sink-by and --one-per-key go with --by"),
        (["--sink", "delta:x", "--by", "offset", "--one-per-key"], "by offset they say nothing"),
        (["--watch", "--foreign"], "--watch goes by promises"),
        (["--watch", "--sink", "kafka:x", "--by", "key"], "--watch compares by offset or identity"),
        (["--sink-keeps", "7d"], "--sink: name one"),
        (["--sink", "kafka:x", "--sink-keeps", "long"], "is no duration"),
        (["--metrics-port", "9400"], "go with --watch"),
        (["--watch", "--metrics-port", "99999"], "--metrics-port"),
        (["--watch", "--metrics-port", "-3"], "--metrics-port"),
        (["--watch", "--every", "inf"], "'--every': Input should be less than or equal to 86400"),
        (["--watch", "--every", "nan"], "'--every'"),
        (["--watch", "--grace", "nan"], "'--grace'"),
        (["--master", "foo"], "'foo' is no master of Spark"),
        (["--html", "/tmp"], "cannot write /tmp: Is a directory"),
        (["--html", "/proc/page.html"], "cannot write /proc/page.html: "),
        (["--html", "no/such/folder/page.html"], "there is no folder no/such/folder"),
        (["--sink", "mysql:x"], "names no sink"),
        (["--repair"], "--repair needs the --spool"),
    ):
        ran = gapless("audit", "--topic", "orders", *options)
        assert (ran.code, ran.out) == (2, ""), options
        assert said in ran.err
        assert ran.err.count("\n") == 1
    ran = gapless("audit", "--topic", "nowhere")
    assert ran.code == 2
    assert "there is no topic nowhere" in ran.err
