"""Starts, stops and deaths of brokers at the moments at which the supervisor could miss them.

Each test runs `gapless up` in a program that patches it first, so that a broker stops itself (SIGSTOP) at the
chosen moment, or events reach the supervisor in the chosen order.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gapless.broker.coordination import sqlite
from gapless.broker.coordination.port import JournalFailed
from gapless.broker.supervisor import _News
from gapless.testing.processes import free_row_of_ports
from tests.broker.process import wait_until
from tests.broker.raw import PATIENCE_S

# `forks` counts the brokers that were started; in a broker's own process it is the broker's number.
COUNTS_FORKS = """
import os, signal
from pkgutil import resolve_name

from gapless.broker import server, supervisor
from gapless.cli import main

forks = 0

def count():
    global forks
    forks += 1

os.register_at_fork(before=count)
"""
PAUSES = """
places = {1: os.environ.get("PAUSE_1"), 2: os.environ.get("PAUSE_2")}

def pause(place):
    if places.get(forks) == place:
        os.kill(os.getpid(), signal.SIGSTOP)

def pausing(place, real):
    def paused(*args, **options):
        pause(place)
        return real(*args, **options)
    return paused

os.register_at_fork(after_in_child=lambda: pause("fork"))
for place in set(places.values()) - {None, "fork"}:
    owner, name = place.rsplit(".", 1)
    owner = resolve_name(f"gapless.broker.{owner}")
    setattr(owner, name, pausing(place, getattr(owner, name)))
"""
REPORTS_AND_KILLS_SOON = """
supervisor.REPORT_WAIT_AFTER_S = server.REPORT_MISSING_BROKERS_EVERY_S = 0.05
supervisor.STOP_TIMEOUT_S = 0.5
"""
# The third and the fourth start are the restarts of brokers 1 and 2.
DIES_TWICE_AT_ONCE = """
import selectors

pids = []

def run(*args, real=server.run):
    if forks in (3, 4):
        os._exit(3)
    real(*args)

def fork(real=os.fork):
    pid = real()
    pids.append(pid)
    return pid

class DeathsFirst(selectors.DefaultSelector):
    def select(self, timeout=None):
        found = super().select(timeout)
        if len(pids) == 4:
            for pid in pids[2:]:
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            found = sorted(super().select(1), key=lambda each: each[0].data is not None)
            assert len(found) == 3, found
        return found

server.run, os.fork, selectors.DefaultSelector = run, fork, DeathsFirst
supervisor.RESTART_DELAYS_S = (0.0,)
"""
IS_STOPPED_WHILE_IT_REGISTERS = """
import threading, time

from gapless.broker.coordination.sqlite import SqliteCoordination

closing = threading.Event()

def wait():
    closing.wait(0.3)
    time.sleep(0.05)  # for the rest of `close`

def append(self, *args, real=SqliteCoordination.append):
    os.kill(os.getpid(), signal.SIGTERM)
    self._db.create_function("wait", 0, wait)
    self._db.execute("select wait()")
    return real(self, *args)

def close(self, real=SqliteCoordination.close):
    closing.set()
    real(self)

SqliteCoordination.append, SqliteCoordination.close = append, close
"""


class Up:
    """A patched `gapless up`, its brokers, and what it says."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    def said(self) -> str:
        return self._log.read_text()

    def brokers(self) -> list[int]:
        """Their process ids, in the order of their start."""
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def wait_for_paused(self, count: int) -> list[int]:
        """Wait until so many brokers have stopped themselves. Return their process ids in order."""
        wait_until(lambda: len(self._paused()) == count, "the brokers are paused", self.said)
        return self._paused()

    def _paused(self) -> list[int]:
        return [pid for pid in self.brokers() if state_of(pid) == "T"]

    def resume(self, broker: int) -> None:
        """Continue a paused broker after the supervisor has told it to stop."""
        wait_until(lambda: is_sent(broker, signal.SIGINT), "the supervisor stops it", self.said)
        os.kill(broker, signal.SIGCONT)

    def wait_until_said(self, pattern: str) -> None:
        wait_until(lambda: re.search(pattern, self.said()) is not None, f"it says {pattern}", self.said)

    def code(self) -> int:
        """Wait for the end; the exit code."""
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it has not ended\n{self.said()}") from None


