"""One server process, from its start to its end: waited for, paused, stopped, killed, and its log shown.

What is a server's own (its command, its configuration, how one knows that it is ready) is in subclasses.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from gapless.errors import GaplessError
from gapless.testing.processes import GuardedProcess

POLL_S = 0.002
STOP_TIMEOUT_S = 20.0
LOG_LINES_SHOWN = 15


class ServerFailed(GaplessError):
    """A server did not start, or is not there. The message has the end of what it said."""


class Server:
    """A server that ends with the `with` block, or with whoever started it, however that one ends."""

    name = "the server"
    failed: type[ServerFailed] = ServerFailed

    def __init__(self, start_timeout_s: float) -> None:
        self._start_timeout_s = start_timeout_s
        self._process: GuardedProcess | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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
            time.sleep(POLL_S)

    def _running_process(self) -> GuardedProcess:
        if self._process is None:
            raise self.failed(f"{self.name} is not running: call start() first")
        return self._process
