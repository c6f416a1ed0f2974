"""The parent's hand on a process of the demo: start, hear, ask, kill, start again; never leave it behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from gapless.errors import GaplessError
from gapless.testing.processes import interrupts_wait


class ChildFailed(GaplessError):
    """A process of the demo ended, though nobody had killed it and its work was not done."""


class Child:
    """A module of this package, with one argument. It ends when its stdin closes: with this process."""

    def __init__(self, name: str, module: str, arguments: dict[str, Any], log_file: Path) -> None:
        self.name = name
        self.said: dict[str, Any] = {}
        """The last of each thing that it has said, over all its lives."""
        self.said_s: dict[str, float] = {}
        """When each of them last changed."""
        self._command = [sys.executable, "-m", f"gapless.demo.{module}", json.dumps(arguments)]
        self._log_file = log_file
        self._lock = threading.Lock()
        self._events: set[str] = set()
        self._process: subprocess.Popen[str] | None = None
        self._listener: threading.Thread | None = None
        self._is_killed = False

    def start(self) -> None:
        with interrupts_wait(), self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # a Ctrl-C at the terminal is ours to pass on
            )
        self._events, self._is_killed = set(), False
        self._listener = threading.Thread(target=self._listen, args=(self._process,), daemon=True)
        self._listener.start()

    def kill(self) -> None:
        """SIGKILL, to all that it has started, too."""
        process = self._process
        if process is None:
            return
        self._is_killed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if self._listener is not None:
            self._listener.join()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]
        self._process = None

    @property
    def is_done(self) -> bool:
        """Whether it came to its end."""
        return self._process is not None and self._process.poll() == 0

    def check(self) -> None:
        """Raises if it ended before its time."""
        process = self._process
        if not self._is_killed and process is not None and process.poll() not in (None, 0):
            raise ChildFailed(f"the {self.name} failed: {self._reason()} (log: {self._log_file})")

    def ask(self, command: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it is gone: `check` says why
                self._process.stdin.write(command + "\n")
                self._process.stdin.flush()

    def heard(self, event: str) -> bool:
        """Whether it has told of an event, in this life."""
        with self._lock:
            return event in self._events

    def _reason(self) -> str:
        if "failed" in self.said:
            return str(self.said["failed"])
        lines = self._log_file.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it ended"

    def _listen(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            with contextlib.suppress(json.JSONDecodeError):  # a line of somebody else's
                self._note(json.loads(line))

    def _note(self, report: dict[str, Any]) -> None:
        with self._lock:
            for name, value in report.items():
                if name == "event":
                    self._events.add(value)
                elif self.said.get(name) != value:
                    self.said[name] = value
                    self.said_s[name] = time.monotonic()
