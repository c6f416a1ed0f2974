"""Servers as child processes that cannot outlive whoever started them, however that one ends."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_HOST = "127.0.0.1"
_OUTGOING_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST_PORT = 10_000
_ENOUGH_PORTS = 2_000
_CHANCE = random.SystemRandom()  # processes with the same seed must not fight for the same ports


@contextlib.contextmanager
def interrupts_wait() -> Iterator[None]:
    """Signals that would raise wait for the end of the block.

    An exception in the middle of a start would leave a process behind that nobody knows of.
    """
    waiting: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():  # they strike no other
        for number in (signal.SIGINT, signal.SIGTERM):
            if callable(handler := signal.getsignal(number)):
                before[number] = handler
                signal.signal(number, lambda number, _: waiting.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for each in waiting:
            signal.raise_signal(each)


class GuardedProcess:
    """A child process with its output in a file. It is killed when this process ends, even by SIGKILL.

    A guard, a sleeping shell, holds the reading end of a pipe whose writing end only we hold: when we are
    gone the pipe closes, and the guard kills the child.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        output: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        with interrupts_wait(), output.open("ab") as sink:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # a Ctrl-C at the terminal is ours to pass on
            )
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", 'read -r _; kill -9 "$0"', str(self._child.pid)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._child.pid

    def running(self) -> bool:
        if self._child.poll() is None:
            return True
        self._dismiss_guard()
        return False

    def signal(self, number: int) -> None:
        """Send a signal; nothing happens if the process has ended."""
        self._child.send_signal(number)

    def kill(self) -> int:
        """SIGKILL, and its end. Returns the exit status."""
        self.signal(signal.SIGKILL)
        status = self._child.wait()
        self._dismiss_guard()
        return status

    def stop(self, timeout_s: float) -> int:
        """SIGTERM, then SIGKILL if that does not help in time. Returns the exit status."""
        self.signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout_s)
        return self.kill()

    def _dismiss_guard(self) -> None:
        """The child was reaped and its id may be given to another: the guard must not act on it."""
        self._guard.kill()
        self._guard.communicate()


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 on which nobody listens at this moment, all different.

    They are none that the system gives to outgoing connections: a server that is down for a while would
    otherwise come back to find that some client's connection has taken its port meanwhile.
    """
    candidates = _ports_of_servers()
    with contextlib.ExitStack() as held:
        found: list[int] = []
        while len(found) < count:
            attempt = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):  # taken: the next one
                attempt.bind((_HOST, _CHANCE.choice(candidates)))
                found.append(attempt.getsockname()[1])
        return found


def free_row_of_ports(count: int) -> int:
    """The first of as many free ports one after the other, as `gapless up --brokers` takes them."""
    while True:
        (first,) = free_ports(1)
        if all(_is_free(port) for port in range(first, first + count)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as attempt:
        try:
            attempt.bind((_HOST, port))
        except (OSError, OverflowError):
            return False
        return True


def _ports_of_servers() -> Sequence[int]:
    """What lies below or above the range of outgoing connections; if that leaves little, any port (0)."""
    try:
        first, last = map(int, _OUTGOING_PORTS.read_text().split())
    except OSError:
        return (0,)  # a system that does not say
    widest = max(range(_LOWEST_PORT, first), range(last + 1, 1 << 16), key=len)
    return widest if len(widest) >= _ENOUGH_PORTS else (0,)
