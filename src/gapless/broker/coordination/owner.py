"""Which process has a session, and whether it is certainly gone: that can be seen from the same machine.

Another machine's process is never judged here: only the end of its session says that it is gone.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import NamedTuple, Self

from gapless.storage.disk import boot_id


class Owner(NamedTuple):
    """A process, so that no other process of any machine is taken for it."""

    machine: str
    """One run of one machine, and in it one set of process ids; empty if that cannot be told."""
    pid: int
    started: str

    @classmethod
    def me(cls) -> Self:
        pid = os.getpid()
        return cls(_machine(), pid, _state_and_start(pid)[1])

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """What `to_bytes` has written; anything else is a process that nobody can judge."""
        try:
            values = json.loads(data)
            return cls(str(values["machine"]), int(values["pid"]), str(values["started"]))
        except (ValueError, KeyError, TypeError):
            return cls("", 0, "")

    def to_bytes(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    def is_here(self) -> bool:
        """Whether this process can look at that one."""
        return self.machine != "" and self.started != "" and self.machine == _machine()

    def is_gone(self) -> bool:
        """Whether the process has certainly ended; hung is not ended."""
        if not self.is_here():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False  # somebody else's process: its number may have been given anew, or not
        state, started = _state_and_start(self.pid)
        return state == "Z" or started not in ("", self.started)


@functools.cache
def _machine() -> str:
    """Containers of one machine have its boot id, but process ids of their own."""
    boot = boot_id()
    try:
        space = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return ""
    return f"{os.uname().nodename} {boot} {space}" if boot else ""


def _state_and_start(pid: int) -> tuple[str, str]:
    """A process's state (Z: ended, but nobody has asked how) and when it began; empty if that is hidden."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "", ""
    values = text.rpartition(")")[2].split()  # its name may hold anything
    return values[0], values[19]
