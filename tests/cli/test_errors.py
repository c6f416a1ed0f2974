"""A mistake or a missing cluster is one clear line and a stable exit code: no traceback, no hang."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gapless.cli import connection
from gapless.testing.processes import free_ports

from .conftest import Gapless, NewTopic, Ran


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes seconds for people takes less in a test."""
    monkeypatch.setattr(connection, "PATIENCE_S", 2.0)
    monkeypatch.setattr(connection, "PATIENCE_ALL_DOWN_S", 0.5)


def assert_one_line(ran: Ran, code: int, *parts: str) -> None:
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.startswith("gapless: ")
    assert ran.err.count("\n") == 1
    for part in parts:
        assert part in ran.err


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["prodcue"], ["No such command 'prodcue'", "Did you mean 'produce'", "gapless --help"]),
        (["produce"], ["Missing argument 'TOPIC'", "gapless produce --help"]),
        (["topics"], ["Missing command", "gapless topics --help"]),
        (["topics", "create", "t", "--partitions", "many"], ["--partitions"]),
        (["topics", "create", "t", "--partitions", "0"], ["--partitions"]),
        (
            ["topics", "create", "t", "--config", "retention"],
            ["--config expects key=value, found: retention"],
        ),
        (["topics", "alter", "t"], ["nothing to alter"]),
        (["topics", "alter", "t", "--config", "a=1", "--delete-config", "a"], ["a is to be set and deleted"]),
        (["topics", "delete", "t"], ["--yes"]),
        (["produce", "t", "--acks", "two"], ["--acks is one of all, 1, 0"]),
        (["produce", "t", "--compression", "zip"], ["compression"]),
        (["produce", "t", "--count", "5", "--file", "x"], ["--count makes its own records"]),
        (["produce", "t", "--count", "1001", "--size", "3"], ["--size 3 is too small for the number 1000"]),
        (["produce", "t", "--header", "x"], ["--header expects key=value"]),
        (["produce", "t", "--file", "/no/such/file"], ["cannot read /no/such/file: No such file"]),
        (["consume", "t", "--from", "yesterday"], ["--from expects beginning, end, an offset or a time"]),
        (["consume", "t", "--json", "--format", "{key}"], ["exclude each other"]),
        (["consume", "t", "--format", "{colour}"], ["--format knows no {colour}"]),
        (["consume", "t", "--format", "{key"], ["--format is not well formed"]),
        (["consume", "t", "--isolation", "none"], ["isolation.level"]),
        (["consume", "t", "--client-config", "/no/such/file"], ["cannot read /no/such/file"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_option_is_refused_in_one_line(
    argv: list[str], parts: list[str], run_gapless: Gapless
) -> None:
    assert_one_line(run_gapless(*argv), 2, *parts)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("linger.ms=5\nnonsense\n", "line 2: expected key=value, found: nonsense"),
        ("=5\n", "line 1: expected key=value"),
        ("lingre.ms=5\n", 'No such configuration property: "lingre.ms"'),
        ("linger.ms=soon\n", "Invalid value for configuration property"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n", "sasl.username and sasl.password must be set"),
    ],
)
def test_a_bad_properties_file_is_refused_with_its_place(
    content: str, part: str, tmp_path: Path, run_gapless: Gapless
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(content)
    assert_one_line(run_gapless("produce", "t", "--client-config", str(file)), 2, str(file), part)


@pytest.mark.parametrize(
    "argv", [["topics", "list"], ["produce", "t", "--count", "1"], ["consume", "t"]], ids=lambda argv: argv[0]
)
@pytest.mark.usefixtures("impatient")
def test_a_cluster_that_is_not_there_is_said_soon(argv: list[str], run_gapless: Gapless) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    ran = run_gapless(*argv, "--bootstrap", address)
    assert_one_line(ran, 3, f"cannot reach a Kafka broker at {address}: Connection refused", "gapless up")


@pytest.mark.usefixtures("impatient")
def test_a_server_that_never_answers_does_not_hang(run_gapless: Gapless) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        assert_one_line(run_gapless("topics", "list", "--bootstrap", address), 3, address)


@pytest.mark.usefixtures("impatient")
def test_the_file_may_name_the_cluster_and_an_option_goes_before_it(
    tmp_path: Path, run_gapless: Gapless
) -> None:
    in_file, in_option = (f"127.0.0.1:{port}" for port in free_ports(2))
    file = tmp_path / "client.properties"
    file.write_text(f"# where it is\n\nbootstrap.servers={in_file}\n")
    argv = ["topics", "list", "--client-config", str(file)]
    assert_one_line(run_gapless(*argv), 3, in_file)
    assert_one_line(run_gapless(*argv, "--bootstrap", in_option), 3, in_option)


def test_ctrl_c_ends_with_130_and_says_nothing(bootstrap: str, new_topic: NewTopic, gapless: Gapless) -> None:
    topic = new_topic()
    gapless("produce", topic, stdin=b"first\n")
    command = [sys.executable, "-m", "gapless", "consume", topic, "--follow", "--bootstrap", bootstrap]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"first\n"
        child.send_signal(signal.SIGINT)
        assert child.communicate(timeout=30) == (b"", b"")
    assert child.returncode == 130


@pytest.mark.slow_variants("apache")
def test_a_reader_that_has_had_enough_is_no_failure(
    bootstrap: str, new_topic: NewTopic, gapless: Gapless
) -> None:
    topic = new_topic()
    gapless("produce", topic, "--count", "20000")
    command = [sys.executable, "-m", "gapless", "consume", topic, "--bootstrap", bootstrap]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith(b"00000")
        child.stdout.close()
        assert child.stderr is not None
        assert child.stderr.read() == b""
        child.wait(timeout=30)
    assert child.returncode == 0
