"""A real ZooKeeper, from its jars: one server on a free port, quick to start and to notice ended sessions.

with ZooKeeper() as zookeeper:
    ...  # gapless up --coordination zookeeper://127.0.0.1:PORT/path
"""

from __future__ import annotations

import socket
from pathlib import Path

from gapless.jars import jar_paths
from gapless.java import find_java
from gapless.testing.server import LocalServer, ServerFailed

TICK_MS = 100
"""ZooKeeper's own sense of time: it looks for ended sessions so often."""

# A server for a test: the quick compiler and the smallest collector suit it.
_JAVA_OPTIONS = (
    *("-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"),
    "-Dzookeeper.forceSync=no",  # its process may be killed; a power cut is not tried on it
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)


class ZooKeeperFailed(ServerFailed):
    """ZooKeeper did not start. The message has the end of what it said."""


class ZooKeeper(LocalServer):
    """One ZooKeeper server that ends with the `with` block.

    After `kill()` or `stop()`, `start()` finds the same data and the same port again, and sessions that have
    not lasted longer than their timeout go on.
    """

    name = "ZooKeeper"
    failed = ZooKeeperFailed
    look_s = 0.02

    def __init__(self, *, start_timeout_s: float = 60.0) -> None:
        super().__init__(start_timeout_s)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def url(self, path: str) -> str:
        """A place for one cluster, as `--coordination` takes it."""
        return f"zookeeper://{self.address}/{path.strip('/')}"

    def _choose_ports(self) -> None:
        super()._choose_ports()
        settings = {
            "dataDir": str(self.folder / "data"),
            "clientPort": str(self._port),
            "clientPortAddress": "127.0.0.1",
            "tickTime": str(TICK_MS),
            "maxSessionTimeout": "60000",
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
        }
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        (self.folder / "zoo.cfg").write_text(text)

    def _command(self) -> list[str | Path]:
        jars = jar_paths("zookeeper")[0].parent
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        java = find_java().executable
        return [java, *_JAVA_OPTIONS, "-cp", f"{jars}/*", main, self.folder / "zoo.cfg"]

    def _is_ready(self) -> bool:
        """Ask it about itself: it answers so when it serves, and with an excuse before."""
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1.0) as connection:
                connection.sendall(b"srvr")
                return connection.recv(16).startswith(b"Zookeeper")
        except OSError:
            return False