@contextmanager
def running(folder: Path, program: str, *options: str, **variables: str) -> Iterator[Up]:
    """Run the patched `gapless up`; kill whatever is left of it in the end."""
    log = folder / "log"
    command = [sys.executable, "-c", f"{COUNTS_FORKS}{program}\nmain()", "up", "--data", str(folder / "data")]
    with (
        log.open("w") as sink,
        subprocess.Popen(
            [*command, *options],
            stdout=sink,
            stderr=sink,
            env={**os.environ, **variables},
            start_new_session=True,
        ) as process,
    ):
        try:
            yield Up(process, log)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def is_sent(pid: int, number: int) -> bool:
    """Whether a signal waits for a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^ShdPnd:\s*([0-9a-f]+)$", status, re.MULTILINE)
    assert found is not None
    return bool(int(found[1], 16) >> (number - 1) & 1)


# ------------------------------------------------------------------------------------------- failed starts

PLACES = (
    "fork",  # the broker has the supervisor's signal handlers
    "server._keep_freed_memory",  # no event loop runs yet
    "server._bind",  # the event loop has no signal handlers yet
    "server._meet",
    "shell.Shell.start",
    "server._all_there",  # it waits for the broker that cannot start
)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("failing", [1, 2])
def test_a_failed_start_ends_a_broker_that_is_starting(tmp_path: Path, failing: int, place: str) -> None:
    """SIGINT once reached a broker while it had the supervisor's handlers, which ignored it."""
    first = free_row_of_ports(2)
    pauses = {f"PAUSE_{failing}": "server._bind", f"PAUSE_{3 - failing}": place}
    with (
        socket.create_server(("127.0.0.1", first + failing - 1)),
        running(tmp_path, PAUSES, "--brokers", "2", "--port", str(first), **pauses) as up,
    ):
        brokers = up.wait_for_paused(2)
        os.kill(brokers.pop(failing - 1), signal.SIGCONT)
        up.resume(brokers[0])
        assert up.code() == 1
    (line,) = [each for each in up.said().splitlines() if each.startswith("gapless: ")]
    assert line.startswith(f"gapless: broker {failing} cannot start")
    assert "Traceback" not in up.said()


def test_a_start_that_fails_late_ends_a_broker_that_waits_for_it(tmp_path: Path) -> None:
    """The broker has registered when it finds that its port for metrics is taken."""
    first = free_row_of_ports(2)
    options = ("--brokers", "2", "--port", "0", "--metrics-port", str(first))
    pauses = {"PAUSE_1": "server._all_there", "PAUSE_2": "metrics.serve"}
    with (
        socket.create_server(("127.0.0.1", first + 1)),
        running(tmp_path, PAUSES, *options, **pauses) as up,
    ):
        waiting, failing = up.wait_for_paused(2)
        os.kill(failing, signal.SIGCONT)
        up.resume(waiting)
        assert up.code() == 1
    assert "gapless: broker 2 cannot start" in up.said()
    assert "Traceback" not in up.said()


# ------------------------------------------------------------------------------------------- early stops


@pytest.mark.parametrize("place", PLACES)
def test_a_stop_during_the_start_is_clean(tmp_path: Path, place: str) -> None:
    with running(tmp_path, PAUSES, "--brokers", "2", "--port", "0", PAUSE_2=place) as up:
        (broker,) = up.wait_for_paused(1)
        up.process.terminate()
        up.resume(broker)
        assert up.code() == 0, up.said()
    assert "Traceback" not in up.said()


