"""Brokers as processes, with what the tests need to see of them: log, memory, exit code."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gapless.testing.broker import EmbeddedBroker
from gapless.testing.processes import free_ports
from tests.broker.raw import PATIENCE_S, RawClient, batch_of

POLL_S = 0.005
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Broker(EmbeddedBroker):
    """The embedded broker, with more options and more to look at."""

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        config: dict[str, str] | None = None,
        metrics: bool = False,
        prefix: Sequence[str] = (),
    ) -> None:
        super().__init__(data_dir, config=config)
        self.metrics_port = free_ports(1)[0] if metrics else None
        self._prefix = list(prefix)

    def _command(self, ready: Path) -> list[str | Path]:
        command = super()._command(ready)
        if self.metrics_port is not None:
            command += ["--metrics-port", str(self.metrics_port)]
        return [*self._prefix, *command]

    @property
    def logs_dir(self) -> Path:
        """Where its partitions are."""
        return self.data_dir / "broker-1"

    def connect(self, **options: Any) -> RawClient:
        return RawClient(self.bootstrap, **options)

    # ---------------------------------------------------------------------------------------- to see

    def said(self) -> str:
        """All that the broker has logged, over all its starts."""
        return self.log_file.read_text(errors="replace")

    def wait_until_said(self, text: str) -> str:
        """The first line of the log with that text, as soon as there is one."""
        wait_until(lambda: text in self.said(), f"the broker says {text!r}", self.last_words)
        return next(line for line in self.said().splitlines() if text in line)

    def lines_about(self, client: RawClient) -> list[str]:
        """What the broker says of a connection, once it has said something."""
        name = f"{client.name}:"  # the colon tells port 4000 from port 40001
        self.wait_until_said(name)
        return [line for line in self.said().splitlines() if name in line]

    def pss_mb(self) -> float:
        """The memory that the process takes for itself."""
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
        raise AssertionError("no Pss in smaps_rollup")

    def cpu_s(self) -> float:
        """How long the process has worked so far, in all its threads."""
        stat = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / TICKS_PER_S

    def scrape(self) -> dict[str, float]:
        """The metrics, by name with labels."""
        return parse_metrics(self.scrape_text())

    def scrape_text(self) -> str:
        with socket.create_connection(("127.0.0.1", self.metrics_port or 0), timeout=PATIENCE_S) as scraper:
            scraper.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head, _, body = read_to_end(scraper).partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 OK"):
            raise AssertionError(head.decode())
        return body.decode()

    def interrupt_and_tell(self) -> int:
        """Send SIGINT, as Ctrl-C does, and return the exit code."""
        process = self._process
        if process is None:
            raise AssertionError("the broker does not run")
        process.signal(signal.SIGINT)
        wait_until(lambda: not process.running(), "the broker exits", self.last_words)
        self._process = None
        return process.kill()  # The process has ended: this returns its exit code.

    def stop_and_tell(self) -> int:
        """SIGTERM; the exit code."""
        if self._process is None:
            raise AssertionError("the broker does not run")
        status = self._process.stop(PATIENCE_S)
        self._process = None
        return status


def read_to_end(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def parse_metrics(text: str) -> dict[str, float]:
    """Prometheus' text format, strictly enough to notice when it is not."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            word, kind, *_ = line.removeprefix("# ").split(" ", 2)
            if word not in ("HELP", "TYPE") or not kind:
                raise AssertionError(line)
            continue
        name, _, value = line.rpartition(" ")
        if not name or name in values:
            raise AssertionError(line)
        values[name] = float(value)
    return values


def wait_until(condition: Callable[[], bool], what: str, details: Callable[[], str] = lambda: "") -> None:
    """Come back as soon as the condition holds; fail if it does not in good time."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"in vain waited until {what}\n{details()}")
        time.sleep(POLL_S)


def up(*arguments: str | Path, prefix: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """`gapless up` in a case where it must end by itself."""
    command = [*prefix, sys.executable, "-m", "gapless", "up", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


class Bystander:
    """A decent client at work all the while: it writes, reads back what it wrote, and sees what it waits."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._broker = broker
        self._topic = topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._problem: BaseException | None = None
        self.rounds = 0
        self.longest_s = 0.0
        """The most that the broker has worked while this one waited. A busy machine does not count."""

    def start(self) -> None:
        with self._broker.connect() as client:
            client.metadata(self._topic)
        self._thread.start()
        wait_until(lambda: self.rounds > 0 or self._problem is not None, "a bystander has begun")

    def finish(self) -> None:
        """Stop, and fail if anything went wrong or took longer than others may make it take."""
        self._stopping.set()
        self._thread.join()
        if self._problem is not None:
            raise AssertionError(f"a bystander was hurt\n{self._broker.last_words()}") from self._problem
        if self.longest_s > 5:
            raise AssertionError(f"a bystander had to wait for {self.longest_s:.1f} s of work")

    def _work(self) -> None:
        try:
            with self._broker.connect() as client:
                offset = client.fetch(self._topic, 0).high_watermark
                while not self._stopping.is_set():
                    started = self._broker.cpu_s()
                    self._round(client, offset)
                    offset += 1
                    self.rounds += 1
                    self.longest_s = max(self.longest_s, self._broker.cpu_s() - started)
                    self._stopping.wait(0.002)
        except BaseException as problem:
            self._problem = problem

    def _round(self, client: RawClient, offset: int) -> None:
        value = b"record %d" % offset
        produced = client.produce(self._topic, batch_of(value))
        if (produced.error_code, produced.base_offset) != (0, offset):
            raise AssertionError(f"written at {offset}: {produced}")
        fetched = client.fetch(self._topic, offset)
        if fetched.error_code or value not in fetched.records:
            raise AssertionError(f"read at {offset}: {fetched}")


@contextmanager
def unhurt(broker: Broker, topic: str = "bystander") -> Iterator[Bystander]:
    """What happens inside must not harm a decent client, nor keep new ones out."""
    bystander = Bystander(broker, topic)
    bystander.start()
    try:
        yield bystander
        with broker.connect() as newcomer:
            newcomer.api_versions()
    finally:
        bystander.finish()
