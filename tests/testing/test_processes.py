"""Child processes that cannot be left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gapless.testing.processes import GuardedProcess, free_ports, interrupts_wait

SLEEPER = (sys.executable, "-c", "import time; time.sleep(1000)")
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(1000)
"""
PARENT = """
import sys, time
from pathlib import Path
from gapless.testing.processes import GuardedProcess
child = GuardedProcess([sys.executable, "-c", "import time; time.sleep(1000)"], output=Path(sys.argv[1]))
print(child.pid, flush=True)
time.sleep(1000)
"""


def is_alive(pid: int) -> bool:
    """Neither gone nor a zombie that its new parent has not fetched yet."""
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout
    return bool(state.strip()) and not state.startswith("Z")


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 30
    while is_alive(pid):
        if time.monotonic() > deadline:
            pytest.fail(f"process {pid} is still there")
        time.sleep(0.01)


def test_a_child_dies_with_its_parent_even_by_sigkill(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "output")], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            assert is_alive(child)
            parent.kill()
            parent.wait()
            wait_until_gone(child)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def test_kill_ends_it_at_once_and_twice_is_no_mistake(tmp_path: Path) -> None:
    child = GuardedProcess(SLEEPER, output=tmp_path / "output")
    assert child.running()
    assert child.kill() == -signal.SIGKILL
    assert child.kill() == -signal.SIGKILL
    assert not child.running()


def test_stop_is_polite_first(tmp_path: Path) -> None:
    child = GuardedProcess(SLEEPER, output=tmp_path / "output")
    assert child.stop(timeout_s=30) == -signal.SIGTERM


def test_stop_kills_what_does_not_listen(tmp_path: Path) -> None:
    output = tmp_path / "output"
    child = GuardedProcess((sys.executable, "-c", STUBBORN), output=output)
    while output.read_text() != "ready\n":
        assert child.running()
        time.sleep(0.01)
    assert child.stop(timeout_s=0.05) == -signal.SIGKILL


def test_the_end_of_a_child_is_seen_and_its_output_kept(tmp_path: Path) -> None:
    output = tmp_path / "output"
    child = GuardedProcess((sys.executable, "-c", "print('all there is')"), output=output)
    while child.running():
        time.sleep(0.01)
    assert output.read_text() == "all there is\n"


def test_free_ports_are_all_different() -> None:
    ports = free_ports(50)
    assert len(set(ports)) == 50


def test_no_outgoing_connection_can_take_a_free_port() -> None:
    """A broker that is killed and started again needs the same port: a client's connection once had it."""
    lowest, highest = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not [port for port in free_ports(50) if lowest <= port <= highest]


@pytest.mark.usefixtures("ctrl_c_raises")
def test_interrupts_that_would_raise_wait_for_the_end_of_a_start() -> None:
    done = []

    def be_struck_while_starting() -> None:
        with interrupts_wait():
            signal.raise_signal(signal.SIGINT)
            done.append("the start")

    with pytest.raises(KeyboardInterrupt):
        be_struck_while_starting()
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("ctrl_c_raises")
def test_a_child_inherits_what_is_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupts_wait():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_thread_may_start_processes_too(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as aside:
        process = aside.submit(GuardedProcess, SLEEPER, output=tmp_path / "output").result()
    assert process.running()
    process.kill()
