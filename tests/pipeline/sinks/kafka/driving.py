"""Starts `driver.py` and ends what it has started: Python, the JVM, executors and workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.pipeline.sinks.kafka.helpers import committed_values, fill, new_topic

ROOT = Path(__file__).parents[4]
PARTITIONS = 3


class Driving:
    """One pipeline, in any number of processes one after another."""

    def __init__(self, source: str, output: str, folder: Path, modes: tuple[str, ...]) -> None:
        self.source = source
        self.output = output
        self.report = folder / "report.txt"
        self.errors = folder / "stderr.txt"
        self.topic = new_topic(source, PARTITIONS)
        self.topics = {mode: new_topic(output, 2) for mode in modes}
        self.sent = 0
        self._folder = folder

    def send(self, count: int) -> None:
        fill(self.source, self.topic, range(self.sent, self.sent + count), PARTITIONS)
        self.sent += count

    @contextmanager
    def started(self, **settings: Any) -> Iterator[subprocess.Popen[bytes]]:
        """A driver, which is dead in the end, with all that it has started."""
        arguments = {
            "source": self.source,
            "topic": self.topic,
            "output": self.output,
            "topics": self.topics,
            "name": self.topic,
            "folder": str(self._folder),
            "report": str(self.report),
            "per_batch": 150,
            **settings,
        }
        with self.errors.open("ab") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.pipeline.sinks.kafka.driver", json.dumps(arguments)],
                cwd=ROOT,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def finish(self, timeout_s: float = 120, **settings: Any) -> None:
        """Let a last one carry what is left."""
        with self.started(once=True, **settings) as process:
            assert process.wait(timeout_s) == 0, self.last_words()

    def batches(self) -> int:
        return len(self.report.read_text().splitlines()) if self.report.exists() else 0

    def last_words(self) -> str:
        return self.errors.read_text(errors="replace")[-3_000:]

    def check(self) -> None:
        """Every record that was sent is in every output topic, once."""
        for mode, topic in self.topics.items():
            assert committed_values(self.output, topic) == list(range(self.sent)), mode


def children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
