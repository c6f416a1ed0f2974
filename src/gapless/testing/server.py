"""One server process, from its start to its end: waited for, paused, stopped, killed, and its log shown.

What is a server's own (its command, its configuration, how one knows that it is ready) is in subclasses.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gapless.errors import GaplessError
from gapless.testing.block import EndsWithBlock
from gapless.testing.processes import GuardedProcess, free_ports

START_ATTEMPTS = 5
STOP_TIMEOUT_S = 20.0
LOG_LINES_SHOWN = 15


class ServerFailed(GaplessError):
    """A server did not start, or is not there. The message has the end of what it said."""


class Server(EndsWithBlock):
    """A server that ends with the `with` block, or with whoever started it, however that one ends."""

    name = "the server"
    failed: type[ServerFailed] = ServerFailed
    look_s = 0.002
    """How often to look whether it is ready."""

    def __init__(self, start_timeout_s: float) -> None:
        self._start_timeout_s = start_timeout_s
        self._process: GuardedProcess | None = None

    @property
    def log_file(self) -> Path:
        """What the server says, over all its starts."""
        raise NotImplementedError

    @property
    def pid(self) -> int:
        return self._running_process().pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running()

    def start(self) -> None:
        """Start, and return when clients can use it."""
        raise NotImplementedError

    def kill(self) -> None:
        """SIGKILL: what a crash of the process leaves is what is left."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def stop(self) -> None:
        """SIGTERM: a clean stop; a kill if that takes too long."""
        if self._process is not None:
            self._process.signal(signal.SIGCONT)  # a paused one would not hear the rest
            self._process.stop(STOP_TIMEOUT_S)
            self._process = None

    def pause(self) -> None:
        """SIGSTOP: it hangs, and its connections stay open, until `resume`."""
        self._running_process().signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: it goes on as if no time had passed."""
        self._running_process().signal(signal.SIGCONT)

    def restart(self) -> None:
        """Stop cleanly if it runs, and start on the same port and data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop, and remove what it left."""
        raise NotImplementedError

    def last_words(self) -> str:
        """The end of the server's log."""
        try:
            lines = self.log_file.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return "(nothing)"
        return "\n".join(lines[-LOG_LINES_SHOWN:]) or "(nothing)"

    def _launch(
        self,
        command: Sequence[str | Path],
        is_ready: Callable[[], bool],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the process and wait until it is ready; if that fails, nothing of it runs on."""
        self._process = process = GuardedProcess(command, output=self.log_file, environment=environment)
        deadline = time.monotonic() + self._start_timeout_s
        while not is_ready():
            if not process.running():
                self._process = None
                raise self.failed(f"{self.name} ended before it was ready; it said:\n{self.last_words()}")
            if time.monotonic() > deadline:
                self.kill()
                waited = f"{self._start_timeout_s:.0f} s"
                raise self.failed(f"{self.name} was not ready after {waited}; it said:\n{self.last_words()}")
            time.sleep(self.look_s)

    def _running_process(self) -> GuardedProcess:
        if self._process is None:
            raise self.failed(f"{self.name} is not running: call start() first")
        return self._process


class LocalServer(Server):
    """A server with a folder of its own, on a free port that it keeps over its starts."""

    port_is_taken = "already in use"
    """What it says when somebody else has its port."""

    def __init__(self, start_timeout_s: float) -> None:
        super().__init__(start_timeout_s)
        self._folder: Path | None = None
        self._port = 0
        self._was_up = False

    @property
    def folder(self) -> Path:
        """Where its configuration, its data and its log are. Gone after `close()`."""
        if self._folder is None:
            raise self.failed(f"{self.name} has no folder yet: call start() first")
        return self._folder

    @property
    def log_file(self) -> Path:
        return self.folder / "server.log"

    def prepare(self) -> None:
        """Make its folder and what it must find there; part of the first `start()`."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix=f"{self.name.lower().replace(' ', '-')}-"))
            self._choose_ports()
            self._fill_folder()

    def start(self) -> None:
        """Start, and return when clients can use it. Fails with the end of its log if it does not come up."""
        if self.running:
            return
        self.prepare()
        for attempt in range(1, START_ATTEMPTS + 1):
            said_before = self.log_file.stat().st_size if self.log_file.exists() else 0
            try:
                self._launch(self._command(), self._is_ready)
            except self.failed:
                said = self.log_file.read_text(errors="replace")[said_before:]
                if attempt == START_ATTEMPTS or not self._may_try_again(said):
                    raise
            else:
                self._was_up = True
                return

    def close(self) -> None:
        """Stop, and remove all that it left on disk."""
        self.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _may_try_again(self, said: str) -> bool:
        """Between our choice of a port and its use somebody else may have taken it: then on another one."""
        if self._was_up or self.port_is_taken not in said:
            return False
        self._choose_ports()
        return True

    def _choose_ports(self) -> None:
        (self._port,) = free_ports(1)

    def _fill_folder(self) -> None:
        """What it must find in its folder before its first start."""

    def _command(self) -> list[str | Path]:
        raise NotImplementedError

    def _is_ready(self) -> bool:
        raise NotImplementedError
