"""The embedded broker as a child process, for tests, demos and benchmarks: up in well under a second.

    with EmbeddedBroker() as broker:
        Producer({"bootstrap.servers": broker.bootstrap})
        broker.kill()      # SIGKILL, as a crash
        broker.restart()   # the same port, the same data

It is the real `gapless up`, and it cannot outlive whoever started it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from gapless.errors import GaplessError
from gapless.testing.processes import GuardedProcess

POLL_S = 0.002
STOP_TIMEOUT_S = 20.0
LOG_LINES_SHOWN = 15


class BrokerFailed(GaplessError):
    """The broker did not start, or is not there. The message has the end of what it said."""


class EmbeddedBroker:
    """One broker. Without a data folder of the caller's it has one of its own, gone after `close()`.

    `config` are broker settings under Kafka's names. After `kill()` or `stop()`, `start()` serves the same
    data under the same address again. What the broker says, over all its starts, is in `log_file`.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        port: int = 0,
        config: Mapping[str, str] | None = None,
        *,
        log_file: Path | None = None,
        start_timeout_s: float = 30.0,
    ) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="gapless-broker-"))
        self.data_dir = data_dir if data_dir is not None else self._home / "data"
        self.log_file = log_file if log_file is not None else self._home / "broker.log"
        self._port = port
        self._config = dict(config or {})
        self._start_timeout_s = start_timeout_s
        self._process: GuardedProcess | None = None
        self._address: str | None = None

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
    def bootstrap(self) -> str:
        """The address for clients. It stays the same over restarts."""
        if self._address is None:
            raise BrokerFailed("the broker was not started yet: call start() first")
        return self._address

    @property
    def pid(self) -> int:
        if self._process is None:
            raise BrokerFailed("the broker is not running: call start() first")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running()

    def start(self) -> None:
        """Start, and return when clients can connect; if it does not come up, fail with its last words."""
        if self.running:
            return
        ready = self._home / "ready"
        ready.unlink(missing_ok=True)
        self._process = GuardedProcess(self._command(ready), output=self.log_file)
        deadline = time.monotonic() + self._start_timeout_s
        while not ready.exists():
            if not self._process.running():
                self._process = None
                raise BrokerFailed(f"the broker ended before it was ready; it said:\n{self.last_words()}")
            if time.monotonic() > deadline:
                self.kill()
                waited = f"{self._start_timeout_s:.0f} s"
                raise BrokerFailed(f"the broker was not ready after {waited}; it said:\n{self.last_words()}")
            time.sleep(POLL_S)
        self._address = ready.read_text().strip()
        self._port = int(self._address.rpartition(":")[2])

    def kill(self) -> None:
        """SIGKILL: what a crash of the process leaves is what is left."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def stop(self) -> None:
        """SIGTERM: a clean stop; a kill if that takes too long."""
        if self._process is not None:
            self._process.stop(STOP_TIMEOUT_S)
            self._process = None

    def restart(self) -> None:
        """Stop cleanly if it runs, and start on the same port and data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop, and remove what is ours; a data folder of the caller's stays."""
        self.stop()
        shutil.rmtree(self._home, ignore_errors=True)

    def last_words(self) -> str:
        """The end of the broker's log."""
        try:
            lines = self.log_file.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return "(nothing)"
        return "\n".join(lines[-LOG_LINES_SHOWN:]) or "(nothing)"

    def _command(self, ready: Path) -> list[str | Path]:
        command: list[str | Path] = [sys.executable, "-m", "gapless", "up", "--port", str(self._port)]
        command += ["--data", self.data_dir, "--ready-file", ready]
        if self._config:
            settings = self._home / "broker.properties"
            settings.write_text("".join(f"{key}={value}\n" for key, value in self._config.items()))
            command += ["--config", settings]
        return command
