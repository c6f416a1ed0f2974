"""A real Spark cluster on this machine: a standalone master and workers, from PySpark's jars.

    with SparkCluster(workers=2) as cluster:
        spark = spark_session(master=cluster.master_url, config=cluster.settings)
        cluster.kill_executor(0)    # SIGKILL: its tasks are lost, and run again elsewhere
        cluster.kill_worker(1)      # its executor ends with it

Executors are processes of their own, with Python workers of their own, as on several machines; all of them
are on loopback and end with the block, or with whoever opened it. One process has one Spark session: who
wants to see a driver die starts it as another process.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from gapless.java import find_java
from gapless.testing.block import EndsWithBlock
from gapless.testing.server import LocalServer, ServerFailed

_HOST = "127.0.0.1"
_REGISTERED = "Successfully registered with master"
# The quick compiler and the smallest collector: these are servers and executors of a test.
_SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
_START_TIMEOUT_S = 120.0
_EXECUTOR_TIMEOUT_S = 60.0


class SparkClusterFailed(ServerFailed):
    """The cluster, or a part of it, did not start. The message has the end of what it said."""


class SparkCluster(EndsWithBlock):
    """One master, and workers with one core each, numbered from 0.

    With `hosts` every worker has an address of its own, as if it were another machine (on Linux any of
    127.* will do): Spark copies slow tasks only to another host.
    """

    settings: Mapping[str, str] = {
        "spark.driver.host": _HOST,
        "spark.driver.bindAddress": _HOST,
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": " ".join(_SHORT_LIVED),
    }
    """What a session must set: executors that fit on the workers, one on each, and see the driver."""

    def __init__(self, *, workers: int = 2, worker_memory_mb: int = 1024, hosts: Sequence[str] = ()) -> None:
        _spark_home()  # told now, if it is missing
        self._master = _Master(_START_TIMEOUT_S)
        self._workers = [_Worker(self._master, worker_memory_mb, host) for host in hosts or [_HOST] * workers]

    @property
    def master_url(self) -> str:
        """As `[spark] master`, `spark_session(master=...)` and `spark-submit --master` take it."""
        return self._master.url

    def start(self) -> None:
        """Start what does not run: all of it at first, and later the workers that were killed."""
        self._master.start()
        with ThreadPoolExecutor(len(self._workers)) as pool:
            for done in [pool.submit(worker.start) for worker in self._workers]:
                done.result()

    def close(self) -> None:
        """Stop all and remove what it left."""
        for server in (*self._workers, self._master):
            server.close()

    def kill_worker(self, number: int) -> None:
        """SIGKILL. Its executor sees that it is alone, and ends; `start()` brings the worker back."""
        self._workers[number].kill()

    def kill_executor(self, number: int) -> int:
        """SIGKILL to the executor of a worker, which is waited for. Returns its process id.

        The master lets the worker start another one.
        """
        deadline = time.monotonic() + _EXECUTOR_TIMEOUT_S
        while not (found := self._workers[number].executors()):
            if time.monotonic() > deadline:
                raise SparkClusterFailed(
                    f"worker {number} has had no executor for {_EXECUTOR_TIMEOUT_S:.0f} s; "
                    f"it said:\n{self._workers[number].last_words()}"
                )
            time.sleep(0.02)
        for executor in found:
            with suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(executor, signal.SIGKILL)
        return found[0]

    def executor_log(self, number: int) -> str:
        """What all executors of a worker have said, for whoever looks for a reason."""
        logs = sorted(self._workers[number].folder.glob("work/*/*/stderr"))
        return "\n".join(log.read_text(errors="replace") for log in logs)


class _SparkServer(LocalServer):
    failed = SparkClusterFailed
    host = _HOST
    look_s = 0.02

    def _java(self, main: str, *arguments: str) -> list[str | Path]:
        home = _spark_home()
        java = find_java()
        environment = {
            "SPARK_HOME": str(home),  # from there a worker takes what its executors run
            "SPARK_SCALA_VERSION": "2.13",  # which it would look for in a build tree otherwise
            "SPARK_LOCAL_IP": self.host,
            "JAVA_HOME": str(java.home),
        }
        with_environment = ["/usr/bin/env", *(f"{name}={value}" for name, value in environment.items())]
        options = ["-Xmx256m", *_SHORT_LIVED, "-cp", f"{home}/jars/*"]
        return [*with_environment, java.executable, *options, main, *arguments]


class _Master(_SparkServer):
    name = "Spark master"

    @property
    def url(self) -> str:
        return f"spark://{_HOST}:{self._port}"

    def _command(self) -> list[str | Path]:
        address = ("--host", _HOST, "--port", str(self._port), "--webui-port", "0")
        return self._java("org.apache.spark.deploy.master.Master", *address)

    def _is_ready(self) -> bool:
        try:
            socket.create_connection((_HOST, self._port), timeout=1.0).close()
        except OSError:
            return False
        return True


class _Worker(_SparkServer):
    name = "Spark worker"

    def __init__(self, master: _Master, memory_mb: int, host: str) -> None:
        super().__init__(_START_TIMEOUT_S)
        self.host = host
        self._of = master
        self._memory_mb = memory_mb
        self._said_before = 0

    def executors(self) -> list[int]:
        """The process ids of its executors."""
        found: list[int] = []
        for thread in Path(f"/proc/{self.pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
                found += [int(child) for child in (thread / "children").read_text().split()]
        return found

    def _command(self) -> list[str | Path]:
        self._said_before = self.log_file.stat().st_size if self.log_file.exists() else 0
        size = ("--cores", "1", "--memory", f"{self._memory_mb}m", "--work-dir", str(self.folder / "work"))
        address = ("--host", self.host, "--port", str(self._port), "--webui-port", "0")
        return self._java("org.apache.spark.deploy.worker.Worker", *address, *size, self._of.url)

    def _is_ready(self) -> bool:
        with self.log_file.open("rb") as log:
            log.seek(self._said_before)
            return _REGISTERED.encode() in log.read()


def _spark_home() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SparkClusterFailed("PySpark is not installed: run: pip install 'gapless[spark]'")
    return Path(spec.origin).parent
