"""A pytest plugin that reports where a test run spends its time.

    make test PYTEST_ARGS="-p tools.test_times"

It prints the time of setup, call and teardown by folder, the share of CPU time that the cores were idle,
how many processes of each kind were started and the CPU time that they used, and the slowest phases. With
`TEST_TIMES=file` every phase of every test also goes to that file, one JSON object on a line.

Only the process that distributes the tests measures, because the reports of all workers arrive there.
Processes are found by sampling /proc, so what a process does after its last sample is not counted.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

INTERVAL_S = 0.25
SLOWEST = 100

# The first kind of which every word is in a process's command line counts.
KINDS: dict[str, tuple[str, ...]] = {
    "Spark driver or master": ("java", "org.apache.spark"),
    "Apache Kafka broker": ("java", "kafka.Kafka"),
    "Apache Kafka format tool": ("java", "StorageTool"),
    "ZooKeeper": ("java", "QuorumPeerMain"),
    "other JVM": ("bin/java",),
    "PostgreSQL": ("postgres", "-D"),
    "Redis": ("redis-server",),
    "Chromium": ("chromium", "--headless"),
    "embedded broker": ("gapless", " up "),
    "pytest worker": ("sys.stdin.readline",),
    "other Python": ("python",),
}


TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Sampler(threading.Thread):
    """Counts processes and their CPU time by kind until it is stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.started: Counter[str] = Counter()
        self.busiest: Counter[str] = Counter()
        self.cpu_ticks: Counter[str] = Counter()
        self._kinds: dict[str, tuple[str, str]] = {}  # by process: its command line and kind
        self._ticks: dict[str, int] = {}  # by process: its CPU time at the last sample
        self._stop_requested = threading.Event()

    def run(self) -> None:
        self._sample()
        self.started.clear()  # of what ran before
        self.cpu_ticks.clear()
        while not self._stop_requested.wait(INTERVAL_S):
            self._sample()

    def stop(self) -> None:
        self._stop_requested.set()
        self.join()

    def _sample(self) -> None:
        alive = {entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit()}
        for gone in self._kinds.keys() - alive:
            del self._kinds[gone]
            self._ticks.pop(gone, None)
        for process in alive:
            try:
                words = Path("/proc", process, "cmdline").read_bytes()
                fields = Path("/proc", process, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            ticks = int(fields[11]) + int(fields[12])  # in user and in system mode
            command = words.replace(b"\0", b" ").decode(errors="replace")
            known = self._kinds.get(process)
            # A process that was forked may have become another program.
            kind = known[1] if known is not None and known[0] == command else kind_of(command)
            self.cpu_ticks[kind] += ticks - self._ticks.get(process, 0)
            self._ticks[process] = ticks
            self._kinds[process] = (command, kind)
            if kind and (known is None or known[1] != kind):
                self.started[kind] += 1
        running = Counter(kind for _, kind in self._kinds.values() if kind)
        for kind, count in running.items():
            self.busiest[kind] = max(self.busiest[kind], count)


def kind_of(command: str) -> str:
    """Return the kind of a process with this command line, or an empty string."""
    for kind, words in KINDS.items():
        if all(word in command for word in words):
            return kind
    return ""


def cpu_seconds() -> tuple[float, float]:
    """Return the CPU time of this machine so far: all of it, and the idle part."""
    ticks = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(ticks) / TICKS_PER_S, (ticks[3] + ticks[4]) / TICKS_PER_S


class Times:
    """Collects the reports of a run and prints the summary at its end."""

    def __init__(self) -> None:
        self.phases: list[dict[str, object]] = []
        self.sampler = Sampler()
        self.began = time.monotonic()
        self.cpu = cpu_seconds()
        self.sampler.start()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.phases.append(
            {
                "test": report.nodeid,
                "phase": report.when,
                "start": report.start,
                "seconds": report.duration,
                "outcome": report.outcome,
                "worker": getattr(report, "worker_id", "main"),
            }
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        self.sampler.stop()
        took = time.monotonic() - self.began
        total, idle = (after - before for after, before in zip(cpu_seconds(), self.cpu, strict=True))
        self._save()
        write = terminalreporter.write_line
        terminalreporter.section("where the time went")
        write(f"{took:.0f} s, CPU idle {idle / max(total, 0.01):.0%}")
        for kind, count in sorted(self.sampler.started.items()):
            cpu_s = self.sampler.cpu_ticks[kind] / TICKS_PER_S
            write(f"{count:6} × {kind}: CPU {cpu_s:.0f} s (at most {self.sampler.busiest[kind]} at once)")
        self._write_folders(write)
        slowest = sorted(self.phases, key=lambda each: -float(str(each["seconds"])))[:SLOWEST]
        for each in slowest:
            write(f"{each['seconds']:8.2f} s {each['phase']:8} {each['test']}")

    def _save(self) -> None:
        file = os.environ.get("TEST_TIMES")
        if file:
            Path(file).write_text("".join(json.dumps(each) + "\n" for each in self.phases))

    def _write_folders(self, write: Callable[[str], None]) -> None:
        sums: dict[str, Counter[str]] = defaultdict(Counter)
        for each in self.phases:
            folder = "/".join(str(each["test"]).split("::")[0].split("/")[:3])
            for name in (folder, "all"):
                sums[name][str(each["phase"])] += float(str(each["seconds"]))  # type: ignore[assignment]
        write(f"{'seconds of':>10} {'setup':>8} {'call':>8} {'teardown':>8}")
        for folder, phases in sorted(sums.items(), key=lambda each: -sum(each[1].values())):
            write(f"{'':10} {phases['setup']:8.1f} {phases['call']:8.1f} {phases['teardown']:8.1f}  {folder}")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Times())
