"""The parent's hand on the Spark job: start it, follow it, tell it where to stop, never leave it behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gapless.errors import GaplessError

STOP_TIMEOUT_S = 10.0


class CarrierFailed(GaplessError):
    """The Spark job ended before its work was done."""


class Carrier:
    """A running `gapless.demo.spark_job`. It ends when its stdin closes: it cannot outlive this process."""

    def __init__(self, bootstrap: str, topic: str, folder: Path, records_per_batch: int) -> None:
        self.log_file = folder / "spark.log"
        self.carried = 0
        self.restarts: list[str] = []
        self._changed = threading.Condition()
        self._events: set[str] = set()
        self._failure: str | None = None
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "gapless.demo.spark_job"),
                    *(bootstrap, topic, str(folder), str(records_per_batch)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # a Ctrl-C at the terminal is ours to pass on
            )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait_for(self, event: str, timeout_s: float, meanwhile: Callable[[], None] | None = None) -> None:
        """Until the job reports the event; `meanwhile` is called now and then."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            with self._changed:
                if event in self._events:
                    return
                if self._failure is not None:
                    raise CarrierFailed(f"the Spark job failed: {self._failure} (log: {self.log_file})")
                self._changed.wait(timeout=0.2)
            if time.monotonic() > deadline_s:
                raise CarrierFailed(
                    f"the Spark job did not report '{event}' within {timeout_s:.0f} s (log: {self.log_file})"
                )
            if meanwhile is not None:
                meanwhile()

    def stop_at(self, ends: dict[int, int]) -> None:
        """Tell the job where the topic ends; it finishes when its table has come so far."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it is gone: `wait_for` says why
                self._process.stdin.write(json.dumps(ends) + "\n")
                self._process.stdin.flush()

    def close(self) -> None:
        """End the job and everything it started."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._listener.join()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _listen(self) -> None:
        for line in self._process.stdout or ():
            with contextlib.suppress(json.JSONDecodeError):  # a line of somebody else's
                self._note(json.loads(line))
        with self._changed:
            if "finished" not in self._events and self._failure is None:
                self._failure = "it ended unexpectedly"
            self._changed.notify_all()

    def _note(self, report: dict[str, Any]) -> None:
        with self._changed:
            self._events.add(report["event"])
            self.carried = report.get("records", self.carried)
            if report["event"] == "restarted":
                self.restarts.append(report["reason"])
            if report["event"] == "failed":
                self._failure = report["reason"]
            self._changed.notify_all()
