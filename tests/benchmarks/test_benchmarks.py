"""The benchmark harness itself, on sizes so small that nothing is measured, with our broker alone."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from benchmarks import __main__ as command
from benchmarks import harness, plot, report
from benchmarks.brokers import OURS, PEER, Broker, make_one
from benchmarks.clients import jobs
from benchmarks.harness import Cell, Harness
from benchmarks.scenarios.all import LOG_SIZE, PROGRAMMES, Programme
from benchmarks.scenarios.log_size import LogSizeRow, grown_counters
from benchmarks.scenarios.step import Figure, Step, Suite
from benchmarks.session import BenchmarkFailed, Session
from benchmarks.sizes import TINY
from benchmarks.statistics import Summary, at_least, at_most, percentile

SLOW = [pytest.mark.slow]


@pytest.fixture
def session() -> Iterator[Session]:
    one = Session(make_one(OURS), TINY)
    yield one
    one.discard()


class Silence:
    def begin(self, what: str) -> None:
        pass

    def done(self, took_s: float, result: str) -> None:
        pass


def cell(target: str, ours: list[float], peer: list[float]) -> Cell:
    targets = {"at least 1": at_least(1.0), "at most 0.4": at_most(0.4), "none": None}
    figure = Figure("rate", "throughput", "records/s", higher_is_better=True, target=targets[target])
    return Cell(Step("produce", "produce a & b", [figure], lambda _: {}), figure, {OURS: ours, PEER: peer})


@pytest.mark.parametrize(
    "programme",
    [pytest.param(each, id=each.name, marks=SLOW if each.name != "broker" else []) for each in PROGRAMMES],
)
def test_a_whole_programme_runs_and_is_reported(programme: Programme, tmp_path: Path) -> None:
    results = command.run(programme, TINY, rounds=1, only=None, with_peer=False)

    assert {each.step.name for each in results.cells} == set(programme.names(TINY)) - {LOG_SIZE}
    for each in results.cells:
        assert [value > 0 for value in each.values[OURS]] == [True], each.key
    assert {row.size_mb for row in results.log_sizes} == set(TINY.log_mb if programme.with_log_size else ())
    out = io.StringIO()
    report.show(results, Console(file=out))
    assert all(each.figure.label in out.getvalue() for each in results.cells)
    assert "\x1b" not in out.getvalue()
    written = command.write(results, tmp_path / "tiny.json")
    assert [path.name for path in written] == ["tiny.json", "tiny.md"]
    text = written[0].read_text()
    assert socket.gethostname() not in text
    assert str(Path.home()) not in text
    assert str(tmp_path) not in text
    keys = [each["key"] for each in json.loads(text)["cells"]]
    assert len(keys) == len(set(keys))


def test_a_load_that_loses_records_is_no_figure(session: Session) -> None:
    topic = session.create_topic("short")
    session.run(jobs.Produce(session.bootstrap, session.broker_pids, topic, 10, 100))
    with pytest.raises(BenchmarkFailed, match="11 records were acknowledged, 22 are in the topic"):
        session.run(jobs.Produce(session.bootstrap, session.broker_pids, topic, 10, 100))


def test_a_job_reaches_its_client_unchanged() -> None:
    job = jobs.Produce("h:1", [7, 8], "t", 10, 100, partitions=3, properties={"linger.ms": 0})
    assert jobs.decode(jobs.encode(job)) == job


def test_contenders_take_turns_in_being_first(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def make(contender: str) -> Broker:
        order.append(contender)
        return make_one(contender)

    class Recorder:
        def __init__(self, broker: Broker, sizes: object) -> None:
            broker.discard()

        def discard(self) -> None:
            order.append("gone")

    monkeypatch.setattr(harness, "Session", Recorder)
    step = Step("x", "x", [Figure("v", "v", "s", higher_is_better=False)], lambda _: {"v": 1.0})
    run = Harness([Suite([step], make)], TINY, 3, (OURS, PEER))
    run.run(Silence())

    assert order[::2] == [OURS, PEER, PEER, OURS, OURS, PEER]
    assert order[1::2] == ["gone"] * 6
    assert run.step_count == 6
    assert run.cells[0].values == {OURS: [1.0] * 3, PEER: [1.0] * 3}


def test_transactions_that_do_not_add_up_are_no_figure(session: Session) -> None:
    topic = session.create_topic("short")
    session.run(jobs.Transactions(session.bootstrap, session.broker_pids, topic, 2, 10, 100))
    with pytest.raises(BenchmarkFailed, match="33 records were acknowledged, 66 are in the topic"):
        session.run(jobs.Transactions(session.bootstrap, session.broker_pids, topic, 2, 10, 100))


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ([], ["broker.json", "coordination.json", "cluster.json"]),
        (["--only", "coordination"], ["coordination.json"]),
        (["--only", "transactions", "start"], ["partial-broker.json", "partial-coordination.json"]),
        (["--only", "failover"], ["partial-cluster.json"]),
        (["--only", "rebalance", "--out", "x/y.json"], ["y.json"]),
        (["--out", "x/y.json"], ["y-broker.json", "y-coordination.json", "y-cluster.json"]),
        (["--no-peer", "--only", "broker"], ["partial-broker.json"]),
    ],
)
def test_each_programme_has_its_own_report(
    options: list[str], written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    nothing = report.Results({}, {"rounds": 1, "small": False}, [], [])
    monkeypatch.setattr(command, "run", lambda *_arguments, **_options: nothing)

    def write(_results: report.Results, out: Path) -> list[Path]:
        names.append(out.name)
        return []

    monkeypatch.setattr(command, "write", write)
    assert command.main(options) == 0
    assert names == written


def test_a_ratio_is_taken_within_its_round() -> None:
    found = cell("at least 1", ours=[10.0, 40.0, 90.0], peer=[10.0, 20.0, 30.0]).ratio()
    assert found == Summary(2.0, 1.0, 3.0, (1.0, 2.0, 3.0))


@pytest.mark.parametrize(
    ("target", "ours", "verdict"),
    [
        ("at least 1", 10.0, "ok"),
        ("at least 1", 9.9, "short"),
        ("at most 0.4", 4.0, "ok"),
        ("at most 0.4", 4.1, "short"),
        ("none", 1.0, ""),
    ],
)
def test_a_verdict_is_the_ratio_against_its_target(target: str, ours: float, verdict: str) -> None:
    assert cell(target, [ours], [10.0]).verdict() == verdict


def test_the_picture_shows_every_cell_that_has_a_target() -> None:
    drawn = plot.draw([cell("at least 1", [2.0], [1.0]), cell("none", [1.0], [1.0])])
    assert drawn is not None
    circles = ET.fromstring(drawn).findall("{http://www.w3.org/2000/svg}circle")  # noqa: S314 - ours
    assert [circle.get("class") for circle in circles] == ["ok"]


def test_there_is_no_picture_without_a_peer() -> None:
    assert plot.draw([cell("at least 1", [2.0], [])]) is None


def test_a_counter_that_grows_with_the_log_is_named() -> None:
    def row(size_mb: int, reads: float) -> LogSizeRow:
        return LogSizeRow(size_mb, "read", Summary.of([1.0]), {"reads": reads, "loads": 0.0})

    assert grown_counters([row(1, 2.0), row(10, 2.1)]) == []
    assert grown_counters([row(1, 2.0), row(10, 3.0)]) == ["read: reads"]


def test_percentiles_are_values_that_occurred() -> None:
    ascending = list(range(1, 101))
    assert [percentile(ascending, share) for share in (50, 99, 100)] == [50, 99, 100]
    assert percentile([7], 99) == 7


def test_unknown_scenarios_are_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["--only", "produce-a-lot"])
    assert ended.value.code == 2
    assert "one-at-a-time" in capsys.readouterr().err


def test_a_work_folder_that_is_not_there_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--work", "/nowhere/at/all"]) == 2
    assert capsys.readouterr().err == "benchmarks: --work: there is no folder /nowhere/at/all\n"
