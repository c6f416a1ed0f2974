"""Several brokers of one machine as processes: how they start, stop, die and come back (`gapless up`)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from gapless.testing.processes import free_row_of_ports
from tests.broker.cluster import Member, running_cluster
from tests.broker.process import up, wait_until
from tests.broker.raw import RawClient
from tests.broker.test_start_and_stop import one_line


class Supervised:
    """`gapless up --brokers N` and its children."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self.log = log
        assert process.stdout is not None
        self.ready_line = process.stdout.readline()
        self.addresses = self.ready_line.removeprefix("ready: ").strip().split(",")

    def said(self) -> str:
        return self.log.read_text()

    def children(self) -> list[int]:
        """The brokers' processes in the order of their start."""
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(20)


@contextmanager
def supervised(folder: Path, *options: str | Path) -> Iterator[Supervised]:
    log = folder / "log"
    command = [sys.executable, "-m", "gapless", "up", "--port", "0", "--data", folder / "data", *options]
    with (
        log.open("w") as sink,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=sink, text=True) as process,
    ):
        try:
            yield Supervised(process, log)
        finally:
            process.terminate()
            process.wait(20)


def brokers_at(address: str) -> set[int]:
    with RawClient(address) as client:
        return {broker.node_id for broker in client.metadata().brokers}


def sees(address: str, *brokers: int) -> bool:
    return brokers_at(address) == set(brokers)


def ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


# --------------------------------------------------------------------------------------------- --brokers


def test_three_brokers_are_ready_together_and_stop_together(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    with supervised(tmp_path, "--brokers", "3", "--ready-file", ready) as cluster:
        assert ready.read_text() == ",".join(cluster.addresses) + "\n"
        assert len(set(cluster.addresses)) == 3
        for address in cluster.addresses:
            assert brokers_at(address) == {1, 2, 3}
        children = cluster.children()
        assert len(children) == 3
        assert cluster.stop() == 0
        assert not ready.exists()
        assert all(ended(pid) for pid in children)
        assert "Traceback" not in cluster.said()
    assert {path.name for path in (tmp_path / "data").glob("broker-*")} == {
        "broker-1",
        "broker-2",
        "broker-3",
    }


def test_a_dead_broker_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    with supervised(tmp_path, "--brokers", "3") as cluster:
        os.kill(cluster.children()[2], signal.SIGKILL)
        for address in cluster.addresses[:2]:
            wait_until(partial(sees, address, 1, 2), "it is missed", cluster.said)
        wait_until(
            lambda: "broker 3 was killed by signal 9" in cluster.said(), "it is reported", cluster.said
        )
        assert f"--join {tmp_path / 'data'} --node-id 3" in cluster.said()
        assert cluster.stop() == 0


def test_restart_brings_a_dead_broker_back_under_its_address(tmp_path: Path) -> None:
    port = free_row_of_ports(2)
    with supervised(tmp_path, "--brokers", "2", "--restart", "--port", str(port)) as cluster:
        os.kill(cluster.children()[0], signal.SIGKILL)
        wait_until(lambda: "broker 1 is back" in cluster.said(), "it is back", cluster.said)
        for address in cluster.addresses:
            wait_until(partial(sees, address, 1, 2), "both are there", cluster.said)
        assert cluster.stop() == 0


def test_brokers_end_with_whoever_watches_over_them(tmp_path: Path) -> None:
    with supervised(tmp_path, "--brokers", "2") as cluster:
        children = cluster.children()
        cluster.process.kill()
        wait_until(lambda: all(ended(pid) for pid in children), "its brokers have ended", cluster.said)
    with supervised(tmp_path, "--brokers", "2") as cluster:  # and left nothing that is in the way
        assert cluster.stop() == 0
        assert "checked" not in cluster.said()


def test_one_broker_that_cannot_start_is_told_in_one_line_and_stops_all(tmp_path: Path) -> None:
    first = free_row_of_ports(2)
    with socket.create_server(("127.0.0.1", first + 1)):
        result = up("--brokers", "2", "--port", str(first), "--data", tmp_path / "data")
    lines = [line for line in result.stderr.splitlines() if line.startswith("gapless: ")]
    assert result.returncode != 0
    assert len(lines) == 1
    assert "broker 2 cannot start" in lines[0]
    assert f"127.0.0.1:{first + 1}" in lines[0]
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("--brokers", "0"),
        ("--brokers", "3", "--node-id", "2"),
        ("--brokers", "3", "--port", "65535"),
        ("--brokers", "3", "--advertise", "here:1"),
        ("--restart",),
        ("--advertise", "here:port"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, options: tuple[str, ...]) -> None:
    result = up("--port", "0", "--data", tmp_path / "data", *options)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "data").exists()


