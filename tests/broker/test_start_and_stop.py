"""The process: when it says it is ready, how it stops, and its one line when it cannot start."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.broker.conftest import BrokerMaker
from tests.broker.process import Broker, unhurt, up
from tests.broker.raw import RawClient, batch_of, frame_of, produce_request
from tests.broker.test_connections import create_topic


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    """The one line that a failed start says; nothing else, and surely no traceback."""
    assert result.returncode != 0, result
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("gapless: ")
    return line


# ---------------------------------------------------------------------------------------------------- ready


def test_the_ready_line_and_file_come_when_clients_can_connect(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    options = ("--port", "0", "--data", str(tmp_path / "data"), "--ready-file", str(ready))
    command = [sys.executable, "-m", "gapless", "up", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            address = ready.read_text().strip()
            assert line == f"ready: {address}\n"
            assert int(address.rpartition(":")[2]) > 0
            with RawClient(address) as client:
                assert client.metadata("first").topics[0].error_code == 0
        finally:
            process.terminate()
        assert process.wait(20) == 0
    assert not ready.exists()


def test_a_ready_file_that_a_crash_left_goes_before_anything_else(start_broker: BrokerMaker) -> None:
    broker = start_broker()
    ready = broker.log_file.parent / "ready"
    broker.kill()
    assert ready.exists()  # nobody was there to remove it
    for journal in broker.data_dir.glob("metadata.sqlite*"):
        journal.write_bytes(b"no start can succeed with this" * 100)
    one_line(up("--port", "0", "--data", broker.data_dir, "--ready-file", ready))
    assert not ready.exists()


def test_a_refused_broker_leaves_the_ready_file_of_the_running_one_alone(start_broker: BrokerMaker) -> None:
    broker = start_broker()
    ready = broker.log_file.parent / "ready"
    one_line(up("--port", "0", "--data", broker.data_dir, "--ready-file", ready))
    assert ready.read_text().strip() == broker.bootstrap


def test_a_ready_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    nowhere = tmp_path / "missing" / "ready"
    line = one_line(up("--port", "0", "--data", tmp_path / "data", "--ready-file", nowhere))
    assert str(nowhere) in line


# ----------------------------------------------------------------------------------------- cannot start


@pytest.mark.parametrize("option", ["--port", "--metrics-port"])
def test_a_port_in_use_is_told(tmp_path: Path, option: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ports = ["--port", port] if option == "--port" else ["--port", "0", option, port]
        line = one_line(up(*ports, "--data", tmp_path / "data"))
    assert f"127.0.0.1:{port}" in line
    assert "in use" in line
    assert option in line


def test_a_host_that_is_not_ours_is_told(tmp_path: Path) -> None:
    assert "203.0.113.7" in one_line(up("--host", "203.0.113.7", "--port", "0", "--data", tmp_path / "data"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])  # noqa: S104 -- it is refused
def test_listening_everywhere_needs_a_name_for_clients(tmp_path: Path, host: str) -> None:
    line = one_line(up("--port", "0", "--data", str(tmp_path / "data"), "--host", host))
    assert "--advertise" in line


def test_two_brokers_on_one_folder_the_second_is_refused(broker: Broker) -> None:
    with unhurt(broker):
        line = one_line(up("--port", "0", "--data", broker.data_dir))
    assert str(broker.data_dir) in line
    assert "in use by another broker" in line


def test_a_folder_of_another_node_is_refused(tmp_path: Path, start_broker: BrokerMaker) -> None:
    data = tmp_path / "data"
    start_broker(data, config={"node.id": "3"}).stop()
    (data / "broker-3").rename(data / "broker-1")
    line = one_line(up("--port", "0", "--data", data))
    assert "belongs to node.id 3, not 1" in line


def test_a_folder_of_another_cluster_is_refused(tmp_path: Path, start_broker: BrokerMaker) -> None:
    data = tmp_path / "data"
    start_broker(data).stop()
    for journal in data.glob("metadata.sqlite*"):
        journal.unlink()
    line = one_line(up("--port", "0", "--data", data))
    assert "metadata.sqlite" in line
    assert str(data / "broker-1") in line


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("num.partition=3\n", "did you mean num.partitions?"),
        ("\n\nlog.segment.bytes=7\n", ":3: "),
    ],
)
def test_a_mistake_in_the_settings_is_told(tmp_path: Path, settings: str, expected: str) -> None:
    path = tmp_path / "broker.properties"
    path.write_text(settings)
    result = up("--port", "0", "--data", tmp_path / "data", "--config", path)
    assert expected in one_line(result)
    assert result.returncode == 2
    assert not (tmp_path / "data").exists()


def test_settings_that_are_not_there_are_told(tmp_path: Path) -> None:
    line = one_line(up("--port", "0", "--data", tmp_path / "data", "--config", tmp_path / "nothing"))
    assert "nothing" in line


def test_a_data_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("something else")
    assert str(tmp_path / "data") in one_line(up("--port", "0", "--data", tmp_path / "data"))


def test_a_data_folder_without_permission_is_told(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    (tmp_path / "data").mkdir(mode=0o500)
    assert "Permission denied" in one_line(up("--port", "0", "--data", tmp_path / "data"))


def test_a_corrupt_journal_is_told(tmp_path: Path, start_broker: BrokerMaker) -> None:
    broker = start_broker(tmp_path / "sound")
    with broker.connect() as client:
        client.metadata("topic")
    broker.stop()
    for damage in ("garbage", "truncated", "nonsense"):
        journal = shutil.copytree(tmp_path / "sound", tmp_path / damage) / "metadata.sqlite"
        if damage == "garbage":
            journal.write_bytes(b"this is not a database, whatever its name says" * 100)
        elif damage == "truncated":
            journal.write_bytes(journal.read_bytes()[: journal.stat().st_size // 2])
        else:
            with closing(sqlite3.connect(journal)) as database, database:
                database.execute("update journal set records = '[[\"nonsense\"]]'")
        assert str(journal) in one_line(up("--port", "0", "--data", tmp_path / damage))


def test_a_folder_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=0\n")
    assert "earlier version" in one_line(up("--port", "0", "--data", tmp_path))


def test_a_corrupt_meta_file_is_told(tmp_path: Path) -> None:
    meta = tmp_path / "broker-1" / "meta.properties"
    meta.parent.mkdir()
    meta.write_text("???")
    assert str(meta) in one_line(up("--port", "0", "--data", tmp_path))


# --------------------------------------------------------------------------------------------------- stopping


def test_a_stop_is_clean_and_the_next_start_scans_nothing(start_broker: BrokerMaker) -> None:
    broker = start_broker()
    with broker.connect() as client:
        client.metadata("kept")
        for number in range(50):
            client.produce("kept", batch_of(b"record %d" % number))
    assert broker.stop_and_tell() == 0
    broker.start()
    assert "checked" not in broker.said()  # recovery says how many bytes it checks, if any
    with broker.connect() as client:
        assert client.fetch("kept", 0).high_watermark == 50
        client.produce("kept", batch_of(b"one more"))
    broker.kill()
    broker.start()
    broker.wait_until_said("kept-0: checked")  # so the words are right, and a crash is no clean stop


def test_a_stop_under_load_is_clean_and_keeps_what_was_acknowledged(start_broker: BrokerMaker) -> None:
    """With a flush, an append and a long fetch under way: the stop once stumbled over the flush."""
    broker = start_broker()
    with broker.connect() as client:
        create_topic(client, "strict", flush_messages="1")
    acknowledged = 0
    for number in range(5):
        with broker.connect() as client:
            for record in range(20 + number):
                client.send(frame_of(produce_request("strict", batch_of(b"record")), 9, record))
            client.receive_frame()
            acknowledged += 1
            assert broker.stop_and_tell() == 0
        broker.start()
    assert "Traceback" not in broker.said()
    assert "checked" not in broker.said()
    with broker.connect() as client:
        assert client.fetch("strict", 0).high_watermark >= acknowledged


def test_ctrl_c_stops_cleanly_too(start_broker: BrokerMaker) -> None:
    assert start_broker().interrupt_and_tell() == 0


def test_a_stop_does_not_wait_for_clients(start_broker: BrokerMaker) -> None:
    broker = start_broker()
    with broker.connect() as idle, broker.connect() as half_way:
        idle.api_versions()
        half_way.send(b"\x00\x00\x10\x00half a request")
        started = time.monotonic()
        assert broker.stop_and_tell() == 0
        assert time.monotonic() - started < 10
        idle.wait_until_closed()


def test_an_address_of_version_6_can_be_told_from_its_port(tmp_path: Path) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    command = [
        sys.executable,
        "-m",
        "gapless",
        "up",
        "--host",
        "::1",
        "--port",
        "0",
        "--data",
        str(tmp_path / "d"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            host, _, port = process.stdout.readline().removeprefix("ready: ").strip().rpartition(":")
            assert host == "[::1]"
            with socket.create_connection(("::1", int(port)), timeout=10):
                pass
        finally:
            process.terminate()
