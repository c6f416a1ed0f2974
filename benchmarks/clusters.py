"""The two that are compared as clusters of three brokers, started, measured and killed in the same way.

Topics have three replicas, of which two must be in sync. All else is as in `brokers`. A broker that was
killed comes back: ours by its supervisor (`gapless up --restart`), Kafka's when it is told to.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from benchmarks.brokers import KAFKA_HEAP_MB, OURS
from gapless.errors import GaplessError
from gapless.testing.apache_cluster import ApacheCluster
from gapless.testing.broker import EmbeddedBroker
from gapless.testing.processes import free_row_of_ports

BROKERS = 3

_LISTENING = "0A"


class Cluster(ABC):
    """A `Broker` of several processes, each of which can be killed."""

    replicas = BROKERS

    @property
    @abstractmethod
    def bootstrap(self) -> str: ...

    @property
    @abstractmethod
    def pids(self) -> list[int]: ...

    @abstractmethod
    def prepare(self) -> None: ...

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def revive(self) -> None:
        """Bring back who was killed; returns when that has begun."""

    @abstractmethod
    def discard(self) -> None: ...

    def pid_at(self, port: int) -> int:
        """Of the broker that listens there."""
        sockets = _listening_sockets(port)
        for pid in self.pids:
            if sockets & _open_sockets(pid):
                return pid
        raise GaplessError(f"no process of the cluster listens on port {port}")


class _Supervised(EmbeddedBroker):
    """`gapless up` with several brokers."""

    name = "the cluster"

    def _options(self) -> list[str | Path]:
        return [*super()._options(), "--brokers", str(BROKERS), "--restart"]


class GaplessCluster(Cluster):
    """Our cluster, as users run it. Its supervisor is counted with the brokers."""

    def __init__(self) -> None:
        port = free_row_of_ports(BROKERS)
        self._addresses = [f"127.0.0.1:{port + number}" for number in range(BROKERS)]
        self._supervisor = _Supervised(port=port)

    @property
    def bootstrap(self) -> str:
        return ",".join(self._addresses)

    @property
    def pids(self) -> list[int]:
        return [self._supervisor.pid, *_children(self._supervisor.pid)]

    def prepare(self) -> None:
        """Nothing: a folder needs no formatting."""

    def start(self) -> None:
        self._supervisor.start()

    def revive(self) -> None:
        """Nothing: the supervisor does it."""

    def discard(self) -> None:
        brokers = _children(self._supervisor.pid) if self._supervisor.running else []
        self._supervisor.kill()
        for pid in brokers:
            _kill(pid)
        while any(has_not_ended(pid) for pid in brokers):
            time.sleep(0.005)
        self._supervisor.close()


class KafkaCluster(Cluster):
    """Apache Kafka: each node broker and controller in one process, with a heap of 1 GB."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._cluster = ApacheCluster(heap_mb=KAFKA_HEAP_MB, properties=properties)

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    @property
    def pids(self) -> list[int]:
        return [node.pid for node in self._cluster.running]

    def prepare(self) -> None:
        self._cluster.prepare()

    def start(self) -> None:
        self._cluster.start()

    def revive(self) -> None:
        self._cluster.start()

    def discard(self) -> None:
        self._cluster.close()


def make_cluster(name: str, kafka_properties: Mapping[str, str] | None = None) -> Cluster:
    """A new cluster of that kind, not started."""
    return GaplessCluster() if name == OURS else KafkaCluster(kafka_properties or {})


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it may have ended with its supervisor
        os.kill(pid, signal.SIGKILL)


def has_not_ended(pid: int) -> bool:
    """A process that nobody has waited for yet counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _listening_sockets(port: int) -> set[str]:
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]  # a JVM listens with IPv6 even for IPv4
    lines = [line for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    rows = [line.split() for line in lines]
    return {row[9] for row in rows if row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port}


def _open_sockets(pid: int) -> set[str]:
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.add(str(entry.readlink()).removeprefix("socket:[").removesuffix("]"))
    return found