def test_a_stop_while_a_broker_registers_does_not_close_the_journal_under_it(tmp_path: Path) -> None:
    """The process crashed (SIGSEGV) when the thread of the journal returned from SQLite."""
    with running(tmp_path, IS_STOPPED_WHILE_IT_REGISTERS, "--port", "0") as up:
        assert up.code() == 0, up.said()
    assert up.said() == ""


def test_a_start_that_fails_during_a_stop_is_reported(tmp_path: Path) -> None:
    first = free_row_of_ports(2)
    options = ("--brokers", "2", "--port", "0", "--metrics-port", str(first))
    with (
        socket.create_server(("127.0.0.1", first + 1)),
        running(tmp_path, PAUSES, *options, PAUSE_2="metrics.serve") as up,
    ):
        (broker,) = up.wait_for_paused(1)
        up.process.terminate()
        up.resume(broker)
        assert up.code() == 1
    assert f"ERROR broker 2 cannot start: cannot listen on 127.0.0.1:{first + 1}" in up.said()
    assert "gapless: not all brokers stopped cleanly: broker 2 ended with code 1;" in up.said()


# --------------------------------------------------------------------------------------------- long waits


def test_the_supervisor_reports_what_it_waits_for(tmp_path: Path) -> None:
    with running(
        tmp_path,
        PAUSES + REPORTS_AND_KILLS_SOON,
        *("--brokers", "2", "--port", "0"),
        PAUSE_2="server._meet",
    ) as up:
        (broker,) = up.wait_for_paused(1)
        up.wait_until_said(rf"WARNING broker 2 \(process {broker}\) is not ready after \d+ s")
        up.wait_until_said("WARNING broker 1: waiting for 2 brokers to register; registered are: 1")
        up.process.terminate()
        up.wait_until_said(rf"WARNING waiting for broker 2 \(process {broker}\) to stop")
        assert up.code() == 1
    assert f"ERROR broker 2 (process {broker}) has not stopped within" in up.said()
    assert "gapless: not all brokers stopped cleanly: broker 2 was killed by signal 9;" in up.said()


def test_a_broker_does_not_wait_without_end_for_who_creates_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.05)
    coordination = sqlite.SqliteCoordination(tmp_path)
    try:
        with (tmp_path / "sessions" / "creation.lock").open("w") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            with pytest.raises(JournalFailed, match=r"creation\.lock"):
                coordination.read(0)
        assert coordination.read(0) == (0, [])
    finally:
        coordination.close()


# ------------------------------------------------------------------------------- deaths and late errors


def test_two_brokers_that_die_together_as_they_are_restarted_come_back(tmp_path: Path) -> None:
    """The supervisor learned of a death and of the end of the broker's pipe at once, and read the pipe."""
    with running(tmp_path, DIES_TWICE_AT_ONCE, "--brokers", "2", "--restart", "--port", "0") as up:
        up.wait_until_said("ready: ")
        brokers = up.brokers()
        up.process.send_signal(signal.SIGSTOP)  # so that it sees both deaths at once
        for broker in brokers:
            os.kill(broker, signal.SIGKILL)
        wait_until(lambda: all(state_of(each) == "Z" for each in brokers), "both are dead", up.said)
        up.process.send_signal(signal.SIGCONT)
        for number in (1, 2):
            up.wait_until_said(f"broker {number} is back at")
        up.process.terminate()
        assert up.code() == 0, up.said()
    assert up.said().count("ended with code 3") == 2


def test_a_late_error_is_not_written_into_a_file_that_has_the_number_of_the_closed_pipe(
    tmp_path: Path,
) -> None:
    supervisor, pipe = os.pipe()
    news = _News(pipe)
    assert news.send(address="127.0.0.1:1", port=1)
    assert os.read(supervisor, 1000) == b'{"address": "127.0.0.1:1", "port": 1}'
    other = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)
    if other != pipe:
        os.dup2(other, pipe)
        os.close(other)
    assert not news.send(error="the disk has failed")
    os.close(pipe)
    assert (tmp_path / "file").read_bytes() == b""
    os.close(supervisor)