# ------------------------------------------------------------------------------------------------ --join


def test_brokers_that_begin_at_once_in_an_empty_folder_are_one_cluster(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "data") as cluster:
        ids = set()
        for member in cluster:
            with member.connect() as client:
                ids.add(client.metadata().cluster_id)
        assert len(ids) == 1


def test_a_broker_that_joins_gets_the_first_free_number(tmp_path: Path) -> None:
    with supervised(tmp_path, "--brokers", "2") as cluster:
        command = [sys.executable, "-m", "gapless", "up", "--join", str(tmp_path / "data"), "--port", "0"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as joined:
            try:
                assert joined.stdout is not None
                address = joined.stdout.readline().removeprefix("ready: ").strip()
                for each in (address, *cluster.addresses):
                    wait_until(partial(sees, each, 1, 2, 3), "all are there", cluster.said)
            finally:
                joined.terminate()
            assert joined.wait(20) == 0
        wait_until(lambda: brokers_at(cluster.addresses[0]) == {1, 2}, "it is missed", cluster.said)


def test_a_folder_without_a_cluster_cannot_be_joined(tmp_path: Path) -> None:
    line = one_line(up("--join", tmp_path / "mistyped", "--port", "0"))
    assert f"there is no cluster in {tmp_path / 'mistyped'}" in line
    assert not (tmp_path / "mistyped").exists()


@pytest.mark.parametrize("wrong", [("--brokers", "0"), ("--port", "x"), ("--nonsense",)])
def test_a_wrong_option_is_one_line(wrong: tuple[str, ...], tmp_path: Path) -> None:
    result = up("--data", tmp_path / "data", *wrong)
    assert wrong[0] in one_line(result)
    assert result.returncode == 2


def test_a_number_in_use_is_refused(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "data", 1):
        line = one_line(up("--join", tmp_path / "data", "--node-id", "1", "--port", "0"))
    assert "in use by another broker" in line


def test_clients_and_brokers_are_told_the_advertised_address(tmp_path: Path) -> None:
    with supervised(tmp_path, "--advertise", "localhost:4567") as broker:
        assert broker.ready_line == "ready: localhost:4567\n"


def test_a_new_boot_of_the_machine_is_noticed(tmp_path: Path) -> None:
    """What decides whether a broker that died has lost anything (the page cache survives a SIGKILL)."""
    with Member(tmp_path / "data", 1, 1) as member:
        path = member.logs_dir / "boot-id"
        assert path.read_text() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        member.kill()
        member.environment["GAPLESS_BOOT_ID"] = "another"
        member.start()
        assert path.read_text() == "another"


DIES_AS_IT_STARTS = """
import os, signal
from gapless.broker.shell import Shell
from gapless.cli import main

Shell.start = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
main()
"""


def test_a_power_cut_is_not_forgotten_by_a_start_that_ends_before_the_journal_knows_of_it(
    tmp_path: Path,
) -> None:
    """D1: the next start would say that nothing was lost, and could lead without what was acknowledged."""
    with Member(tmp_path / "data", 1, 1) as member:
        path = member.logs_dir / "boot-id"
        noted = path.read_text()
        member.kill()
        member.environment["GAPLESS_BOOT_ID"] = "another"
        options = ["up", "--join", str(tmp_path / "data"), "--node-id", "1", "--port", "0"]
        dying = subprocess.run(
            [sys.executable, "-c", DIES_AS_IT_STARTS, *options],
            env={**os.environ, **member.environment},
            timeout=60,
            check=False,
        )
        assert dying.returncode == -signal.SIGKILL
        assert path.read_text() == noted
        member.start()
        assert path.read_text() == "another"
