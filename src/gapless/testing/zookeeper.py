"""A real ZooKeeper, from its jars: one server on a free port, quick to start and to notice ended sessions.

with ZooKeeper() as zookeeper:
    ...  # gapless up --coordination zookeeper://127.0.0.1:PORT/path
"""

from __future__ import annotations

import shutil
import socket
import tempfile
import time
from pathlib import Path

from gapless.jars import jar_paths
from gapless.java import find_java
from gapless.testing.processes import free_ports
from gapless.testing.server import Server, ServerFailed

START_ATTEMPTS = 3
START_LOOK_S = 0.02
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


class ZooKeeper(Server):
    """One ZooKeeper server that ends with the `with` block.

    After `kill()` or `stop()`, `start()` finds the same data and the same port again, and sessions that have
    not lasted longer than their timeout go on.
    """

    name = "ZooKeeper"
    failed = ZooKeeperFailed

    def __init__(self, *, start_timeout_s: float = 60.0) -> None:
        super().__init__(start_timeout_s)
        self._folder: Path | None = None
        self._port = 0
        self._was_up = False

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def url(self, path: str) -> str:
        """A place for one cluster, as `--coordination` takes it."""
        return f"zookeeper://{self.address}/{path.strip('/')}"

    @property
    def folder(self) -> Path:
        """Where its configuration, its data and its log are. Gone after `close()`."""
        if self._folder is None:
            raise ZooKeeperFailed("ZooKeeper has no folder yet: call start() first")
        return self._folder

    @property
    def log_file(self) -> Path:
        return self.folder / "server.log"

    def start(self) -> None:
        """Start, and return when clients can use it."""
        if self.running:
            return
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="zookeeper-"))
        for attempt in range(1, START_ATTEMPTS + 1):
            if not self._was_up:
                self._write_configuration()
            try:
                self._launch(self._command(), self._is_usable)
            except ZooKeeperFailed:
                # Between our choice of a port and its use somebody else may have taken it.
                said = self.log_file.read_text(errors="replace")
                if self._was_up or "Address already in use" not in said or attempt == START_ATTEMPTS:
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

    def _write_configuration(self) -> None:
        (self._port,) = free_ports(1)
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

    def _is_usable(self) -> bool:
        """Ask it about itself: it answers so when it serves, and with an excuse before."""
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1.0) as connection:
                connection.sendall(b"srvr")
                return connection.recv(16).startswith(b"Zookeeper")
        except OSError:
            time.sleep(START_LOOK_S)
            return False
