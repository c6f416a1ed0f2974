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
from collections.abc import Mapping
from pathlib import Path

from gapless.testing.processes import free_ports
from gapless.testing.server import Server, ServerFailed


class BrokerFailed(ServerFailed):
    """The broker did not start, or is not there. The message has the end of what it said."""


class EmbeddedBroker(Server):
    """One broker. Without a data folder of the caller's it has one of its own, gone after `close()`.

    `config` are broker settings under Kafka's names. After `kill()` or `stop()`, `start()` serves the same
    data under the same address again. What the broker says, over all its starts, is in `log_file`.
    """

    name = "the broker"
    failed = BrokerFailed

    def __init__(
        self,
        data_dir: Path | None = None,
        port: int = 0,
        config: Mapping[str, str] | None = None,
        *,
        log_file: Path | None = None,
        start_timeout_s: float = 30.0,
    ) -> None:
        super().__init__(start_timeout_s)
        self._home = Path(tempfile.mkdtemp(prefix="gapless-broker-"))
        self.data_dir = data_dir if data_dir is not None else self._home / "data"
        self._log_file = log_file if log_file is not None else self._home / "broker.log"
        self._port = port or free_ports(1)[0]
        self._config = dict(config or {})
        self._address: str | None = None
        self.environment: dict[str, str] = {}
        """Variables for the next start, on top of ours."""

    @property
    def log_file(self) -> Path:
        return self._log_file

    @property
    def bootstrap(self) -> str:
        """The address for clients. It stays the same over restarts."""
        if self._address is None:
            raise BrokerFailed("the broker was not started yet: call start() first")
        return self._address

    def start(self) -> None:
        """Start, and return when clients can connect; if it does not come up, fail with its last words."""
        if self.running:
            return
        ready = self._home / "ready"
        ready.unlink(missing_ok=True)
        self._launch(self._command(ready), ready.exists, self.environment)
        self._address = ready.read_text().strip()
        self._port = int(self._address.rpartition(":")[2])

    def close(self) -> None:
        """Stop, and remove what is ours; a data folder of the caller's stays."""
        self.stop()
        shutil.rmtree(self._home, ignore_errors=True)

    def _command(self, ready: Path) -> list[str | Path]:
        command: list[str | Path] = [sys.executable, "-m", "gapless", "up", "--port", str(self._port)]
        return [*command, *self._options(), "--ready-file", ready]

    def _options(self) -> list[str | Path]:
        options: list[str | Path] = ["--data", self.data_dir]
        if self._config:
            settings = self._home / "broker.properties"
            settings.write_text("".join(f"{key}={value}\n" for key, value in self._config.items()))
            options += ["--config", settings]
        return options
